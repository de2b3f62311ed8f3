// BLAKE2b without a key (RFC 7693), for the 8-byte digest of a model: some hundred bytes a round.
const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const SIGMA = [
  '0123456789abcdef', 'ea489fd61c02b753', 'b8c052fdae367194', '7931dcbe265a40f8', '905724afe1bc683d',
  '2c6a0b834d75fe19', 'c51fed4a0763928b', 'db7ec13950f4862a', '6fe9b308c2d714a5', 'a2847615fb9e3cd0',
].map((row) => Array.from(row, (digit) => parseInt(digit, 16)));
const MIXED = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
  [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];
const BLOCK = 128;

const word = (value) => BigInt.asUintN(64, value);
const turned = (value, by) => word((value >> by) | (value << (64n - by)));

function compress(h, block, count, last) {
  const view = new DataView(block.buffer, block.byteOffset, BLOCK);
  const m = Array.from({ length: 16 }, (_, i) => view.getBigUint64(8 * i, true));
  const v = [...h, ...IV];
  v[12] ^= BigInt(count);
  if (last) v[14] = word(~v[14]);
  for (let round = 0; round < 12; round++) {
    MIXED.forEach(([a, b, c, d], i) => {
      const [x, y] = [m[SIGMA[round % 10][2 * i]], m[SIGMA[round % 10][2 * i + 1]]];
      v[a] = word(v[a] + v[b] + x);
      v[d] = turned(v[d] ^ v[a], 32n);
      v[c] = word(v[c] + v[d]);
      v[b] = turned(v[b] ^ v[c], 24n);
      v[a] = word(v[a] + v[b] + y);
      v[d] = turned(v[d] ^ v[a], 16n);
      v[c] = word(v[c] + v[d]);
      v[b] = turned(v[b] ^ v[c], 63n);
    });
  }
  h.forEach((value, i) => (h[i] = value ^ v[i] ^ v[i + 8]));
}

// size: bytes of the digest; person: a text of at most 16 characters.
export function blake2b(data, size, person) {
  const parameters = new Uint8Array(64);
  parameters.set([size, 0, 1, 1]);
  parameters.set(new TextEncoder().encode(person), 48);
  const words = new DataView(parameters.buffer);
  const h = IV.map((value, i) => value ^ words.getBigUint64(8 * i, true));
  const blocks = Math.max(1, Math.ceil(data.length / BLOCK));
  const padded = new Uint8Array(blocks * BLOCK);
  padded.set(data);
  for (let i = 0; i < blocks; i++) {
    const last = i === blocks - 1;
    compress(h, padded.subarray(i * BLOCK), last ? data.length : (i + 1) * BLOCK, last);
  }
  const out = new DataView(new ArrayBuffer(64));
  h.forEach((value, i) => out.setBigUint64(8 * i, value, true));
  return new Uint8Array(out.buffer).slice(0, size);
}
