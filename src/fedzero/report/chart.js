// One chart: curves in an SVG of the host's width, a cursor that reads values, by pointer or by arrow keys.
// All words are set as text, never as markup. Colours are CSS variables, so light, dark and print need no redrawing.
const SHAPES = [
  "M-3.6 0a3.6 3.6 0 1 0 7.2 0 3.6 3.6 0 1 0-7.2 0Z", "M-3.3-3.3h6.6v6.6h-6.6Z", "M0-4.7 4.7 0 0 4.7-4.7 0Z",
  "M0-4.4 4.5 3.5h-9Z", "M0 4.4-4.5-3.5h9Z", "M-1.5-4.3h3v2.8h2.8v3H1.5v2.8h-3V1.5h-2.8v-3h2.8Z",
];
const COLOURS = SHAPES.length;

function node(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}

function html(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Points of a curve that an axis can show; `lost` is where the first value was not finite.
function visiblePoints(line, x, y) {
  const found = { ...line, px: [], py: [], at: [], lost: null };
  line.x.forEach((place, i) => {
    const value = line.y[i];
    if (place === null || place === undefined || (x.log && !(place > 0))) return;
    if (value === null) { if (found.lost === null) found.lost = place; return; }
    if (y.log && !(value > 0)) return;
    found.at.push(i);
  });
  return found;
}

function pathOf(px, py) {
  let text = "";
  for (let i = 0; i < px.length; i += 1) text += `${i ? "L" : "M"}${px[i].toFixed(1)} ${py[i].toFixed(1)}`;
  return text;
}

// spec: { title, lines: [{ name, index, x, y, error, thin }], x: { name, format, log }, y: the same,
//         height, yardstick, gap, mark, labels }
function drawChart(host, spec) {
  const width = Math.max(240, host.clientWidth), height = spec.height || 250, large = height > 300;
  let lines = spec.lines.map((line) => visiblePoints(line, spec.x, spec.y));
  const xs = [], ys = [];
  for (const line of lines) {
    for (const i of line.at) {
      xs.push(line.x[i]); ys.push(line.y[i]);
      if (line.error) for (const v of [line.y[i] - line.error[i], line.y[i] + line.error[i]]) if (v > 0 || !spec.y.log) ys.push(v);
    }
    if (line.lost !== null) xs.push(line.lost);
  }
  if (spec.yardstick && xs.length) xs.push(spec.yardstick);
  const top = spec.yardstick || spec.title ? 34 : 16, bottom = height - 46;
  const y = makeScale(ys, bottom, top, spec.y.log, 0.06);
  const yTicks = ticksOf(y, large ? 6 : 5, false), yTexts = yTicks.map(spec.y.format);
  const left = 18 + 7 * Math.max(3, ...yTexts.map((t) => t.length)), right = width - 24;
  const x = makeScale(xs, left, right, spec.x.log, 0.03);
  const svg = node("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  if (spec.title) svg.append(node("text", { x: 10, y: 20, class: "title" }, spec.title));
  svg.append(node("text", { x: (left + right) / 2, y: height - 8, class: "axis", "text-anchor": "middle" }, spec.x.name));
  if (!xs.length) {
    svg.append(node("text", { x: width / 2, y: height / 2, class: "axis", "text-anchor": "middle" }, spec.empty || "nothing to show"));
    return finish(host, spec, svg, [], x, y, top, bottom);
  }
  yTicks.forEach((v, i) => {
    const at = y.at(v);
    svg.append(node("path", { d: `M${left} ${at}H${right}`, class: "rule" }));
    svg.append(node("text", { x: left - 8, y: at + 4, class: "axis", "text-anchor": "end" }, yTexts[i]));
  });
  svg.append(node("path", { d: `M${left} ${bottom}H${right}`, class: "base" }));
  for (const v of ticksOf(x, Math.max(2, Math.floor((right - left) / 90)), spec.x.whole, spec.x.clock)) {
    if (x.at(v) < left - 1 || x.at(v) > right + 1) continue;
    svg.append(node("path", { d: `M${x.at(v)} ${bottom}v4`, class: "base" }));
    svg.append(node("text", { x: x.at(v), y: bottom + 18, class: "axis", "text-anchor": "middle" }, spec.x.format(v)));
  }
  if (spec.yardstick) drawYardstick(svg, spec, x.at(spec.yardstick), left, right, top, bottom);
  if (spec.mark !== undefined && spec.mark !== null)
    svg.append(node("path", { d: `M${x.at(spec.mark)} ${top}V${bottom}`, class: "yardstick" }));
  for (const line of lines) {
    for (const i of line.at) { line.px.push(x.at(line.x[i])); line.py.push(y.at(line.y[i])); }
    drawLine(svg, line, y, top);
    if (line.lost !== null) drawMark(svg, x.at(line.lost), top + 6, "M-4-4 4 4M4-4-4 4", line, "lost");
  }
  const taken = spec.gap ? [drawGap(svg, spec.gap, x, y)] : [];
  if (spec.labels) drawNames(svg, lines, taken, left, right, top);
  return finish(host, spec, svg, lines.filter((line) => line.at.length && !line.thin), x, y, top, bottom);
}

function seriesOf(line) {
  return `series-${line.index % COLOURS}${line.index >= COLOURS ? " dashed" : ""}${line.thin ? " thin" : ""}`;
}

function drawLine(svg, line, y, top) {
  if (!line.at.length) return;
  if (line.error) {
    const bound = (sign) => line.at.map((i) => { const v = line.y[i] + sign * line.error[i]; return y.log && v <= 0 ? y.at(y.low) : y.at(v); });
    const back = bound(-1).reverse(), there = pathOf(line.px, bound(1));
    svg.append(node("path", { d: `${there}L${pathOf([...line.px].reverse(), back).slice(1)}Z`, class: `band ${seriesOf(line)}` }));
  }
  svg.append(node("path", { d: pathOf(line.px, line.py), class: `line ${seriesOf(line)}` }));
  if (!line.thin) drawMark(svg, line.px.at(-1), line.py.at(-1), SHAPES[line.index % COLOURS], line, "mark");
}

function drawMark(svg, x, y, shape, line, kind) {
  svg.append(node("path", { d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, class: `${kind} ${seriesOf(line)}` }));
}

function drawYardstick(svg, spec, at, left, right, top, bottom) {
  const side = at < left + 110 ? "start" : at > right - 110 ? "end" : "middle";
  svg.append(node("path", { d: `M${at} ${top - 4}V${bottom}`, class: "yardstick" }));
  svg.append(node("text", { x: at, y: top - 12, class: "axis", "text-anchor": side }, `one copy of the model: ${FORMATS.bytes(spec.yardstick)}`));
}

// The distance between two runs at the goal that both met; returns the place it takes.
function drawGap(svg, gap, x, y) {
  const [from, to, level] = [x.at(gap.low), x.at(gap.high), y.at(gap.goal)];
  const text = to - from > 200 ? gap.text : gap.text.replace(" times the bytes", " ×");
  svg.append(node("path", { d: `M${from} ${level}H${to}`, class: "gap" }));
  for (const end of [from, to]) svg.append(node("circle", { cx: end, cy: level, r: 4.5, class: "gap" }));
  svg.append(node("text", { x: (from + to) / 2, y: level + 26, class: "gap-text", "text-anchor": "middle" }, text));
  return { left: from - 6, right: to + 6, top: level - 6, bottom: level + 34 };
}

// Names beside the ends of their curves, moved up or down until they cover neither each other nor the gap.
function drawNames(svg, lines, taken, left, right, top) {
  for (const line of lines) {
    if (!line.at.length || line.thin) continue;
    const wide = Math.min(8 * line.name.length, right - left), end = line.px.at(-1);
    const anchor = end + 12 + wide <= right + 10 ? "start" : "end";
    const x = anchor === "start" ? end + 10 : Math.max(end, left + wide);
    const box = (level) => ({ left: anchor === "start" ? x : x - wide, right: anchor === "start" ? x + wide : x, top: level - 13, bottom: level + 5 });
    const hits = (b) => taken.some((t) => b.left < t.right && b.right > t.left && b.top < t.bottom && b.bottom > t.top);
    const first = line.py.at(-1) + (anchor === "start" ? 5 : -11);
    let best = first;
    for (let step = 0; step < 40; step += 1) {
      const level = first + (step % 2 ? -1 : 1) * Math.ceil(step / 2) * 9;
      if (level - 13 >= top - 8 && !hits(box(level))) { best = level; break; }
    }
    taken.push(box(best));
    const most = Math.floor((right - left) / 8);
    const name = line.name.length > most ? `${line.name.slice(0, most - 1)}…` : line.name;
    svg.append(node("text", { x, y: best, class: `name ${seriesOf(line)}`, "text-anchor": anchor }, name));
  }
}

// The cursor, its values in a box beside it, and the same for a screen reader.
function finish(host, spec, svg, lines, x, y, top, bottom) {
  const pointer = node("g", { class: "cursor" });
  svg.append(pointer);
  const box = html("div", "values"), spoken = html("p", "spoken");
  box.hidden = true;
  spoken.setAttribute("aria-live", "polite");
  host.replaceChildren(svg, box, spoken);
  host.setAttribute("aria-label", describe(spec, lines));
  const places = [...new Set(lines.flatMap((line) => line.px.map((p) => Math.round(p * 10) / 10)))].sort((a, b) => a - b);
  let position = -1;
  const clear = () => { pointer.replaceChildren(); box.hidden = true; position = -1; };
  const show = (pixel, aloud) => {
    position = nearest(places, pixel);
    const at = places[position], rows = [];
    let place = x.back(at), best = Infinity;
    pointer.replaceChildren(node("path", { d: `M${at} ${top}V${bottom}` }));
    for (const line of lines) {
      const i = lastBefore(line.px, at + 0.5), far = i < 0 ? Infinity : at - line.px[i];
      if (i < 0 || (i === line.px.length - 1 && far > 24)) continue; // not begun yet, or over
      pointer.append(node("circle", { cx: line.px[i], cy: line.py[i], r: 4, class: `dot ${seriesOf(line)}` }));
      rows.push([line, line.at[i], far > 12]);
      if (Math.abs(far) < best) { best = Math.abs(far); place = line.x[line.at[i]]; }
    }
    fillBox(box, spec, spec.x.format(place), rows);
    box.hidden = false;
    const wide = box.offsetWidth;
    box.style.left = `${Math.max(4, at + 14 + wide > host.clientWidth ? at - wide - 14 : at + 14)}px`;
    box.style.top = `${top}px`;
    if (aloud) spoken.textContent = box.textContent;
  };
  host.onpointermove = (event) => { if (places.length) show(event.clientX - svg.getBoundingClientRect().left, false); };
  host.onpointerleave = clear;
  host.onblur = clear;
  host.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -places.length, End: places.length }[event.key];
    if (event.key === "Escape") clear();
    if (!step || !places.length) return;
    event.preventDefault();
    const from = position < 0 ? (step > 0 ? -1 : places.length) : position;
    show(places[Math.min(places.length - 1, Math.max(0, from + step))], true);
  };
}

