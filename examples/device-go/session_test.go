package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fake is a transport that keeps what is sent.
type fake struct{ in, out [][]byte }

var errNothing = errors.New("nothing more")

func (f *fake) send(frame []byte) error {
	f.out = append(f.out, frame)
	return nil
}

func (f *fake) receive(context.Context) ([]byte, error) {
	if len(f.in) == 0 {
		return nil, errNothing
	}
	next := f.in[0]
	f.in = f.in[1:]
	return next, nil
}

func (f *fake) waiting() bool                               { return len(f.in) > 0 }
func (f *fake) alive(context.Context, time.Duration) func() { return func() {} }
func (f *fake) close()                                      {}

// tags are those of the frames that were sent since the last call.
func (f *fake) tags() (list []uint64) {
	for _, frame := range f.out {
		tag, _ := tagOf(frame)
		list = append(list, tag)
	}
	f.out = nil
	return list
}

// exampleDevice has the plan of the page's examples and rows of its own.
func exampleDevice(t *testing.T) *device {
	t.Helper()
	path := t.TempDir()
	rows := filepath.Join(path, "rows.csv")
	text := "0.5,1,2,yes\n1,0,-1,no\n0,1,1,1\n2,1,0,0\n"
	if err := os.WriteFile(rows, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &device{folder: folder(path), who: exampleIdentity(), data: rows, packed: examples(t)["a plan"]}
	if err := d.usePlan(); err != nil {
		t.Fatal(err)
	}
	return d
}

func play(t *testing.T, d *device, line *fake, frames ...[]byte) {
	t.Helper()
	line.in = append(line.in, frames...)
	for len(line.in) > 0 || d.moved {
		if err := d.next(context.Background(), line); err != nil && err != errNothing {
			t.Fatal(err)
		}
	}
}

// The frames of a gateway with the same key.

func orderOf(d *device, number orderNumber, list ...update) []byte {
	work := putNat(putNat(putNat(putArray(nil, 4), 1), number.round), 0)
	work = putArray(work, len(list))
	for _, one := range list {
		work = one.put(work)
	}
	body := putBytes(putBytes(putArray(nil, 2), work), nil)
	frame := putBytes(number.put(frame(tagOrder, 5)), body)
	return putBytes(frame, d.who.sign("order", number.number(), body))
}

func (one update) put(b []byte) []byte {
	return putBytes(putNat(putNat(putArray(b, 3), 1), one.round), packFloats(one.scalars))
}

func updatesOf(d *device, fresh bool, ready uint64, list ...update) []byte {
	flag := byte(0xc2)
	if fresh {
		flag = 0xc3
	}
	body := putArray(append(putArray(nil, 4), flag), len(list))
	for _, one := range list {
		body = putBytes(body, one.put(nil))
	}
	body = putNat(putBytes(body, nil), ready)
	return putBytes(putBytes(frame(tagUpdates, 2), body), d.who.sign("updates", body))
}

func TestOrdersAndRefusals(t *testing.T) {
	d, line := exampleDevice(t), &fake{}
	first := orderOf(d, orderNumber{})
	play(t, d, line, first)
	if got := line.tags(); len(got) != 1 || got[0] != tagRefusal {
		t.Errorf("without a model: frames %v", got)
	}
	play(t, d, line, updatesOf(d, true, 0))
	if got := line.tags(); len(got) != 1 || got[0] != tagReady {
		t.Errorf("after Updates: frames %v", got)
	}

	play(t, d, line, first)
	answer := line.out[0]
	play(t, d, line, first)
	if !bytes.Equal(answer, line.out[1]) {
		t.Error("the same order has another answer")
	}
	line.out = nil
	again, err := d.folder.lastAnswer()
	if err != nil || !bytes.Equal(again.frame, answer) {
		t.Errorf("the answer is not on disk: %v", err)
	}
	d.answer = again
	play(t, d, line, orderOf(d, orderNumber{}, update{0, []float32{1, 2}}))
	if !bytes.Equal(line.out[0], refusalFrame(orderNumber{}, 1, "another order under the same number")) {
		t.Errorf("another order: %x", line.out[0])
	}
	line.out = nil
	forged := append([]byte(nil), orderOf(d, orderNumber{round: 1})...)
	forged[len(forged)-1] ^= 1
	play(t, d, line, forged)
	if !bytes.Equal(line.out[0], refusalFrame(orderNumber{round: 1}, 2, "the signature of the order is wrong")) {
		t.Errorf("a forged order: %x", line.out[0])
	}
}

func TestReadyIsSaidAfterTheLastOfSeveralFrames(t *testing.T) {
	d, line := exampleDevice(t), &fake{}
	g := []float32{0.5, -0.25}
	frames := [][]byte{
		updatesOf(d, true, 2, update{0, g}, update{1, g}),
		updatesOf(d, false, 4, update{2, g}),
		updatesOf(d, false, 2, update{1, g}),
	}
	play(t, d, line, frames...)
	if d.model.ready != 4 || len(line.out) != 1 || !bytes.Equal(line.out[0], readyFrame(d.model)) {
		t.Errorf("ready for %d, frames %v", d.model.ready, line.tags())
	}
	d.save()
	if other := d.folder.lastModel(d.plan); other.ready != 4 || !bytes.Equal(other.digest(), d.model.digest()) {
		t.Error("another model is on disk")
	}
}

func TestACheckpointThatBrokeOff(t *testing.T) {
	d, line := exampleDevice(t), &fake{}
	other := newModel(d.plan)
	if err := other.begin(); err != nil {
		t.Fatal(err)
	}
	state := other.pack()
	sum := sha256.Sum256(state)
	body := putBytes(putNat(putArray(nil, 4), 7), sum[:])
	body = putBytes(putNat(body, uint64(len(state))), other.digest())
	offer := putBytes(putBytes(frame(tagCheckpoint, 2), body), d.who.sign("checkpoint", body))
	piece := func(from, to int) []byte {
		return putBytes(putNat(frame(tagPiece, 2), uint64(from)), state[from:to])
	}
	play(t, d, line, offer, piece(0, 5))
	line.out, d.partial = nil, nil // as after a crash
	play(t, d, line, offer)
	if !bytes.Equal(line.out[0], fetchFrame(sum[:], 5)) {
		t.Errorf("it goes on elsewhere: %x", line.out[0])
	}
	play(t, d, line, piece(5, len(state)))
	if d.model.ready != 7 || !bytes.Equal(d.model.digest(), other.digest()) {
		t.Error("another model")
	}
}

func TestASessionThatIsNotHeldAnyMoreEnds(t *testing.T) {
	d := &device{beat: 20 * time.Second}
	wait := putText(putNat(frame(tagWait, 2), 0), "")
	var err error
	for n := 0; n < 10 && err == nil; n++ {
		err = d.ending(wait, tagWait)
	}
	if err == nil {
		t.Error("it asks for ever")
	}
}
