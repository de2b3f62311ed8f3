package main

import (
	"fmt"
	"math"
)

// most is the largest number of parameters that this program takes.
const most = 1 << 26

// check refuses a plan that this program does not cover.
func (p *plan) check() error {
	m, t := p.method, p.task
	switch {
	case m.distribution != rademacher && m.distribution != rankOne:
		return fmt.Errorf("directions of distribution %d", m.distribution)
	case m.rule != ruleSGD && m.rule != ruleMomentum:
		return fmt.Errorf("rule %d", m.rule)
	case m.rule == ruleMomentum && len(m.hypers) < 2:
		return fmt.Errorf("momentum without its two numbers")
	case !(m.radius > 0) || math.IsInf(m.radius, 0):
		return fmt.Errorf("a radius of %v", m.radius)
	case m.directions < 1 || m.steps < 1 || m.directions > most/m.steps:
		return fmt.Errorf("%d directions, %d steps", m.directions, m.steps)
	case m.difference != forward && m.difference != central:
		return fmt.Errorf("difference %d", m.difference)
	case !(m.clip >= 0):
		return fmt.Errorf("a clip of %v", m.clip)
	case m.batch < 1 && m.samples != samplesAll || m.samples < 1 || m.samples > 2:
		return fmt.Errorf("batches of %d, samples %d", m.batch, m.samples)
	case t.model != 1:
		return fmt.Errorf("a model of kind %d", t.model)
	}
	return p.checkModel()
}

func (p *plan) checkModel() error {
	t := p.task
	layers := len(t.widths) - 1
	if layers < 1 || len(p.tensors) != 2*layers {
		return fmt.Errorf("%d tensors for widths of %v", len(p.tensors), t.widths)
	}
	count := 0
	for l := 0; l < layers; l++ {
		in, out := t.widths[l], t.widths[l+1]
		if in < 1 || out < 1 || in > most/out {
			return fmt.Errorf("widths of %v", t.widths)
		}
		if !equal(p.tensors[2*l].shape, out, in) || !equal(p.tensors[2*l+1].shape, out) {
			return fmt.Errorf("shapes that do not fit widths of %v", t.widths)
		}
		count += in * out
	}
	if count > most {
		return fmt.Errorf("%d parameters", count)
	}
	for _, one := range p.tensors {
		if one.kind != 1 {
			return fmt.Errorf("a tensor of type %d", one.kind)
		}
	}
	columns, classes := t.widths[0], t.widths[layers]
	if n := len(t.mean); n != 1 && n != columns {
		return fmt.Errorf("%d means for %d columns", n, columns)
	}
	if n := len(t.deviation); n != 1 && n != columns {
		return fmt.Errorf("%d deviations for %d columns", n, columns)
	}
	if n := len(t.labels); n != 0 && n != classes {
		return fmt.Errorf("%d labels for %d outputs", n, classes)
	}
	if n := len(t.columns); n != 0 && n != columns {
		return fmt.Errorf("%d names for %d columns", n, columns)
	}
	return nil
}

func equal(shape []int, axes ...int) bool {
	if len(shape) != len(axes) {
		return false
	}
	for i, axis := range axes {
		if shape[i] != axis {
			return false
		}
	}
	return true
}
