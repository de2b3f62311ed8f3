package main

import (
	"encoding/binary"
	"errors"
	"math"
)

// model is the state of a replica.
type model struct {
	plan  *plan
	shape outline
	ready uint64  // the round that it is ready for
	x     tensors // nil: there is no model
	m     tensors // memory of MOMENTUM, else nil
}

func newModel(p *plan) *model {
	return &model{plan: p, shape: p.outline()}
}

// begin is the first model: scale times the Rademacher direction of key(init).
func (s *model) begin() error {
	key := deriveKey(s.plan.root, "init")
	x := s.shape.zeros()
	for t, one := range s.plan.tensors {
		scale := float32(one.scale)
		if scale == 0 {
			return errors.New("the first model follows from no key")
		}
		directionOfSigns(x[t], key, uint32(t))
		for i := range x[t] {
			x[t][i] *= scale
		}
	}
	s.take(x, nil, 0)
	return nil
}

// take replaces the state. Without m the memory is +0.
func (s *model) take(x, m tensors, ready uint64) {
	if m == nil && s.plan.method.rule == ruleMomentum {
		m = s.shape.zeros()
	}
	s.x, s.m, s.ready = x, m, ready
}

func (s *model) digest() []byte { return digest(s.x, s.plan.labels()) }

// size of a state in bytes.
func (s *model) size() uint64 {
	n := 0
	for _, shape := range s.shape.shapes {
		n += 4 * size(shape)
	}
	if s.plan.method.rule == ruleMomentum {
		n *= 2
	}
	return uint64(n)
}

// pack writes a state as a checkpoint has it: x, then M.
func (s *model) pack() []byte {
	data := make([]byte, 0, s.size())
	for _, list := range []tensors{s.x, s.m} {
		for _, x := range list {
			for _, number := range x {
				data = binary.LittleEndian.AppendUint32(data, math.Float32bits(number))
			}
		}
	}
	return data
}

// unpack takes a state that pack has written.
func (s *model) unpack(data []byte, ready uint64) error {
	if uint64(len(data)) != s.size() {
		return errors.New("a checkpoint of a wrong length")
	}
	read := func() tensors {
		list := s.shape.zeros()
		for _, x := range list {
			for i := range x {
				x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data))
				data = data[4:]
			}
		}
		return list
	}
	x := read()
	var m tensors
	if len(data) > 0 {
		m = read()
	}
	s.take(x, m, ready)
	return nil
}
