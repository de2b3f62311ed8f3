// The same work as core.py, in WebAssembly: node core.mjs MODULE ROWS_AT_ONCE REPEATS; milliseconds of processor time as JSON.
import fs from 'node:fs';

const [path, rowsAtOnce, repeats] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const { exports: core } = new WebAssembly.Instance(new WebAssembly.Module(fs.readFileSync(path)), {});
core.memory.grow(256);
const { buffer } = core.memory;
const [bytes, words, keys] = [new Uint8Array(buffer), new Uint32Array(buffer), new BigUint64Array(buffer)];
const [floats, doubles] = [new Float32Array(buffer), new Float64Array(buffer)];
let top = core.__heap_base.value;
const alloc = (size) => {
  const at = (top + 63) & ~63;
  top = at + size;
  return at;
};
const table = (rows) => {
  const at = alloc(4 * rows.flat().length);
  words.set(rows.flat(), at / 4);
  return at;
};
const numbers = (count, scale) => {
  const at = alloc(4 * count);
  for (let i = 0; i < count; i++) floats[at / 4 + i] = (((37 * i) % 251) - 125) * scale;
  return at;
};

const ROWS = 320, RANK_ONE = 4, RADEMACHER = 2;
const shapes = [[200, 784], [200], [10, 200], [10]];
const tensors = table(shapes.map((s) => [0, table([s]), s.length, numbers(s.reduce((a, b) => a * b), 2 ** -12), 0]));
const layers = table([[0, 200, 0, 0], [2, 0, 0, 0], [0, 10, 0, 0]]);
const network = table([[1, 1, 784, layers, 3, rowsAtOnce]]);
const labels = alloc(ROWS);
for (let r = 0; r < ROWS; r++) bytes[labels + r] = r % 10;
const batch = table([[numbers(ROWS * 784, 2 ** -7), labels, 0, ROWS]]);

const terms = (count, central) => {
  const at = alloc(16 * count);
  for (let j = 0; j < count; j++) {
    keys[at / 8 + 2 * j] = BigInt(1000 + (central ? j >> 1 : j));
    floats[at / 4 + 4 * j + 2] = central && j % 2 ? -1e-3 : 1e-3;
  }
  return at;
};
const expect = (status) => {
  if (status) throw new Error(`status ${status}`);
};
const spent = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
};
const best = (work) => {
  for (let i = 0; i < 5; i++) work();
  let least = Infinity;
  for (let i = 0; i < repeats; i++) {
    const began = spent();
    work();
    least = Math.min(least, spent() - began);
  }
  return least;
};

const points = table([[tensors, 4, RANK_ONE, terms(40, true), 40]]);
const size = core.fz_network_size(network, tensors, 4, RANK_ONE, 20);
const scratch = alloc(size), values = alloc(8 * 40);
const found = { points: best(() => expect(core.fz_network_values(network, batch, points, scratch, size, values))) };
found.loss = doubles[values / 8];
for (const [name, stream] of [['rademacher', RADEMACHER], ['rank1', RANK_ONE]])
  for (const count of [1, 10]) {
    const step = table([[terms(count, false), count, 0, 0, 0]]);
    found[`${name} ${count}`] = best(() => expect(core.fz_advance(tensors, 4, stream, 0, step, 1)));
  }
found.checksum = best(() => core.fz_checksum(words[tensors / 4 + 3], 200 * 784));
console.log(JSON.stringify(found));
