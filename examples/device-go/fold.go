package main

// Products are converted to float32 before they are added: without the
// conversion Go may fuse a product and a sum, and round once, on arm64,
// ppc64le, riscv64 and s390x.

// tensors are the parameters of a model, or other numbers of its shapes.
type tensors [][]float32

// term is a key and a coefficient.
type term struct {
	key         uint64
	coefficient float32
}

// outline is what a fold knows of a model: its shapes and the distribution.
type outline struct {
	distribution int
	shapes       [][]int
}

func size(shape []int) int {
	n := 1
	for _, axis := range shape {
		n *= axis
	}
	return n
}

// zeros are tensors of +0.
func (o outline) zeros() tensors {
	x := make(tensors, len(o.shapes))
	for t, shape := range o.shapes {
		x[t] = make([]float32, size(shape))
	}
	return x
}

// fold adds terms to x, one after the other.
func (o outline) fold(x tensors, terms []term) {
	for t, shape := range o.shapes {
		z := make([]float32, len(x[t]))
		for _, one := range terms {
			direction(z, o.distribution, one.key, uint32(t), shape)
			for i := range z {
				x[t][i] += float32(one.coefficient * z[i])
			}
		}
	}
}

// view is x with one term added, in a new place.
func (o outline) view(x tensors, one term) tensors {
	y := x.copy()
	o.fold(y, []term{one})
	return y
}

func (x tensors) copy() tensors {
	if x == nil {
		return nil
	}
	y := make(tensors, len(x))
	for t := range x {
		y[t] = append([]float32(nil), x[t]...)
	}
	return y
}

// momentum takes a step with memory: M, then x.
func (o outline) momentum(x, m tensors, terms []term, eta, beta, rest float32) {
	g := o.zeros()
	o.fold(g, terms)
	for t := range x {
		for i := range x[t] {
			m[t][i] = float32(beta*m[t][i]) + float32(rest*g[t][i])
			x[t][i] -= float32(eta * m[t][i])
		}
	}
}
