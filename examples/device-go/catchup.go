package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"os"
)

// updates takes a frame of updates.
func (d *device) updates(data []byte) error {
	var body, signature []byte
	err := open(data, tagUpdates, 2, func(u *unpacker) { body, signature = u.bytes(), u.fixed(64) })
	if err != nil {
		return err
	}
	if !d.who.verify(signature, "updates", body) {
		return errors.New("a wrong signature under Updates")
	}
	var fresh bool
	var list []update
	var pairs []byte
	var ready uint64
	u := &unpacker{b: body}
	u.fields(4, func() {
		fresh = u.boolean()
		for n := u.array(); n > 0; n-- {
			inner := &unpacker{b: u.bytes()}
			list = append(list, inner.update())
			if inner.end() != nil {
				u.fail()
			}
		}
		pairs, ready = u.bytes(), u.nat()
	})
	if err := u.end(); err != nil {
		return err
	}
	d.moved = true
	if !fresh && d.model.x != nil && ready <= d.model.ready {
		return nil // it came before
	}
	if fresh {
		if err := d.model.begin(); err != nil {
			return err
		}
	}
	rate, err := readRates(d.plan.method.rate, pairs)
	if err != nil {
		return err
	}
	if err := d.model.follow(list, rate, ready); err != nil {
		return err
	}
	log.Printf("caught up to round %d by %d updates", ready, len(list))
	d.save()
	return nil
}

// transfer is a checkpoint that comes in pieces.
type transfer struct {
	round, size uint64
	sum, digest []byte
	data        []byte
}

func (t *transfer) file() string { return fmt.Sprintf("part-%x", t.sum[:8]) }

// checkpoint begins a transfer, or goes on with one.
func (d *device) checkpoint(line transport, data []byte) error {
	var body, signature []byte
	err := open(data, tagCheckpoint, 2, func(u *unpacker) { body, signature = u.bytes(), u.fixed(64) })
	if err != nil {
		return err
	}
	if !d.who.verify(signature, "checkpoint", body) {
		return errors.New("a wrong signature under Checkpoint")
	}
	t := &transfer{}
	u := &unpacker{b: body}
	u.fields(4, func() { t.round, t.sum, t.size, t.digest = u.nat(), u.fixed(32), u.nat(), u.fixed(8) })
	if err := u.end(); err != nil {
		return err
	}
	if t.size != d.model.size() {
		return unusable{fmt.Errorf("a checkpoint of %d bytes, not %d", t.size, d.model.size())}
	}
	if old := d.partial; old != nil && old.file() != t.file() {
		_ = d.folder.remove(old.file())
	}
	if t.data, err = d.folder.read(t.file()); err != nil {
		return err
	}
	if uint64(len(t.data)) > t.size {
		t.data = nil
		_ = d.folder.remove(t.file())
	}
	d.partial = t
	return d.more(line)
}

// piece takes a part of a checkpoint.
func (d *device) piece(line transport, data []byte) error {
	var offset uint64
	var part []byte
	err := open(data, tagPiece, 2, func(u *unpacker) { offset, part = u.nat(), u.bytes() })
	if err != nil {
		return err
	}
	t := d.partial
	if t == nil {
		return nil // of a transfer that is over
	}
	if offset != uint64(len(t.data)) || len(part) == 0 || uint64(len(part)) > t.size-offset {
		return errors.New("a piece that was not asked for")
	}
	if err := d.folder.add(t.file(), part); err != nil {
		return err
	}
	t.data = append(t.data, part...)
	return d.more(line)
}

// more fetches the next piece, or takes the checkpoint when it is complete.
func (d *device) more(line transport) error {
	t := d.partial
	if uint64(len(t.data)) < t.size {
		return line.send(fetchFrame(t.sum, uint64(len(t.data))))
	}
	d.partial = nil
	if err := d.folder.remove(t.file()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if sha256.Sum256(t.data) != *(*[32]byte)(t.sum) {
		return errors.New("a checkpoint with another SHA-256")
	}
	fresh := newModel(d.plan)
	if err := fresh.unpack(t.data, t.round); err != nil {
		return err
	}
	if string(fresh.digest()) != string(t.digest) {
		return errors.New("a checkpoint with another digest")
	}
	d.model = fresh
	log.Printf("caught up to round %d by a checkpoint of %d bytes", t.round, t.size)
	d.save()
	d.moved = true
	return nil
}
