package main

import (
	"encoding/binary"
	"errors"
	"math"
)

// rates are the pairs of a message: a round and the rate from it on.
type rates struct {
	first float64 // of the plan
	pairs []byte
}

func readRates(first float64, pairs []byte) (rates, error) {
	if len(pairs)%16 != 0 {
		return rates{}, errors.New("rates of a wrong length")
	}
	return rates{first, pairs}, nil
}

// of is the rate of a round: that of the last pair whose round is not after it.
func (r rates) of(round uint64) float64 {
	rate := r.first
	for pair := r.pairs; len(pair) >= 16; pair = pair[16:] {
		if binary.LittleEndian.Uint64(pair) > round {
			break
		}
		rate = math.Float64frombits(binary.LittleEndian.Uint64(pair[8:]))
	}
	return rate
}