function fillBox(box, spec, place, rows) {
  const table = html("dl");
  for (const [line, i, earlier] of rows) {
    const error = line.error ? ` ± ${spec.y.format(line.error[i])}` : "";
    table.append(html("dt", seriesOf(line), line.name), html("dd", "", ` ${spec.y.format(line.y[i])}${error}`));
    if (earlier) table.lastChild.textContent += ` at ${spec.x.format(line.x[i])}`; // measured before this place
    else if (line.unit && spec.x.id === "queries") table.lastChild.textContent += ` after ${spec.x.format(line.x[i])} ${line.unit}`;
  }
  box.replaceChildren(html("p", "", `${place} ${spec.x.id === "rounds" ? "rounds" : spec.x.id === "bytes" ? "per client" : ""}`), table);
}

// The position of the last value that is not above; -1 if there is none.
function lastBefore(sorted, value) {
  let low = -1, high = sorted.length;
  while (high - low > 1) { const middle = (low + high) >> 1; if (sorted[middle] <= value) low = middle; else high = middle; }
  return low;
}

function nearest(sorted, value) {
  let low = 0, high = sorted.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (sorted[middle] < value) low = middle; else high = middle; }
  return Math.abs(sorted[low] - value) <= Math.abs(sorted[high] - value) ? low : high;
}

function describe(spec, lines) {
  const ends = lines.map((line) => `${line.name} ends at ${spec.y.format(line.y[line.at.at(-1)])}`);
  return `${spec.y.name} against ${spec.x.name}. ${ends.join("; ")}. Arrow keys read the values.`;
}
