package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"
)

// next takes one frame of the gateway after Welcome. Ready is said when no
// other frame waits: with the first of several frames of updates the gateway
// would send the others again.
func (d *device) next(ctx context.Context, line transport) error {
	if d.moved && !line.waiting() {
		d.moved = false
		if err := line.send(readyFrame(d.model)); err != nil {
			return err
		}
	}
	data, err := line.receive(ctx)
	if err != nil {
		return err
	}
	tag, err := tagOf(data)
	if err != nil {
		return err
	}
	switch tag {
	case tagOrder:
		return d.order(ctx, line, data)
	case tagUpdates:
		return d.updates(data)
	case tagCheckpoint:
		return d.checkpoint(line, data)
	case tagPiece:
		return d.piece(line, data)
	}
	return d.ending(data, tag)
}

// ending takes Wait, Error and Finish. It returns nil if the session goes on.
func (d *device) ending(data []byte, tag uint64) error {
	switch tag {
	case tagWait:
		var seconds uint64
		var text string
		err := open(data, tag, 2, func(u *unpacker) { seconds, text = u.nat(), u.text() })
		if err != nil {
			return err
		}
		if seconds == 0 {
			return d.nothing()
		}
		if seconds > 3600 {
			seconds = 3600
		}
		return waiting{time.Duration(seconds) * time.Second, text}
	case tagError:
		var no refused
		err := open(data, tag, 2, func(u *unpacker) { no = refused{u.nat(), u.text()} })
		if err != nil {
			return err
		}
		return d.failed(no)
	case tagFinish:
		return d.finish(data)
	}
	return fmt.Errorf("a frame of the unknown tag %d", tag)
}

// nothing takes a Wait of 0 seconds, which says that there is no frame. A
// gateway that does not hold requests has ended the session, and the frame
// that said so was lost.
func (d *device) nothing() error {
	if time.Since(d.empty) > d.beat/4 {
		d.quick = 0
	}
	d.empty = time.Now()
	if d.quick++; d.quick > 3 {
		return errors.New("the gateway does not hold requests of this session")
	}
	return nil
}

// failed says which errors end a session.
func (d *device) failed(no refused) error {
	switch no.code {
	case 9, 10, 12:
		log.Print(no)
	default:
		return no
	}
	if no.code != 9 || d.partial == nil {
		return nil
	}
	// The checkpoint is not kept any more: there is another one.
	_ = d.folder.remove(d.partial.file())
	d.partial = nil
	if d.model.x == nil {
		return errors.New("the checkpoint is gone")
	}
	d.moved = true
	return nil
}

func (d *device) finish(data []byte) error {
	var rounds uint64
	var reason string
	var signature []byte
	err := open(data, tagFinish, 3, func(u *unpacker) {
		rounds, reason, signature = u.nat(), u.text(), u.fixed(64)
	})
	if err != nil {
		return err
	}
	payload := orderNumber{round: rounds}.number()[:8]
	if !d.who.enrolled() || !d.who.verify(signature, "finish", payload, []byte(reason)) {
		return errors.New("a wrong signature under Finish")
	}
	log.Printf("the run is over after %d rounds %s", rounds, reason)
	return errFinished
}
