package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log"
	"time"
)

const ed25519Algorithm = 1

// device is a client of one run, with what it has from disk.
type device struct {
	folder  folder
	who     *identity
	ticket  *ticket // nil if the device has a place
	data    string  // CSV file
	socket  bool    // web socket instead of polling
	plan    *plan
	packed  []byte // the plan as it came
	model   *model
	rows    *perceptron
	lack    error   // why there are no rows
	answer  *answer // the last one
	partial *transfer
	moved   bool // the model is another one since the last Ready
	beat    time.Duration
	empty   time.Time // of the last response without a frame
	quick   int       // such responses that came one after the other
	saved   time.Time
}

// newDevice reads the folder. address is a ticket; it is used once.
func newDevice(path, address, data string, socket bool) (*device, error) {
	dir, err := openFolder(path)
	if err != nil {
		return nil, err
	}
	d := &device{folder: dir, data: data, socket: socket}
	if d.who, err = dir.restore(); err != nil {
		return nil, err
	}
	if d.who == nil || !d.who.enrolled() {
		if address == "" {
			return nil, errors.New("this folder has no place yet: give the address of a ticket")
		}
		if err := d.prepare(address); err != nil {
			return nil, err
		}
	} else if address != "" {
		if err := d.compare(address); err != nil {
			return nil, err
		}
	}
	if d.answer, err = dir.lastAnswer(); err != nil {
		return nil, fmt.Errorf("answer: %w", err)
	}
	if d.packed, err = dir.read("plan"); err != nil || d.packed == nil {
		return d, err
	}
	return d, d.usePlan()
}

// prepare makes a key, which is on disk before it is sent: if the answer to
// Enrol is lost the same key gets the same place.
func (d *device) prepare(address string) error {
	t, err := readTicket(address)
	if err != nil {
		return err
	}
	d.ticket = t
	if d.who == nil {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return err
		}
		d.who = &identity{key: key}
	}
	d.who.at, d.who.run = t.gateway, t.run
	return d.folder.keep(d.who)
}

// compare takes a ticket that is not needed any more: it may have another
// address of the gateway.
func (d *device) compare(address string) error {
	t, err := readTicket(address)
	if err != nil {
		return err
	}
	if string(t.run) != string(d.who.run) {
		return errors.New("this folder has a place in another run")
	}
	d.who.at = t.gateway
	return nil
}

// usePlan reads the plan, the rows and the last model.
func (d *device) usePlan() error {
	p, err := readPlan(d.packed)
	if err != nil {
		return unusable{err}
	}
	d.plan = p
	d.model = d.folder.lastModel(p) // or none, until the gateway says how to begin
	d.saved = time.Now()
	d.rows, d.lack = readRows(d.data, p.task)
	return d.lack
}

// run plays sessions until the run is over or no other session can help.
func (d *device) run(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		began, err := d.session(ctx)
		if began {
			pause = 0
		}
		d.save()
		var wait waiting
		var no refused
		var never unusable
		switch {
		case errors.Is(err, errFinished):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &never), errors.As(err, &no) && !no.again():
			return err
		case errors.As(err, &wait):
			pause = 0
			log.Print(err)
			err = sleep(ctx, wait.after)
		default:
			pause = longer(pause)
			log.Printf("%v; again in %v", err, pause)
			err = sleep(ctx, pause)
		}
		if err != nil {
			return err
		}
	}
}

// longer is 0.5 s, then twice as long each time, up to 30 s.
func longer(pause time.Duration) time.Duration {
	if pause == 0 {
		return 500 * time.Millisecond
	}
	if pause *= 2; pause > 30*time.Second {
		pause = 30 * time.Second
	}
	return pause
}

func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

// save writes the model. What it lacks after a crash is sent again.
func (d *device) save() {
	if d.model == nil {
		return
	}
	if err := d.folder.keepModel(d.model); err != nil {
		log.Printf("the model is not saved: %v", err)
	}
	d.saved = time.Now()
}
