// The conformance vectors in modules of WebAssembly, by the page's own access to them:
// node vectors.mjs FOLDER_OF_THE_PAGE VECTORS MODULE …; what failed, as JSON.
import fs from 'node:fs';
import { pathToFileURL } from 'node:url';

const [folder, vectors, ...modules] = process.argv.slice(2);
const { Core } = await import(pathToFileURL(`${folder}/core.js`));
const known = JSON.parse(fs.readFileSync(vectors, 'utf8'));
const STREAMS = { rademacher: 2, rank1: 4 };
const long = (text) => BigInt(`0x${text}`);
const digits = (value, length) => BigInt.asUintN(4 * length, value).toString(16).padStart(length, '0');
const float = (text) => new Float32Array(Uint32Array.of(parseInt(text, 16)).buffer)[0];
const double = (text) => new Float64Array(BigUint64Array.of(long(text)).buffer)[0];
const product = (shape) => shape.reduce((a, b) => a * b, 1);

class Checked {
  constructor(path) {
    [this.core, this.cases, this.failed] = [new Core(fs.readFileSync(path)), 0, []];
  }

  expect(part, row, found, right) {
    this.cases += 1;
    if (JSON.stringify(found) !== JSON.stringify(right)) this.failed.push([part, row]);
  }

  bits32 = (at, count) => Array.from(this.core.u32(at, count), (word) => word.toString(16).padStart(8, '0'));
  bits64 = (at, count) => Array.from(this.core.u64(at, count), (word) => digits(word, 16));

  // Tensors of shapes with the numbers of the vectors: [structures, where numbers lie, where the momentum lies].
  tensors(shapes, unit, names = []) {
    const { core } = this, parts = shapes.map((shape) => {
      const at = core.take(4 * product(shape)), M = core.take(4 * product(shape));
      core.f32(at, product(shape)).forEach((_, i, all) => (all[i] = (((37 * i) % 251) - 125) * unit));
      core.u32(M, product(shape)).fill(0);
      return [at, M];
    });
    const text = (name) => core.put(new TextEncoder().encode(`${name}\0`));
    const rows = shapes.flatMap((shape, i) => [names[i] ? text(names[i]) : 0, core.words(...shape), shape.length, ...parts[i]]);
    return [core.words(...rows), parts];
  }

  keys(rows) {
    rows.forEach(({ seed, secret, root, purpose, numbers, key }, i) => {
      const { core } = this, at = core.take(64);
      core.do.fz_root(BigInt(seed), at);
      const bytes = Uint8Array.from(Buffer.from(secret, 'hex'));
      if (secret) core.expect(core.do.fz_shifted_root(at, core.put(bytes), bytes.length, at));
      this.expect('keys', i, [Buffer.from(core.u8(at, 32)).toString('hex'), digits(core.key(at, purpose, ...numbers), 16)], [root, key]);
    });
  }

  words(rows) {
    rows.forEach(({ key, block, ordinal, domain, words }, i) => {
      const at = this.core.take(16);
      this.core.do.fz_block(long(key), long(block), ordinal, domain, at);
      this.expect('words', i, this.bits32(at, 4), words);
    });
  }

  directions(rows) {
    rows.forEach(({ stream, key, ordinal, shape, checksum, first }, i) => {
      const { core } = this, [table, [[at]]] = this.tensors([shape], 0), out = core.take(4 * product(shape));
      core.do.fz_view(table, ordinal, STREAMS[stream], core.setTerms(core.take(16), [long(key)], [1]), out);
      const signs = Array.from(core.f32(out, first.length), (value) => (value < 0 ? '1' : '0')).join('');
      this.expect('directions', i, [digits(core.do.fz_checksum(out, product(shape)), 16), signs, at > 0], [checksum, first, true]);
    });
  }

