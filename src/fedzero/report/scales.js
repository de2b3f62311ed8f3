// Numbers for people, and the scales and ticks of an axis.
"use strict";
const BYTES = ["B", "KB", "MB", "GB", "TB", "PB"];
const COUNTS = ["", "k", "M", "G", "T"];

function scaled(value, units, digits) {
  let at = 0;
  while (Math.abs(value) >= 999.5 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${+value.toPrecision(digits)} ${units[at]}`.trim();
}

function duration(value) {
  if (value < 59.5) return `${+value.toPrecision(3)} s`;
  if (value < 3599.5) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`.replace(" 0 s", "");
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`.replace(" 0 min", "");
}

const FORMATS = {
  bytes: (value) => scaled(value, BYTES, 3),
  rounds: (value) => (+value.toPrecision(6)).toLocaleString("en"),
  queries: (value) => scaled(value, COUNTS, 3),
  seconds: duration,
  time: duration,
  epsilon: (value) => String(+value.toPrecision(4)),
  percent: (value) => `${+(100 * value).toPrecision(4)} %`,
  number: (value) => String(+value.toPrecision(4)),
};

// A map from values to pixels. Limits have some air around all values; a single value gets air, too.
function makeScale(values, from, to, log, air) {
  let low = Infinity, high = -Infinity;
  for (const v of values) { if (v < low) low = v; if (v > high) high = v; }
  if (low > high) [low, high] = log ? [1, 10] : [0, 1];
  const step = log ? Math.log10 : (v) => v;
  let [a, b] = [step(low), step(high)];
  const span = b - a || (log ? 0.5 : Math.abs(b) || 1);
  a -= air * span; b += air * span;
  return {
    log,
    low: log ? 10 ** a : a,
    high: log ? 10 ** b : b,
    at: (v) => from + (to - from) * (step(v) - a) / (b - a),
    back: (pixel) => { const v = a + (pixel - from) / (to - from) * (b - a); return log ? 10 ** v : v; },
  };
}

// Round places: powers of ten, every second or third if they are many; steps of 1, 2 and 5 if they are few.
// whole: no fractions; clock: whole minutes and hours.
function ticksOf(scale, most, whole, clock) {
  const found = [];
  if (clock && scale.log) {
    const times = [0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 360000, 3600000].filter((v) => v >= scale.low && v <= scale.high);
    if (times.length > 1) return times;
  }
  const decades = scale.log ? [Math.ceil(Math.log10(scale.low) - 1e-9), Math.floor(Math.log10(scale.high) + 1e-9)] : null;
  if (scale.log && decades[1] - decades[0] >= 2) {
    const stride = Math.ceil((decades[1] - decades[0] + 1) / most);
    for (let e = decades[0]; e <= decades[1]; e += stride) found.push(10 ** e);
    return found;
  }
  if (scale.log) {
    for (let e = decades[0] - 1; e <= decades[1]; e += 1)
      for (const m of [1, 2, 5]) { const v = m * 10 ** e; if (v >= scale.low && v <= scale.high) found.push(v); }
    if (found.length > 1) return found.filter((_, i) => i % Math.ceil(found.length / most) === 0);
    found.length = 0;
  }
  const unit = !clock ? 1 : scale.high >= 7200 ? 3600 : scale.high >= 120 ? 60 : 1;
  const raw = (scale.high - scale.low) / most / unit, power = 10 ** Math.floor(Math.log10(raw));
  let step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || power;
  if (whole) step = Math.max(1, Math.round(step));
  step *= unit;
  for (let k = Math.ceil(scale.low / step - 1e-9); k * step <= scale.high + 1e-9 * step; k += 1) {
    const v = +(k * step).toPrecision(12);
    if (!(scale.log && v <= 0)) found.push(v);
  }
  return found;
}
