package main

import "sort"

// batch returns the rows of a batch: size of 0 … count-1, ascending, by Floyd's draw.
func batch(key uint64, count, size int) []int {
	if count <= size {
		return allRows(count)
	}
	stream := words{key: key}
	taken := make(map[int]bool, size)
	for j := count - size; j < count; j++ {
		t := int(stream.below(uint32(j + 1)))
		if taken[t] {
			t = j
		}
		taken[t] = true
	}
	rows := make([]int, 0, size)
	for row := range taken {
		rows = append(rows, row)
	}
	sort.Ints(rows)
	return rows
}

func allRows(count int) []int {
	rows := make([]int, count)
	for i := range rows {
		rows[i] = i
	}
	return rows
}

// words are those of blocks 0, 1, 2, … of the domain of batches.
type words struct {
	key  uint64
	next uint64
}

func (w *words) word() uint32 {
	block := philox(w.key, w.next/4, 0, domainBatch)
	word := block[w.next%4]
	w.next++
	return word
}

// below is a number of 0 … m-1, each with the same probability.
func (w *words) below(m uint32) uint32 {
	for least := -m % m; ; {
		p := uint64(w.word()) * uint64(m)
		if uint32(p) >= least {
			return uint32(p >> 32)
		}
	}
}
