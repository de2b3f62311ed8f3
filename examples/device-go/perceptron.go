package main

import "math"

// perceptron is the model of a plan, on the rows of this device.
type perceptron struct {
	widths []int
	rows   [][]float32 // normalised
	labels []int
}

// normalise is (x - mean)/deviation, two operations of float32.
func normalise(x, mean, deviation float32) float32 {
	return float32(x-mean) / deviation
}

// loss is the mean cross-entropy over some of the rows. Sums are float64.
func (p *perceptron) loss(x tensors, rows []int) float64 {
	total := 0.0
	for _, row := range rows {
		total += p.entropy(x, row)
	}
	return total / float64(len(rows))
}

func (p *perceptron) entropy(x tensors, row int) float64 {
	h := make([]float64, len(p.rows[row]))
	for i, number := range p.rows[row] {
		h[i] = float64(number)
	}
	last := len(p.widths) - 2
	for layer := 0; layer <= last; layer++ {
		h = affine(x[2*layer], x[2*layer+1], h)
		if layer < last {
			for i := range h {
				h[i] = math.Max(h[i], 0)
			}
		}
	}
	most := h[0]
	for _, output := range h {
		most = math.Max(most, output)
	}
	sum := 0.0
	for _, output := range h {
		sum += math.Exp(output - most)
	}
	return most + math.Log(sum) - h[p.labels[row]]
}

// affine is W h + b, W row by row.
func affine(weight, bias []float32, h []float64) []float64 {
	out := make([]float64, len(bias))
	for r := range out {
		row := weight[r*len(h) : (r+1)*len(h)]
		a, b := 0.0, 0.0
		for len(row) > 1 {
			i := len(h) - len(row)
			a += float64(row[0]) * h[i]
			b += float64(row[1]) * h[i+1]
			row = row[2:]
		}
		if len(row) == 1 {
			a += float64(row[0]) * h[len(h)-1]
		}
		out[r] = a + b + float64(bias[r])
	}
	return out
}
