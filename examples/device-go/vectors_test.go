package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The vectors are those of the core in C.
const vectorsPath = "../../clients/core/vectors/vectors.json"

type vectors struct {
	Tolerance  float64
	Keys       []keyVector
	Words      []wordVector
	Directions []directionVector
	Programs   []programVector
	Estimates  []estimateVector
	Losses     []lossVector
	Batches    []batchVector
}

type keyVector struct {
	Secret, Root, Purpose, Key string
	Numbers                    []int64
}

type wordVector struct {
	Key, Block      string
	Ordinal, Domain uint32
	Words           []string
}

type directionVector struct {
	Stream, Key, Checksum, First string
	Ordinal                      uint32
	Shape                        []int
}

type programVector struct {
	Stream, Rule, Unit, Digest string
	Shapes                     [][]int
	Names                      []string
	Steps                      []struct {
		Terms  [][2]string
		Hypers []string
	}
	Checksums, Momentum, First []string
}

type estimateVector struct {
	Difference, Radius, Loss, Factor, Norm string
	Values, Slopes, Coefficients, Clipped  []string
}

type lossVector struct {
	Network, Stream string
	Input           []int
	Shapes          [][]int
	Rows            int
	Points          [][2]string
	Losses          []string
}

type batchVector struct {
	Kind, Key string
	Count     int64
	Size      int
	Places    []int64
}

