package main

// Distributions of a plan.
const (
	rademacher = 2
	rankOne    = 4
)

// direction writes z of one tensor, numbers +1 and -1, row by row.
func direction(z []float32, distribution int, key uint64, ordinal uint32, shape []int) {
	if distribution == rankOne && len(shape) >= 2 {
		directionOfRankOne(z, key, ordinal, shape[0])
		return
	}
	directionOfSigns(z, key, ordinal)
}

// directionOfSigns is the Rademacher stream: bits are dealt out over groups
// of 32 blocks, 4096 coordinates each.
func directionOfSigns(z []float32, key uint64, ordinal uint32) {
	var group [32][4]uint32
	for start := 0; start < len(z); start += 4096 {
		for lane := range group {
			group[lane] = philox(key, uint64(32*(start/4096)+lane), ordinal, domainRademacher)
		}
		for i := start; i < len(z) && i < start+4096; i++ {
			place := (i / 256) % 16
			word := group[(i/8)%32][place/4]
			z[i] = sign(word >> (8*(place%4) + i%8))
		}
	}
}

// directionOfRankOne is a bᵀ, a of signs for the rows and b of signs for the columns.
func directionOfRankOne(z []float32, key uint64, ordinal uint32, rows int) {
	if len(z) == 0 {
		return
	}
	a := factor(rows, key, ordinal, domainRows)
	b := factor(len(z)/rows, uint64(uint32(key)), ordinal, domainColumns)
	for r, up := range a {
		row := z[r*len(b) : (r+1)*len(b)]
		for c, across := range b {
			row[c] = up * across
		}
	}
}

func factor(count int, key uint64, ordinal, domain uint32) []float32 {
	signs := make([]float32, count)
	var words [4]uint32
	for i := range signs {
		if i%128 == 0 {
			words = philox(key, uint64(i/128), ordinal, domain)
		}
		signs[i] = sign(words[(i/32)%4] >> (i % 32))
	}
	return signs
}

// sign is +1 for a last bit of 0 and -1 for 1.
func sign(bit uint32) float32 {
	return 1 - 2*float32(bit&1)
}