  programs(rows) {
    rows.forEach(({ stream, rule, shapes, names, unit, steps, checksums, momentum, first, digest }, i) => {
      const { core } = this, [table, parts] = this.tensors(shapes, float(unit), names);
      const list = core.put(new Uint32Array(steps.flatMap(({ terms, hypers }) => {
        const at = core.setTerms(core.take(16 * terms.length), terms.map(([key]) => long(key)), terms.map(([, c]) => float(c)));
        return [at, terms.length, ...hypers.map((each) => parseInt(each, 16))];
      })));
      core.expect(core.do.fz_advance(table, shapes.length, STREAMS[stream], rule === 'sgd' ? 0 : 1, list, steps.length));
      const sums = (which) => parts.map((part, t) => digits(core.do.fz_checksum(part[which], product(shapes[t])), 16));
      const out = core.take(8);
      core.do.fz_digest(table, shapes.length, out);
      const found = [sums(0), momentum.length ? sums(1) : [], this.bits32(parts[0][0], first.length), Buffer.from(core.u8(out, 8)).toString('hex')];
      this.expect('programs', i, found, [checksums, momentum, first, digest]);
    });
  }

  estimates(rows) {
    rows.forEach((row, i) => {
      const { core } = this, P = row.slopes.length, values = core.put(Float64Array.from(row.values, double));
      const [slopes, loss, c] = [core.take(4 * P), core.take(8), core.take(4 * P)];
      core.expect(core.do.fz_slopes(values, row.difference === 'central' ? 1 : 0, P, double(row.radius), slopes, loss));
      core.do.fz_coefficients(slopes, P, double(row.factor), c);
      const found = [this.bits32(slopes, P), this.bits64(loss, 1)[0], this.bits32(c, P)];
      core.do.fz_clip(slopes, P, double(row.norm));
      this.expect('estimates', i, [...found, this.bits32(slopes, P)], [row.slopes, row.loss, row.coefficients, row.clipped]);
    });
  }

  losses(rows) {
    rows.forEach((row, i) => {
      const { core } = this, [table] = this.tensors(row.shapes, 1 / 512), columns = product(row.input);
      const x = core.take(4 * columns * row.rows), y = core.take(row.rows);
      core.f32(x, columns * row.rows).forEach((_, j, all) => (all[j] = (((29 * j) % 127) - 63) / 64));
      const classes = row.layers.at(-1)[1];
      core.u8(y, row.rows).forEach((_, r, all) => (all[r] = r % classes));
      const network = core.words(...row.input, core.words(...row.layers.flat()), row.layers.length, 4);
      const [keys, cs] = [row.points.map(([key]) => long(key)), row.points.map(([, c]) => float(c))];
      const points = core.words(table, row.shapes.length, STREAMS[row.stream], core.setTerms(core.take(16 * keys.length), keys, cs), keys.length);
      const size = core.do.fz_network_size(network, table, row.shapes.length, STREAMS[row.stream], keys.length);
      const values = core.take(8 * keys.length);
      core.expect(core.do.fz_network_values(network, core.words(x, y, 0, row.rows), points, core.take(size), size, values));
      const near = Array.from(core.f64(values, keys.length), (value, j) => Math.abs(value - double(row.losses[j])) <= known.tolerance * Math.abs(value));
      this.expect('losses', i, near, keys.map(() => true));
    });
  }

  batches(rows) {
    rows.forEach(({ kind, key, count, size, rate, places }, i) => {
      const { core } = this, at = core.take(4 * (size ?? count) + 4);
      const found = kind === 'sample' ? core.do.fz_sample(long(key), count, size, at) : core.do.fz_poisson(long(key), count, double(rate), count, at);
      this.expect('batches', i, Array.from(core.u32(at, found)), places);
    });
  }
}

const report = modules.map((path) => {
  const checked = new Checked(path);
  for (const part of ['keys', 'words', 'directions', 'programs', 'estimates', 'losses', 'batches']) checked[part](known[part]);
  return { cases: checked.cases, failed: checked.failed };
});
console.log(JSON.stringify(report));
