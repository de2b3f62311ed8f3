package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"time"
)

// session plays one session. began says whether the gateway has welcomed the
// device.
func (d *device) session(ctx context.Context) (began bool, err error) {
	line, err := d.connect(ctx)
	if err != nil {
		return false, err
	}
	defer line.close()
	if !d.who.enrolled() {
		if err := d.enrol(ctx, line); err != nil {
			return false, err
		}
	}
	if err := d.greet(ctx, line); err != nil {
		return false, err
	}
	for d.moved = false; ; {
		err := d.next(ctx, line)
		if ctx.Err() != nil {
			_ = line.send(leaveFrame())
		}
		if err != nil {
			return true, err
		}
	}
}

func (d *device) connect(ctx context.Context) (transport, error) {
	if d.socket {
		return dialSocket(ctx, d.who.at)
	}
	return newPolling(d.who.at), nil
}

// expect receives frames until one of a tag, or the end of the session.
func (d *device) expect(ctx context.Context, line transport, tag uint64) ([]byte, error) {
	for {
		data, err := line.receive(ctx)
		if err != nil {
			return nil, err
		}
		got, err := tagOf(data)
		switch {
		case err != nil:
			return nil, err
		case got == tag:
			return data, nil
		case got == tagError || got == tagWait || got == tagFinish:
			if err := d.ending(data, got); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("frame %d instead of %d", got, tag)
		}
	}
}

// enrol gets a place. It is on disk before Hello.
func (d *device) enrol(ctx context.Context, line transport) error {
	t, key := d.ticket, d.who.public()
	d.who.place = 0
	signature := d.who.sign("enrol", t.name, t.fingerprint, []byte{ed25519Algorithm}, key)
	if err := line.send(enrolFrame(t, key, signature)); err != nil {
		return err
	}
	data, err := d.expect(ctx, line, tagEnrolled)
	if err != nil {
		return err
	}
	var run, ed, p256 []byte
	var place uint32
	err = open(data, tagEnrolled, 5, func(u *unpacker) {
		run, place, ed, p256, signature = u.fixed(16), u.nat32(), u.fixed(32), u.bytes(), u.fixed(64)
	})
	if err != nil {
		return err
	}
	candidate := *d.who
	candidate.place, candidate.gateway = place, ed
	switch {
	case string(run) != string(t.run):
		return unusable{errors.New("the gateway has another run than the ticket")}
	case !t.fits(ed, p256):
		return unusable{errors.New("the gateway has not the keys that the ticket names")}
	case !candidate.verify(signature, "enrolled", t.name, key):
		return unusable{errors.New("a wrong signature under Enrolled")}
	}
	if err := d.folder.keep(&candidate); err != nil {
		return unusable{err}
	}
	*d.who = candidate
	log.Printf("place %d", place)
	return nil
}

// greet says Hello, proves the key and takes the plan.
func (d *device) greet(ctx context.Context, line transport) error {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	var planSum []byte
	if d.packed != nil {
		sum := sha256.Sum256(d.packed)
		planSum = sum[:]
	}
	if err := line.send(helloFrame(d.who, nonce, planSum, d.model)); err != nil {
		return err
	}
	data, err := d.expect(ctx, line, tagChallenge)
	if err != nil {
		return err
	}
	var version uint64
	var challenge []byte
	err = open(data, tagChallenge, 2, func(u *unpacker) { version, challenge = u.nat(), u.fixed(32) })
	if err != nil {
		return err
	}
	if version != protocolVersion {
		return unusable{fmt.Errorf("the gateway speaks version %d", version)}
	}
	proof := d.who.sign("proof", challenge, nonce, d.readyNumber())
	if err := line.send(proofFrame(proof)); err != nil {
		return err
	}
	if data, err = d.expect(ctx, line, tagWelcome); err != nil {
		return err
	}
	err = d.welcome(data, nonce)
	var never unusable
	if errors.As(err, &never) {
		_ = line.send(leaveFrame())
	}
	return err
}

// readyNumber is `ready` in the payload of Proof.
func (d *device) readyNumber() []byte {
	ready := ^uint64(0)
	if d.model != nil && d.model.x != nil {
		ready = d.model.ready
	}
	return orderNumber{round: ready}.number()[:8]
}

func (d *device) welcome(data, nonce []byte) error {
	var packed, signature []byte
	var beat, round uint64
	err := open(data, tagWelcome, 4, func(u *unpacker) {
		packed, beat, round, signature = u.bytes(), u.nat(), u.nat(), u.fixed(64)
	})
	if err != nil {
		return err
	}
	whole := packed
	if len(packed) == 0 {
		whole = d.packed
	}
	sum := sha256.Sum256(whole)
	if !d.who.verify(signature, "welcome", nonce, sum[:]) {
		return errors.New("a wrong signature under Welcome")
	}
	d.beat = time.Duration(beat) * time.Second
	log.Printf("welcome, round %d", round)
	if len(packed) == 0 && d.plan != nil {
		return nil
	}
	d.packed = whole
	if err := d.usePlan(); err != nil {
		return unusable{err}
	}
	return d.folder.write("plan", whole)
}
