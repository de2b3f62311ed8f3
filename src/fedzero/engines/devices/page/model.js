// A replica: parameters, momentum, the round that they are ready for; steps, digest, and the turn of a round.
import { blake2b } from './blake2b.js';
import { Broken, Hopeless } from './errors.js';
import { joined, little } from './packing.js';
import { ALL, CENTRAL, MOMENTUM, RADEMACHER, RANK_ONE } from './plan.js';

const ROWS_AT_ONCE = 64, MOST_TERMS = 4096, MOST_BYTES = 2 ** 30;
const LINEAR = 0, RELU = 2;

export class Model {
  constructor(core, plan) {
    const { method, tensors, task } = plan, { directions: P } = method;
    Object.assign(this, { core, plan, round: 0, momentum: method.rule === MOMENTUM });
    this.numbers = tensors.reduce((sum, each) => sum + each.count, 0);
    const copies = (method.steps > 1 ? 2 : 1) * (this.momentum ? 2 : 1);
    const bytes = 4 * this.numbers * copies + 16 * (P * method.steps + MOST_TERMS + 2 * P) + 4 * method.batch * task.widths[0];
    if (bytes > MOST_BYTES) throw new Hopeless(`The run needs ${Math.ceil(bytes / 2 ** 20)} MB, which is too much for this page.`);
    this.root = core.put(plan.root);
    this.x = this.room();
    this.M = this.momentum ? this.room() : 0;
    this.tensors = this.table(this.x, this.M);
    this.terms = core.take(16 * (MOST_TERMS + P));
    this.points = core.take(16 * 2 * P + 16);
    this.values = core.take(16 * P + 8);
    this.slopes = core.take(4 * P * method.steps);
    this.coefficients = core.take(4 * P);
    this.loss = core.take(8);
    this.layers();
    this.begin();
  }

  room = () => this.core.take(4 * this.numbers);

  // The structures of the tensors; x, M: where their numbers lie.
  table(x, M) {
    let at = 0;
    const rows = this.plan.tensors.flatMap(({ shape, count }) => {
      const row = [0, this.core.words(...shape), shape.length, x + 4 * at, M ? M + 4 * at : 0];
      at += count;
      return row;
    });
    return this.core.words(...rows);
  }

  layers() {
    const { core, plan } = this, { widths } = plan.task;
    const kinds = widths.slice(1).flatMap((outputs, i) => [...(i ? [RELU, 0, 0, 0] : []), LINEAR, outputs, 0, 0]);
    const sizes = [1, 1, widths[0], core.words(...kinds), kinds.length / 4, ROWS_AT_ONCE];
    this.network = core.words(...sizes);
    this.asked = plan.method.directions + 1;
    const size = core.do.fz_network_size(this.network, this.tensors, plan.tensors.length, plan.method.distribution, this.asked);
    const own = core.do.fz_network_size(this.network, this.tensors, plan.tensors.length, RANK_ONE, 1);
    this.size = Math.max(size, own) >>> 0;
    if (!size || !own) throw new Hopeless('The run has a network that this page cannot evaluate.');
    this.scratch = core.take(this.size);
    [this.held, this.batch] = [0, core.take(16)];
  }

  // ---- the model

  // The first model: ±scale.
  begin() {
    const { core, plan } = this;
    core.u8(this.x, 4 * this.numbers).fill(0);
    if (this.M) core.u8(this.M, 4 * this.numbers).fill(0);
    const key = core.key(this.root, 'init');
    let at = this.x;
    plan.tensors.forEach(({ scale, count }, ordinal) => {
      const term = core.setTerms(this.terms, [key], [scale]);
      core.do.fz_view(this.tensors + 20 * ordinal, ordinal, RADEMACHER, term, at);
      at += 4 * count;
    });
    this.round = 0;
  }

  // Whether the first model follows from the plan.
  get canBegin() {
    return this.plan.tensors.every(({ scale }) => scale > 0);
  }

  // Fold updates [round, scalars, rate], but for those that are folded already.
  apply(updates) {
    const { steps, directions: P } = this.plan.method;
    let waiting = [], count = 0;
    const flush = () => {
      this.advance(this.tensors, waiting);
      [waiting, count] = [[], 0];
    };
    for (const [round, scalars, rate] of updates) {
      if (round < this.round) continue;
      if (scalars.length !== 4 * steps * P) throw new Broken(`the update of round ${round} has ${scalars.length} bytes of scalars`);
      const g = new Float32Array(scalars.slice().buffer);
      if (!g.every(Number.isFinite) || !Number.isFinite(rate)) throw new Broken(`the update of round ${round} has a number that is none`);
      for (let k = 0; k < steps; k++) {
        if (count + P > MOST_TERMS) flush();
        waiting.push([round, k, g.subarray(k * P, (k + 1) * P), rate]);
        count += P;
      }
      this.round = round + 1;
    }
    flush();
  }

  // Steps [round, k, scalars, rate] on tensors, at once.
  advance(tensors, steps) {
    const { core, plan } = this, { distribution, rule, hypers } = plan.method;
    if (!steps.length) return;
    const table = new ArrayBuffer(20 * steps.length), view = new DataView(table);
    let at = this.terms;
    steps.forEach(([round, k, g, rate], i) => {
      core.setTerms(at, this.keys(round, k), this.coefficientsOf(g, rate));
      view.setUint32(20 * i, at, true);
      view.setUint32(20 * i + 4, g.length, true);
      [rate, ...hypers].slice(0, 3).forEach((each, j) => view.setFloat32(20 * i + 8 + 4 * j, each, true));
      at += 16 * g.length;
    });
    const mark = core.top, list = core.put(new Uint8Array(table));
    core.top = mark;
    core.expect(core.do.fz_advance(tensors, plan.tensors.length, distribution, rule, list, steps.length));
  }

