// The core of clients/core in WebAssembly: its memory and its structures, whose sizes are those of wasm32.
import { Hopeless } from './errors.js';

// A module whose only function has an instruction of SIMD.
const SIMD = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11);
export const MODULE = () => (WebAssembly.validate(SIMD) ? 'core.wasm' : 'core-scalar.wasm');
const PAGE = 65536;
const STATUS = ['', 'a setting', 'too little memory', 'a number that is NaN or infinite', 'a message', 'entropy', 'a function'];

export class Core {
  constructor(bytes) {
    this.do = new WebAssembly.Instance(new WebAssembly.Module(bytes), {}).exports;
    this.top = this.do.__heap_base.value;
  }

  // So many bytes, which stay where they are.
  take(size) {
    const at = Math.ceil(this.top / 64) * 64;
    const missing = at + size - this.do.memory.buffer.byteLength;
    if (missing > 0) {
      try {
        this.do.memory.grow(Math.ceil(missing / PAGE));
      } catch {
        throw new Hopeless(`This browser has no room for ${Math.ceil(size / 2 ** 20)} MB more.`);
      }
    }
    this.top = at + size;
    return at;
  }

  put(data) {
    const at = this.take(data.byteLength);
    new Uint8Array(this.do.memory.buffer, at, data.byteLength).set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    return at;
  }

  words = (...values) => this.put(Uint32Array.from(values));
  u8 = (at, count) => new Uint8Array(this.do.memory.buffer, at, count);
  u32 = (at, count) => new Uint32Array(this.do.memory.buffer, at, count);
  u64 = (at, count) => new BigUint64Array(this.do.memory.buffer, at, count);
  f32 = (at, count) => new Float32Array(this.do.memory.buffer, at, count);
  f64 = (at, count) => new Float64Array(this.do.memory.buffer, at, count);

  // Terms, 16 bytes each: a key and a coefficient.
  setTerms(at, keys, coefficients) {
    const [longs, floats] = [this.u64(at, 2 * keys.length), this.f32(at, 4 * keys.length)];
    keys.forEach((key, i) => {
      longs[2 * i] = key;
      floats[4 * i + 2] = coefficients[i];
    });
    return at;
  }

  // A key for a purpose and numbers. root: where it lies.
  key(root, purpose, ...numbers) {
    this.names ??= this.take(128);
    this.u8(this.names, 17).set(new TextEncoder().encode(`${purpose}\0`));
    new BigInt64Array(this.do.memory.buffer, this.names + 32, 8).set(numbers.map(BigInt));
    this.expect(this.do.fz_key(root, this.names, this.names + 32, numbers.length, this.names + 96));
    return this.u64(this.names + 96, 1)[0];
  }

  expect(status) {
    if (status) throw new RangeError(`the function failed: ${STATUS[status] ?? status}`);
  }
}
