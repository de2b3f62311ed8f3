package main

import "math"

// values are what a turn gives.
type values struct {
	g       []float32
	loss    float64
	queries uint64
}

// turn evaluates f around the model, step by step. The model is as before.
func (s *model) turn(round uint64, rate float64, f func(x tensors, k int) float64) values {
	x, m := s.x, s.m
	K := s.plan.method.steps
	if K > 1 {
		x, m = x.copy(), m.copy()
	}
	var out values
	for k := 0; k < K; k++ {
		points := s.evaluate(x, round, k, f)
		g, loss := slopes(s.plan.method.difference, s.plan.method.radius, points)
		out.g = append(out.g, g...)
		out.queries += uint64(len(points))
		if k == 0 {
			out.loss = loss
		}
		if k+1 < K {
			s.step(x, m, round, k, g, rate)
		}
	}
	clip(out.g, s.plan.method.clip)
	return out
}

// evaluate returns f at the points of a step: x, x + μz_0, x + μz_1, … or
// x + μz_0, x − μz_0, x + μz_1, …
func (s *model) evaluate(x tensors, round uint64, k int, f func(x tensors, k int) float64) []float64 {
	mu := float32(s.plan.method.radius)
	var points []float64
	if s.plan.method.difference == forward {
		points = append(points, f(x, k))
	}
	for p := 0; p < s.plan.method.directions; p++ {
		key := directionKey(s.plan.root, round, k, p)
		points = append(points, f(s.shape.view(x, term{key, mu}), k))
		if s.plan.method.difference == central {
			points = append(points, f(s.shape.view(x, term{key, -mu}), k))
		}
	}
	return points
}

// slopes are the differences over the radius, and the loss.
func slopes(difference int, radius float64, points []float64) ([]float32, float64) {
	var g []float32
	if difference == forward {
		for _, point := range points[1:] {
			g = append(g, float32((point-points[0])/radius))
		}
		return g, points[0]
	}
	sum := 0.0
	for i := 0; i < len(points); i += 2 {
		g = append(g, float32((points[i]-points[i+1])/(2*radius)))
		sum += points[i]
		sum += points[i+1]
	}
	return g, sum / float64(len(points))
}

// clip makes the norm of all numbers at most c; 0 is no bound.
func clip(g []float32, c float64) {
	sum := 0.0
	for _, number := range g {
		sum += float64(float64(number) * float64(number))
	}
	norm := math.Sqrt(sum)
	if c <= 0 || norm <= c {
		return
	}
	scale := c / norm
	for i := range g {
		g[i] = float32(float64(g[i]) * scale)
	}
}
