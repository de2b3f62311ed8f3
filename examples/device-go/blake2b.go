package main

import (
	"encoding/binary"
	"math/bits"
)

// BLAKE2b (RFC 7693), sequential, with the personalisation field, which Go's
// standard library has not.

var blakeStart = [8]uint64{
	0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
	0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
}

var blakeOrder = [10][16]byte{
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	{14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
	{11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
	{7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
	{9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
	{2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
	{12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
	{13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
	{6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
	{10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
}

// blake2b returns size bytes (1 to 64) of the hash of message under key (at
// most 64 bytes) and person (at most 16 bytes, filled up with zero bytes).
func blake2b(size int, key []byte, person string, message []byte) []byte {
	h := blakeStart
	h[0] ^= 0x01010000 ^ uint64(len(key))<<8 ^ uint64(size)
	var field [16]byte
	copy(field[:], person)
	h[6] ^= binary.LittleEndian.Uint64(field[:8])
	h[7] ^= binary.LittleEndian.Uint64(field[8:])

	data := message
	if len(key) > 0 {
		data = make([]byte, 128, 128+len(message))
		copy(data, key)
		data = append(data, message...)
	}
	done := uint64(0)
	for len(data) > 128 {
		done += 128
		blakeBlock(&h, data[:128], done, false)
		data = data[128:]
	}
	var last [128]byte
	copy(last[:], data)
	blakeBlock(&h, last[:], done+uint64(len(data)), true)

	out := make([]byte, 0, 64)
	for _, word := range h {
		out = binary.LittleEndian.AppendUint64(out, word)
	}
	return out[:size]
}

func blakeBlock(h *[8]uint64, block []byte, done uint64, last bool) {
	var m, v [16]uint64
	for i := range m {
		m[i] = binary.LittleEndian.Uint64(block[8*i:])
	}
	copy(v[:8], h[:])
	copy(v[8:], blakeStart[:])
	v[12] ^= done
	if last {
		v[14] = ^v[14]
	}
	mix := func(a, b, c, d int, x, y uint64) {
		v[a] += v[b] + x
		v[d] = bits.RotateLeft64(v[d]^v[a], -32)
		v[c] += v[d]
		v[b] = bits.RotateLeft64(v[b]^v[c], -24)
		v[a] += v[b] + y
		v[d] = bits.RotateLeft64(v[d]^v[a], -16)
		v[c] += v[d]
		v[b] = bits.RotateLeft64(v[b]^v[c], -63)
	}
	for round := 0; round < 12; round++ {
		s := &blakeOrder[round%10]
		mix(0, 4, 8, 12, m[s[0]], m[s[1]])
		mix(1, 5, 9, 13, m[s[2]], m[s[3]])
		mix(2, 6, 10, 14, m[s[4]], m[s[5]])
		mix(3, 7, 11, 15, m[s[6]], m[s[7]])
		mix(0, 5, 10, 15, m[s[8]], m[s[9]])
		mix(1, 6, 11, 12, m[s[10]], m[s[11]])
		mix(2, 7, 8, 13, m[s[12]], m[s[13]])
		mix(3, 4, 9, 14, m[s[14]], m[s[15]])
	}
	for i := range h {
		h[i] ^= v[i] ^ v[i+8]
	}
}
