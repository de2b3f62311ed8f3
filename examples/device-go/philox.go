package main

import "math/bits"

// Domains of blocks.
const (
	domainRademacher = 2
	domainRows       = 4
	domainColumns    = 5
	domainBatch      = 6
)

// philox returns the four words of a block: Philox4x32-10.
func philox(key, block uint64, ordinal, domain uint32) [4]uint32 {
	k0, k1 := uint32(key), uint32(key>>32)
	c0, c1, c2, c3 := uint32(block), uint32(block>>32), ordinal, domain
	for i := 0; i < 10; i++ {
		high0, low0 := bits.Mul32(0xD2511F53, c0)
		high1, low1 := bits.Mul32(0xCD9E8D57, c2)
		c0, c1, c2, c3 = high1^c1^k0, low1, high0^c3^k1, low0
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return [4]uint32{c0, c1, c2, c3}
}
