package main

import "crypto/sha256"

// answer is one that was given: the number of its order, SHA-256 of the
// order's body, and the frame.
type answer struct {
	order orderNumber
	body  [32]byte
	frame []byte
}

// keepAnswer replaces the answer on disk. Orders that a gateway sends again
// are those of the open round, so one is enough.
func (f folder) keepAnswer(a *answer) error {
	b := putArray(nil, 5)
	b = putNat(b, a.order.round)
	b = putNat(b, uint64(a.order.exchange))
	b = putNat(b, uint64(a.order.attempt))
	b = putBytes(b, a.body[:])
	return f.write("answer", putBytes(b, a.frame))
}

// lastAnswer returns nil if there is none.
func (f folder) lastAnswer() (*answer, error) {
	data, err := f.read("answer")
	if data == nil || err != nil {
		return nil, err
	}
	a := &answer{}
	u := &unpacker{b: data}
	u.fields(5, func() {
		a.order = u.orderNumber()
		copy(a.body[:], u.fixed(32))
		a.frame = u.bytes()
	})
	return a, u.end()
}

// keepModel writes a model and the round that it is ready for.
func (f folder) keepModel(s *model) error {
	if s.x == nil {
		return nil
	}
	state := s.pack()
	sum := sha256.Sum256(state)
	b := putNat(putArray(nil, 3), s.ready)
	return f.write("model", putBytes(putBytes(b, sum[:]), state))
}

// lastModel is without parameters if there is none that fits.
func (f folder) lastModel(p *plan) *model {
	s := newModel(p)
	data, err := f.read("model")
	if data == nil || err != nil {
		return s
	}
	var ready uint64
	var sum, state []byte
	u := &unpacker{b: data}
	u.fields(3, func() { ready, sum, state = u.nat(), u.fixed(32), u.bytes() })
	if u.end() != nil || sha256.Sum256(state) != *(*[32]byte)(sum) {
		return s
	}
	_ = s.unpack(state, ready) // of another length: no model
	return s
}
