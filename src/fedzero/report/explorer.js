// The page's charts: a large one whose axes the reader chooses, small ones, and a legend that hides and shows runs.
const page = { data: null, hidden: new Set(), filtered: new Set(), metric: null, axis: null, logX: null, logY: null };

function readData(root) {
  return JSON.parse(root.getElementById("data").textContent);
}

function axisSpec(axis, log) {
  const known = page.data.axes.find((each) => each.id === axis) || { name: axis };
  return { id: axis, name: known.name, format: FORMATS[axis], log, whole: axis === "rounds" || axis === "queries", clock: axis === "seconds" || axis === "time" };
}

function metricSpec(metric, log) {
  const known = page.data.metrics.find((each) => each.id === metric) || { name: metric };
  return { id: metric, name: known.name, format: known.percent ? FORMATS.percent : FORMATS.number, log };
}

function linesOf(metric, axis, thin) {
  const found = [];
  for (const curve of page.data.curves) {
    const of = curve.metrics[metric];
    if (!of || !of[axis] || page.hidden.has(curve.index) || page.filtered.has(curve.index)) continue;
    found.push({ name: curve.name, index: curve.index, unit: curve.unit, x: of[axis], y: of.y, error: of.error, thin });
  }
  return found;
}

function logByDefault(axis, metric) {
  return [page.data.logarithmic.x.includes(axis), page.data.logarithmic.y.includes(metric)];
}

function drawLarge() {
  const host = document.getElementById("large");
  if (!host) return;
  const { metric, axis, logX, logY } = page, gap = page.data.gap;
  const bytes = axis === "bytes";
  drawChart(host, {
    lines: linesOf(metric, axis, false), x: axisSpec(axis, logX), y: metricSpec(metric, logY), labels: true,
    height: host.clientWidth < 560 ? 340 : 420,
    yardstick: bytes && page.data.copy ? page.data.copy : null,
    gap: bytes && gap && gap.metric === metric && !page.hidden.size && gap.low > 0 ? gap : null,
  });
}

function drawSmall() {
  for (const host of document.querySelectorAll("#small .chart")) {
    const { metric, axis } = host.dataset;
    const [logX, logY] = logByDefault(axis, metric);
    const behind = metric === "loss" && axis === "rounds" ? linesOf("train", axis, true) : [];
    const y = metricSpec(metric, logY);
    drawChart(host, { title: y.name, lines: [...behind, ...linesOf(metric, axis, false)], x: axisSpec(axis, logX), y });
  }
}

function drawParts() {
  document.querySelectorAll("#parts .chart").forEach((host) => {
    const part = page.data.parts[Number(host.dataset.part)];
    const lines = part.lines.map((line, index) => ({ ...line, index }));
    const x = { id: part.x, name: part.x, format: part.x === "rounds" ? FORMATS.rounds : FORMATS.number, whole: part.x === "rounds" };
    drawChart(host, { title: part.title, lines, x, y: { name: "value", format: FORMATS.number, log: false }, mark: part.mark, labels: lines.length > 1 });
  });
}

// Places for charts are made once; data may bring new ones while a run goes.
function makePlaces() {
  const places = (id, items, mark) => {
    const grid = document.getElementById(id);
    if (!grid) return;
    items.forEach((item, index) => {
      const host = grid.children[index] ? grid.children[index].firstElementChild : html("div", "chart");
      if (!grid.children[index]) { const figure = html("figure"); figure.append(host); grid.append(figure); }
      mark(host, item, index);
      host.tabIndex = 0;
      host.setAttribute("role", "group");
    });
    while (grid.children.length > items.length) grid.lastElementChild.remove();
  };
  places("small", page.data.panels, (host, [metric, axis]) => { host.dataset.metric = metric; host.dataset.axis = axis; });
  places("parts", page.data.parts, (host, part, index) => { host.dataset.part = index; });
}

function drawAll() {
  drawLarge();
  drawSmall();
  drawParts();
}

function choices(id, items, chosen, pick) {
  const group = document.getElementById(id);
  if (!group) return;
  group.querySelectorAll("label").forEach((label) => label.remove());
  for (const item of items) {
    const label = html("label"), input = html("input");
    input.type = "radio";
    input.name = id;
    input.checked = item.id === chosen;
    input.onchange = () => pick(item.id);
    label.append(input, html("span", "", item.short || item.name));
    group.append(label);
  }
  group.hidden = items.length < 2;
}

const SHORT = { bytes: "Bytes", rounds: "Rounds", seconds: "Time", epsilon: "ε", time: "Simulated time" };

function makeControls() {
  const controls = document.getElementById("controls");
  if (!controls) return;
  const redraw = () => { [page.logX, page.logY] = logByDefault(page.axis, page.metric); sync(); drawLarge(); };
  const sync = () => { for (const key of ["logX", "logY"]) document.getElementById(key).checked = page[key]; };
  const axes = page.data.axes.map((each) => ({ ...each, short: SHORT[each.id] || each.name.split(",")[0].replace(/^./, (c) => c.toUpperCase()) }));
  choices("across", axes, page.axis, (id) => { page.axis = id; redraw(); });
  choices("upward", page.data.metrics, page.metric, (id) => { page.metric = id; redraw(); });
  for (const key of ["logX", "logY"]) {
    document.getElementById(key).onchange = (event) => { page[key] = event.target.checked; drawLarge(); };
  }
  sync();
  controls.hidden = false;
}

function makeLegend() {
  document.querySelectorAll(".legend button").forEach((button, index) => {
    button.disabled = false;
    button.onclick = () => {
      if (!page.hidden.delete(index)) page.hidden.add(index);
      button.setAttribute("aria-pressed", String(!page.hidden.has(index)));
      drawAll();
    };
  });
}

// Runs whose names have not all words of the filter leave charts, legend and totals.
function filterRuns() {
  const input = document.getElementById("filter");
  if (!input) return;
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const left = page.data.curves.filter((curve) => !words.every((word) => curve.name.toLowerCase().includes(word)));
  page.filtered = new Set(left.map((curve) => curve.index));
  const mark = (item, index) => { item.hidden = page.filtered.has(index); };
  document.querySelectorAll(".legend li").forEach(mark);
  document.querySelectorAll("#totals tbody tr").forEach((row) => mark(row, Number(row.dataset.row)));
}

function makeFilter() {
  const input = document.getElementById("filter");
  if (!input) return;
  input.disabled = false;
  input.oninput = () => { filterRuns(); drawAll(); };
  filterRuns();
}

function startCharts() {
  page.data = readData(document);
  page.metric = page.data.start.metric;
  page.axis = page.data.start.axis;
  [page.logX, page.logY] = logByDefault(page.axis, page.metric);
  makePlaces();
  makeControls();
  makeLegend();
  makeFilter();
  drawAll();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; requestAnimationFrame(drawAll); } });
}
