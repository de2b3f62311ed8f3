package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"time"
)

// Codes of a Refusal.
const (
	refuseOther     = 1
	refuseSignature = 2
	refuseCannot    = 5
)

// order takes an Order: it is answered or refused.
func (d *device) order(ctx context.Context, line transport, data []byte) error {
	var number orderNumber
	var body, signature []byte
	err := open(data, tagOrder, 5, func(u *unpacker) {
		number, body, signature = u.orderNumber(), u.bytes(), u.fixed(64)
	})
	if err != nil {
		return err
	}
	if !d.who.verify(signature, "order", number.number(), body) {
		return line.send(refusalFrame(number, refuseSignature, "the signature of the order is wrong"))
	}
	sum := sha256.Sum256(body)
	given := d.answer
	if given == nil || given.order != number {
		stop := line.alive(ctx, d.beat)
		given, err = d.work(number, body)
		stop()
		if err != nil {
			log.Printf("round %d: %v", number.round, err)
			return line.send(refusalFrame(number, refuseCannot, oneLine(err.Error())))
		}
		if err := d.folder.keepAnswer(given); err != nil {
			return unusable{err}
		}
		d.answer = given
		log.Printf("round %d", number.round)
	} else if given.body != sum {
		return line.send(refusalFrame(number, refuseOther, "another order under the same number"))
	}
	d.saveSometimes()
	return line.send(given.frame)
}

// work folds what the order has and makes the turn.
func (d *device) work(number orderNumber, body []byte) (*answer, error) {
	if d.rows == nil {
		return nil, d.lack
	}
	rate, err := d.fold(number.round, body)
	if err != nil {
		return nil, err
	}
	v := d.model.turn(number.round, rate.of(number.round), d.lossAt(number.round))
	reply := replyBody(number.round, d.model.digest(), v)
	sum := sha256.Sum256(body)
	signature := d.who.sign("answer", number.number(), sum[:], reply)
	return &answer{number, sum, answerFrame(number, reply, signature)}, nil
}

// fold brings the model to the round of an order.
func (d *device) fold(round uint64, body []byte) (rates, error) {
	var work, pairs []byte
	u := &unpacker{b: body}
	u.fields(2, func() { work, pairs = u.bytes(), u.bytes() })
	if err := u.end(); err != nil {
		return rates{}, err
	}
	var kind, inner, exchange uint64
	var list []update
	u = &unpacker{b: work}
	u.fields(4, func() {
		kind, inner, exchange = u.nat(), u.nat(), u.nat()
		for n := u.array(); n > 0; n-- {
			list = append(list, u.update())
		}
	})
	if err := u.end(); err != nil {
		return rates{}, err
	}
	if kind != 1 || inner != round || exchange != 0 {
		return rates{}, errors.New("an order of a kind that is not known")
	}
	rate, err := readRates(d.plan.method.rate, pairs)
	if err != nil {
		return rate, err
	}
	return rate, d.model.follow(list, rate, round)
}

// lossAt is the loss on the batch of a step.
func (d *device) lossAt(round uint64) func(x tensors, k int) float64 {
	m := d.plan.method
	count := len(d.rows.rows)
	return func(x tensors, k int) float64 {
		if m.samples == samplesAll {
			return d.rows.loss(x, allRows(count))
		}
		return d.rows.loss(x, batch(batchKey(d.plan.root, round, k, d.who.place), count, m.batch))
	}
}

// oneLine makes a text that fits in a frame.
func oneLine(text string) string {
	runes := []rune(fmt.Sprintf("%q", text))
	if len(runes) > 200 {
		runes = runes[:200]
	}
	return string(runes)
}

// saveSometimes writes the model every ten seconds.
func (d *device) saveSometimes() {
	if time.Since(d.saved) > 10*time.Second {
		d.save()
	}
}
