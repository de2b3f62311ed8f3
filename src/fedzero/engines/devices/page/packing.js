// msgpack, as far as frames need it: integers up to 2⁵³, texts, bytes, arrays, booleans, nil; float64 is read only.
import { Broken } from './errors.js';

const MOST_NESTED = 8;

export const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');

export const same = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

export function joined(...parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((at, part) => (all.set(part, at), at + part.length), 0);
  return all;
}

// An integer of so many bytes, little-endian.
export function little(value, size) {
  const bytes = new Uint8Array(size);
  let rest = BigInt(value);
  for (let i = 0; i < size; i++, rest >>= 8n) bytes[i] = Number(rest & 255n);
  return bytes;
}

export const utf8 = (text) => new TextEncoder().encode(text);

function big(value, size) {
  return little(value, size).reverse();
}

// The shortest form of a length or a number: forms are [tag, bytes, first number that does not fit].
function head(value, forms) {
  const [tag, size] = forms.find(([, , limit]) => value < limit);
  return joined(Uint8Array.of(tag), big(value, size));
}

const COUNTS = [[0xcc, 1, 0x100], [0xcd, 2, 0x10000], [0xce, 4, 2 ** 32], [0xcf, 8, Infinity]];
const TEXTS = [[0xd9, 1, 0x100], [0xda, 2, 0x10000], [0xdb, 4, 2 ** 32]];
const BYTES = [[0xc4, 1, 0x100], [0xc5, 2, 0x10000], [0xc6, 4, 2 ** 32]];
const ARRAYS = [[0xdc, 2, 0x10000], [0xdd, 4, 2 ** 32]];

export function pack(value) {
  if (value === null) return Uint8Array.of(0xc0);
  if (typeof value === 'boolean') return Uint8Array.of(value ? 0xc3 : 0xc2);
  if (Number.isSafeInteger(value) && value >= 0) return value < 128 ? Uint8Array.of(value) : head(value, COUNTS);
  if (typeof value === 'string') {
    const bytes = utf8(value);
    return joined(bytes.length < 32 ? Uint8Array.of(0xa0 | bytes.length) : head(bytes.length, TEXTS), bytes);
  }
  if (value instanceof Uint8Array) return joined(head(value.length, BYTES), value);
  if (!Array.isArray(value)) throw new TypeError(`no message has ${value}`);
  const first = value.length < 16 ? Uint8Array.of(0x90 | value.length) : head(value.length, ARRAYS);
  return joined(first, ...value.map(pack));
}

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.at = 0;
  }

  take(count) {
    if (count > this.bytes.length - this.at) throw new Broken('a message ends too early');
    this.at += count;
    return this.at - count;
  }

  uint(size) {
    const at = this.take(size);
    if (size < 8) return size === 1 ? this.view.getUint8(at) : size === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
    const value = Number(this.view.getBigUint64(at));
    if (!Number.isSafeInteger(value)) throw new Broken('a number above 2⁵³');
    return value;
  }

  raw(count) {
    const at = this.take(count);
    return this.bytes.slice(at, at + count);
  }

  text(count) {
    try {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(this.raw(count));
    } catch {
      throw new Broken('a text that is not UTF-8');
    }
  }

  array(count, depth) {
    if (count > this.bytes.length - this.at || depth > MOST_NESTED) throw new Broken('an array that is too large');
    return Array.from({ length: count }, () => this.value(depth + 1));
  }

  value(depth) {
    const tag = this.uint(1);
    if (tag < 0x80) return tag;
    if (tag >= 0x90 && tag < 0xa0) return this.array(tag & 15, depth);
    if (tag >= 0xa0 && tag < 0xc0) return this.text(tag & 31);
    if (tag === 0xc0) return null;
    if (tag === 0xc2 || tag === 0xc3) return tag === 0xc3;
    if (tag >= 0xc4 && tag <= 0xc6) return this.raw(this.uint(1 << (tag - 0xc4)));
    if (tag === 0xcb) return this.view.getFloat64(this.take(8));
    if (tag >= 0xcc && tag <= 0xcf) return this.uint(1 << (tag - 0xcc));
    if (tag >= 0xd9 && tag <= 0xdb) return this.text(this.uint(1 << (tag - 0xd9)));
    if (tag === 0xdc || tag === 0xdd) return this.array(this.uint(2 << (tag - 0xdc)), depth);
    throw new Broken(`a byte ${tag} that begins no value of a message`);
  }
}

export function unpack(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.at !== bytes.length) throw new Broken('bytes behind a message');
  return value;
}

// The first fields of an array, each of its kind: 'nat', 'float', 'text', 'bytes', 'array', 'bool', 'nat?' or bytes with
// their number. Others behind them are ignored.
export function fields(value, what, ...kinds) {
  if (!Array.isArray(value) || value.length < kinds.length) throw new Broken(`${what} lacks a field`);
  kinds.forEach((kind, i) => {
    if (!is(value[i], kind)) throw new Broken(`${what} has a field ${i} that is not ${kind}`);
  });
  return value;
}

function is(value, kind) {
  if (typeof kind === 'number') return value instanceof Uint8Array && value.length === kind;
  if (kind === 'nat') return Number.isSafeInteger(value) && value >= 0;
  if (kind === 'float') return typeof value === 'number' && Number.isFinite(value);
  if (kind === 'bytes') return value instanceof Uint8Array;
  if (kind === 'array') return Array.isArray(value);
  return typeof value === { text: 'string', bool: 'boolean' }[kind];
}
