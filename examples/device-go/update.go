package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// update is [1, round, scalars].
type update struct {
	round   uint64
	scalars []float32
}

func (u *unpacker) update() (one update) {
	var kind uint64
	var packed []byte
	u.fields(3, func() {
		kind, one.round, packed = u.nat(), u.nat(), u.bytes()
	})
	if kind != 1 || len(packed)%4 != 0 {
		u.fail()
		return one
	}
	one.scalars = unpackFloats(packed)
	return one
}

func unpackFloats(packed []byte) []float32 {
	list := make([]float32, len(packed)/4)
	for i := range list {
		list[i] = math.Float32frombits(binary.LittleEndian.Uint32(packed[4*i:]))
	}
	return list
}

func packFloats(list []float32) []byte {
	packed := make([]byte, 0, 4*len(list))
	for _, number := range list {
		packed = binary.LittleEndian.AppendUint32(packed, math.Float32bits(number))
	}
	return packed
}

// follow folds the updates of rounds that are not in the model yet; it is
// ready for a round afterwards.
func (s *model) follow(updates []update, rate rates, ready uint64) error {
	if s.x == nil {
		return errors.New("there is no model")
	}
	if ready < s.ready {
		return fmt.Errorf("the model is ready for round %d, not for %d", s.ready, ready)
	}
	for _, one := range updates {
		if one.round < s.ready {
			continue
		}
		if one.round >= ready {
			return errors.New("an update of a later round")
		}
		if err := s.apply(one, rate.of(one.round)); err != nil {
			return err
		}
		s.ready = one.round + 1
	}
	s.ready = ready
	return nil
}

// apply takes the K steps of an update.
func (s *model) apply(one update, rate float64) error {
	P, K := s.plan.method.directions, s.plan.method.steps
	if len(one.scalars) != K*P {
		return fmt.Errorf("an update of %d numbers, not %d", len(one.scalars), K*P)
	}
	for k := 0; k < K; k++ {
		s.step(s.x, s.m, one.round, k, one.scalars[k*P:(k+1)*P], rate)
	}
	return nil
}

// step moves x and m by the numbers g of one step.
func (s *model) step(x, m tensors, round uint64, k int, g []float32, rate float64) {
	if s.plan.method.rule == ruleSGD {
		s.shape.fold(x, s.terms(round, k, g, -rate))
		return
	}
	beta, rest := s.plan.method.hypers[0], s.plan.method.hypers[1]
	s.shape.momentum(x, m, s.terms(round, k, g, 1), float32(rate), float32(beta), float32(rest))
}

// terms are those of g along the directions of a step: (scale/P)·g, in
// float64, then float32.
func (s *model) terms(round uint64, k int, g []float32, scale float64) []term {
	list := make([]term, len(g))
	each := scale / float64(len(g))
	for p := range g {
		list[p] = term{directionKey(s.plan.root, round, k, p), float32(each * float64(g[p]))}
	}
	return list
}