func load(t *testing.T) vectors {
	t.Helper()
	data, err := os.ReadFile(vectorsPath)
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func bits64(t *testing.T, text string) uint64 {
	t.Helper()
	value, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func double(t *testing.T, text string) float64 {
	t.Helper()
	return math.Float64frombits(bits64(t, text))
}

func single(t *testing.T, text string) float32 {
	t.Helper()
	return math.Float32frombits(uint32(bits64(t, text)))
}

func compare(t *testing.T, what string, got []float32, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, not %d", what, len(got), len(want))
	}
	for i := range got {
		if text := fmt.Sprintf("%08x", math.Float32bits(got[i])); text != want[i] {
			t.Fatalf("%s: number %d is %s, not %s", what, i, text, want[i])
		}
	}
}

func distribution(stream string) int {
	if stream == "rank1" {
		return rankOne
	}
	return rademacher
}

// label is that of a tensor in a digest.
func label(name string, shape []int) []byte {
	var axes []string
	for _, axis := range shape {
		axes = append(axes, strconv.Itoa(axis))
	}
	text := strings.Join(axes, ", ")
	if len(axes) == 1 {
		text += ","
	}
	return []byte(name + "\x00float32\x00(" + text + ")\x00")
}

// pattern has x_i = ((37·i) mod 251 − 125)·unit in each tensor.
func pattern(o outline, unit float32) tensors {
	x := o.zeros()
	for _, one := range x {
		for i := range one {
			one[i] = float32((37*i)%251-125) * unit
		}
	}
	return x
}

func TestKeys(t *testing.T) {
	for _, v := range load(t).Keys {
		root, err := hex.DecodeString(v.Root)
		if err != nil {
			t.Fatal(err)
		}
		if key := deriveKey(root, v.Purpose, v.Numbers...); key != bits64(t, v.Key) {
			t.Errorf("%s %v: %016x, not %s", v.Purpose, v.Numbers, key, v.Key)
		}
	}
}

func TestWords(t *testing.T) {
	for _, v := range load(t).Words {
		words := philox(bits64(t, v.Key), bits64(t, v.Block), v.Ordinal, v.Domain)
		for i, word := range words {
			if fmt.Sprintf("%08x", word) != v.Words[i] {
				t.Errorf("key %s, block %s: word %d is %08x, not %s", v.Key, v.Block, i, word, v.Words[i])
			}
		}
	}
}

func TestDirections(t *testing.T) {
	for _, v := range load(t).Directions {
		z := make([]float32, size(v.Shape))
		direction(z, distribution(v.Stream), bits64(t, v.Key), v.Ordinal, v.Shape)
		if sum := checksum(z); sum != bits64(t, v.Checksum) {
			t.Errorf("%s %s %v: %016x, not %s", v.Stream, v.Key, v.Shape, sum, v.Checksum)
		}
		for i, bit := range v.First {
			if (z[i] < 0) != (bit == '1') {
				t.Fatalf("%s %s %v: sign %d is wrong", v.Stream, v.Key, v.Shape, i)
			}
		}
	}
}

func TestPrograms(t *testing.T) {
	for n, v := range load(t).Programs {
		o := outline{distribution(v.Stream), v.Shapes}
		x, m := pattern(o, single(t, v.Unit)), o.zeros()
		for _, step := range v.Steps {
			var terms []term
			for _, pair := range step.Terms {
				terms = append(terms, term{bits64(t, pair[0]), single(t, pair[1])})
			}
			if v.Rule == "sgd" {
				o.fold(x, terms)
				continue
			}
			o.momentum(x, m, terms, single(t, step.Hypers[0]), single(t, step.Hypers[1]), single(t, step.Hypers[2]))
		}
		compare(t, fmt.Sprintf("program %d", n), x[0][:len(v.First)], v.First)
		var labels [][]byte
		for i, shape := range v.Shapes {
			if sum := checksum(x[i]); sum != bits64(t, v.Checksums[i]) {
				t.Errorf("program %d: tensor %d has %016x, not %s", n, i, sum, v.Checksums[i])
			}
			if v.Rule != "sgd" && checksum(m[i]) != bits64(t, v.Momentum[i]) {
				t.Errorf("program %d: the memory of tensor %d is wrong", n, i)
			}
			labels = append(labels, label(v.Names[i], shape))
		}
		if got := hex.EncodeToString(digest(x, labels)); got != v.Digest {
			t.Errorf("program %d: digest %s, not %s", n, got, v.Digest)
		}
	}
}

func TestEstimates(t *testing.T) {
	for _, v := range load(t).Estimates {
		var points []float64
		for _, value := range v.Values {
			points = append(points, double(t, value))
		}
		kind := forward
		if v.Difference == "central" {
			kind = central
		}
		g, loss := slopes(kind, double(t, v.Radius), points)
		compare(t, "slopes", g, v.Slopes)
		if kind == forward && loss != double(t, v.Loss) || math.Abs(loss/double(t, v.Loss)-1) > 1e-15 {
			t.Errorf("loss %v, not %v", loss, double(t, v.Loss))
		}
		s := &model{plan: &plan{root: make([]byte, 32)}}
		var coefficients []float32
		for _, one := range s.terms(0, 0, g, double(t, v.Factor)) {
			coefficients = append(coefficients, one.coefficient)
		}
		compare(t, "coefficients", coefficients, v.Coefficients)
		clip(g, double(t, v.Norm))
		compare(t, "clipped", g, v.Clipped)
	}
}

func TestLosses(t *testing.T) {
	all := load(t)
	for _, v := range all.Losses {
		if v.Network == "cnn" {
			continue // no model of the protocol
		}
		o := outline{distribution(v.Stream), v.Shapes}
		x := pattern(o, 1.0/512)
		p := &perceptron{widths: []int{size(v.Input)}}
		for i := 0; i < len(v.Shapes); i += 2 {
			p.widths = append(p.widths, v.Shapes[i][0])
		}
		for r := 0; r < v.Rows; r++ {
			row := make([]float32, p.widths[0])
			for c := range row {
				row[c] = float32(29*(r*len(row)+c)%127-63) / 64
			}
			p.rows = append(p.rows, row)
			p.labels = append(p.labels, r%p.widths[len(p.widths)-1])
		}
		for i, point := range v.Points {
			loss := p.loss(o.view(x, term{bits64(t, point[0]), single(t, point[1])}), allRows(v.Rows))
			if want := double(t, v.Losses[i]); math.Abs(loss/want-1) > all.Tolerance {
				t.Errorf("%s %s, point %d: %v, not %v", v.Network, v.Stream, i, loss, want)
			}
		}
	}
}

func TestBatches(t *testing.T) {
	for _, v := range load(t).Batches {
		if v.Kind != "sample" {
			continue // not drawn in this protocol
		}
		count := int(v.Count)
		if int64(count) != v.Count {
			continue // more rows than an int of 32 bits counts
		}
		if got := batch(bits64(t, v.Key), count, v.Size); fmt.Sprint(got) != fmt.Sprint(v.Places) {
			t.Errorf("%d of %d: %v, not %v", v.Size, v.Count, got, v.Places)
		}
	}
}
