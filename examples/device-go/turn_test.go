package main

import (
	"fmt"
	"testing"
)

// benchmarkPlan is a run of 784 columns and 10 labels, batches of 32, P = 10.
func benchmarkPlan(widths ...int) *plan {
	p := &plan{root: make([]byte, 32)}
	for l := 1; l < len(widths); l++ {
		for _, shape := range [][]int{{widths[l], widths[l-1]}, {widths[l]}} {
			p.tensors = append(p.tensors, tensor{1, shape, 0.01, nil})
		}
	}
	p.method = method{
		distribution: rademacher, radius: 1e-3, directions: 10, steps: 1, difference: forward, batch: 32, samples: 1,
	}
	p.task.widths = widths
	return p
}

func BenchmarkTurn(b *testing.B) {
	for _, widths := range [][]int{{784, 10}, {784, 200, 10}} {
		b.Run(fmt.Sprint(widths), func(b *testing.B) {
			p := benchmarkPlan(widths...)
			s := newModel(p)
			if err := s.begin(); err != nil {
				b.Fatal(err)
			}
			rows := &perceptron{widths: widths}
			for r := 0; r < 100; r++ {
				rows.rows = append(rows.rows, make([]float32, widths[0]))
				rows.labels = append(rows.labels, r%10)
			}
			d := &device{plan: p, model: s, rows: rows, who: &identity{}}
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				s.turn(uint64(i), 0.01, d.lossAt(uint64(i)))
			}
		})
	}
}

func TestATurnLeavesTheModelAsItWas(t *testing.T) {
	p := benchmarkPlan(6, 4, 3)
	p.method.steps, p.method.rule, p.method.hypers = 3, ruleMomentum, []float64{0.9, 0.1}
	s := newModel(p)
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	before := string(s.pack())
	n := 0.0
	v := s.turn(5, 0.1, func(tensors, int) float64 { n++; return n * n })
	if before != string(s.pack()) {
		t.Error("the model or its memory has moved")
	}
	if len(v.g) != 30 || v.queries != 33 || v.loss != 1 || v.g[0] != 3000 {
		t.Errorf("%d numbers of %d evaluations, loss %v, first %v", len(v.g), v.queries, v.loss, v.g[0])
	}
}
