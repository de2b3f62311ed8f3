// The rows of this device: numbers that are normalised already, and labels.
import { Hopeless } from './errors.js';

const MOST = 1 << 20, MOST_BYTES = 256 << 20;

export class Rows {
  constructor(task, stored) {
    const inputs = task.widths[0];
    Object.assign(this, { task, inputs, count: 0, x: new Float32Array(16 * inputs), y: new Uint8Array(16) });
    this.mean = Float32Array.from({ length: inputs }, (_, i) => task.mean[i % task.mean.length]);
    this.deviation = Float32Array.from({ length: inputs }, (_, i) => task.deviation[i % task.deviation.length]);
    if (stored?.x.length === stored?.y.length * inputs) Object.assign(this, { x: stored.x, y: stored.y, count: stored.y.length });
  }

  // Add a row; returns what is wrong with it, or nothing. (x − mean)/deviation, two operations of float32.
  add(numbers, label) {
    if (this.count === MOST || 4 * this.inputs * (this.count + 1) > MOST_BYTES) throw new Hopeless(`More than ${this.count.toLocaleString('en')} rows: this page has no room for them.`);
    if (this.count === this.y.length) this.grow();
    const at = this.count * this.inputs;
    for (let i = 0; i < this.inputs; i++) {
      const value = Math.fround(numbers[i] - this.mean[i]) / this.deviation[i];
      if (!Number.isFinite(Math.fround(value))) return `column ${this.task.columns[i] || i + 1} is too large for float32`;
      this.x[at + i] = value;
    }
    this.y[this.count++] = label;
    return '';
  }

  grow() {
    const [x, y] = [this.x, this.y];
    this.y = new Uint8Array(2 * y.length);
    this.x = new Float32Array(2 * y.length * this.inputs);
    this.x.set(x);
    this.y.set(y);
  }

  get stored() {
    return { x: this.x.slice(0, this.count * this.inputs), y: this.y.slice(0, this.count) };
  }

  // How many rows have each label.
  get byLabel() {
    const found = Array(this.task.widths.at(-1)).fill(0);
    for (let i = 0; i < this.count; i++) found[this.y[i]] += 1;
    return found;
  }
}
