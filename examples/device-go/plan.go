package main

import "fmt"

// plan is all that a device must know of a run.
type plan struct {
	name           string
	root           []byte
	places, rounds uint64
	tensors        []tensor
	method         method
	task           task
}

type tensor struct {
	kind  int
	shape []int
	scale float64
	label []byte
}

type method struct {
	distribution, rule int
	rate               float64
	hypers             []float64
	radius             float64
	directions, steps  int
	difference         int
	clip               float64
	batch, samples     int
}

type task struct {
	model           int
	widths          []int
	mean, deviation []float64
	labels, columns []string
	leastRows       int
}

// Values of a method.
const (
	ruleSGD      = 0
	ruleMomentum = 1
	forward      = 1
	central      = 2
	samplesAll   = 2
)

func readPlan(data []byte) (*plan, error) {
	u := &unpacker{b: data}
	p := &plan{}
	var version, stream uint64
	u.fields(9, func() {
		version, stream = u.nat(), u.nat()
		p.name = u.text()
		p.root = u.fixed(32)
		p.places, p.rounds = u.nat(), u.nat()
		for n := u.array(); n > 0; n-- {
			p.tensors = append(p.tensors, u.tensor())
		}
		p.method = u.method()
		p.task = u.task()
	})
	if version != 1 && u.bad == nil || stream > 1 {
		return nil, fmt.Errorf("a plan of version %d, directions of version %d", version, stream)
	}
	if err := u.end(); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return p, p.check()
}

func (u *unpacker) tensor() (t tensor) {
	u.fields(4, func() {
		t = tensor{u.small(), u.sizes(), u.f64(), u.bytes()}
	})
	return t
}

func (u *unpacker) method() (m method) {
	u.fields(11, func() {
		m = method{
			distribution: u.small(), rule: u.small(), rate: u.f64(), hypers: u.floats(), radius: u.f64(),
			directions: u.small(), steps: u.small(), difference: u.small(), clip: u.f64(),
			batch: u.small(), samples: u.small(),
		}
	})
	return m
}

func (u *unpacker) task() (t task) {
	u.fields(7, func() {
		t = task{u.small(), u.sizes(), u.floats(), u.floats(), u.texts(), u.texts(), u.small()}
	})
	return t
}

func (u *unpacker) sizes() (list []int) {
	for n := u.array(); n > 0; n-- {
		list = append(list, u.small())
	}
	return list
}

func (u *unpacker) floats() (list []float64) {
	for n := u.array(); n > 0; n-- {
		list = append(list, u.f64())
	}
	return list
}

func (u *unpacker) texts() (list []string) {
	for n := u.array(); n > 0; n-- {
		list = append(list, u.text())
	}
	return list
}

func (p *plan) outline() outline {
	shapes := make([][]int, len(p.tensors))
	for t, one := range p.tensors {
		shapes[t] = one.shape
	}
	return outline{p.method.distribution, shapes}
}

func (p *plan) labels() [][]byte {
	labels := make([][]byte, len(p.tensors))
	for t, one := range p.tensors {
		labels[t] = one.label
	}
	return labels
}