  keys(round, k) {
    const { core, plan } = this;
    return Array.from({ length: plan.method.directions }, (_, p) =>
      BigInt.asUintN(64, core.do.fz_direction_key(this.root, BigInt(round), BigInt(k), BigInt(p), -1n)));
  }

  coefficientsOf(g, rate) {
    const { core } = this, P = g.length;
    core.f32(this.coefficients, P).set(g);
    core.do.fz_coefficients(this.coefficients, P, this.momentum ? 1 : -rate, this.coefficients);
    return core.f32(this.coefficients, P).slice();
  }

  digest() {
    let at = this.x;
    const parts = this.plan.tensors.map(({ label, count }) => {
      const sum = BigInt.asUintN(64, this.core.do.fz_checksum(at, count));
      at += 4 * count;
      return joined(label, little(sum, 8));
    });
    return blake2b(joined(...parts), 8, 'fedzero-model');
  }

  get length() {
    return 4 * this.numbers * (this.M ? 2 : 1);
  }

  // The state: parameters, then the momentum.
  bytes() {
    const parts = [this.x, this.M].filter(Boolean).map((at) => this.core.u8(at, 4 * this.numbers));
    return joined(...parts);
  }

  load(state, round) {
    if (state.length !== this.length) throw new Broken(`a checkpoint of ${state.length} bytes where the model has ${this.length}`);
    this.core.u8(this.x, 4 * this.numbers).set(state.subarray(0, 4 * this.numbers));
    if (this.M) this.core.u8(this.M, 4 * this.numbers).set(state.subarray(4 * this.numbers));
    this.round = round;
  }

  // ---- a turn

  // Scalars, the loss before local steps, evaluations; on rows of a place.
  turn(round, rate, rows, place) {
    const { core, plan } = this, { method } = plan, P = method.directions, central = method.difference === CENTRAL;
    let tensors = this.tensors, loss = 0;
    for (let k = 0; k < method.steps; k++) {
      const count = this.evaluate(tensors, this.keys(round, k), rows, this.drawn(rows, round, k, place));
      const slopes = this.slopes + 4 * k * P;
      core.expect(core.do.fz_slopes(this.values, central ? 1 : 0, P, method.radius, slopes, this.loss));
      loss = k ? loss : core.f64(this.loss, 1)[0];
      this.queries = count * method.steps;
      if (k + 1 === method.steps) break;
      if (!k) tensors = this.copied();
      this.advance(tensors, [[round, k, core.f32(slopes, P).slice(), rate]]);
    }
    const all = method.steps * P;
    if (method.clip > 0) core.do.fz_clip(this.slopes, all, method.clip);
    return { scalars: core.f32(this.slopes, all).slice(), loss, queries: this.queries };
  }

  copied() {
    this.copy ??= { x: this.room(), M: this.M ? this.room() : 0 };
    this.copy.tensors ??= this.table(this.copy.x, this.copy.M);
    for (const [from, to] of [[this.x, this.copy.x], [this.M, this.copy.M]])
      if (from) this.core.u8(to, 4 * this.numbers).set(this.core.u8(from, 4 * this.numbers));
    return this.copy.tensors;
  }

  // The places of a batch.
  drawn(rows, round, k, place) {
    const { core, plan } = this, size = Math.min(plan.method.samples === ALL ? rows.count : plan.method.batch, rows.count);
    const mark = core.top, at = core.take(4 * size);
    core.do.fz_sample(core.key(this.root, 'batch', round, k, place), rows.count, size, at);
    core.top = mark;
    return core.u32(at, size).slice();
  }

  // Rows side by side, with their labels.
  gathered(rows, places) {
    const { core } = this, inputs = rows.inputs, need = places.length * (4 * inputs + 1);
    if (need > this.held) {
      this.held = Math.max(need, Math.ceil(1.5 * this.held));
      this.data = core.take(this.held);
    }
    const [x, y] = [core.f32(this.data, places.length * inputs), core.u8(this.data + 4 * places.length * inputs, places.length)];
    places.forEach((row, i) => {
      x.set(rows.x.subarray(row * inputs, (row + 1) * inputs), i * inputs);
      y[i] = rows.y[row];
    });
    core.u32(this.batch, 4).set([this.data, this.data + 4 * places.length * inputs, 0, places.length]);
  }

  // f at the points around tensors; how many there are.
  evaluate(tensors, keys, rows, places) {
    const { core, plan } = this, { method } = plan, central = method.difference === CENTRAL;
    this.gathered(rows, places);
    const all = central ? keys.flatMap((key) => [key, key]) : [0n, ...keys];
    const signed = (i) => (central ? (i % 2 ? -1 : 1) : i ? 1 : 0) * method.radius;
    core.setTerms(this.points, all, all.map((_, i) => signed(i)));
    const mark = core.top, points = core.words(tensors, plan.tensors.length, method.distribution, this.points, all.length);
    core.top = mark;
    core.expect(core.do.fz_network_values(this.network, this.batch, points, this.scratch, this.size, this.values));
    return all.length;
  }

  // The labels that the model gives to rows.
  classes(rows, places) {
    const { core, plan } = this;
    this.gathered(rows, places);
    const mark = core.top, out = core.take(4 * places.length);
    core.top = mark;
    core.expect(core.do.fz_network_classes(this.network, this.batch, this.tensors, plan.tensors.length, this.scratch, this.size, out));
    return core.u32(out, places.length).slice();
  }
}
