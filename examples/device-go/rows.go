package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// readRows reads a CSV file: numbers, the label last. A first line that is
// not of numbers has names.
func readRows(path string, t task) (*perceptron, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.TrimLeadingSpace = true
	lines, err := reader.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	width := t.widths[0]
	order := allRows(width)
	if len(lines) > 0 && isHeader(lines[0]) {
		if order, err = columnsByName(lines[0], t.columns, width); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		lines = lines[1:]
	}
	p := &perceptron{widths: t.widths}
	for i, line := range lines {
		if err := p.add(line, order, t); err != nil {
			return nil, fmt.Errorf("%s: row %d: %w", path, i+1, err)
		}
	}
	if len(p.rows) < t.leastRows || len(p.rows) == 0 {
		return nil, fmt.Errorf("%s: %d rows; the run asks for %d or more", path, len(p.rows), t.leastRows)
	}
	return p, nil
}

func isHeader(line []string) bool {
	for _, cell := range line[:len(line)-1] {
		if _, err := strconv.ParseFloat(strings.TrimSpace(cell), 32); err != nil {
			return true
		}
	}
	return false
}

// columnsByName finds the columns of the plan in a header; without names in
// the plan they are in their order.
func columnsByName(header, names []string, width int) ([]int, error) {
	if len(names) == 0 {
		return allRows(width), nil
	}
	places := make(map[string]int)
	for i, name := range header[:len(header)-1] {
		places[strings.TrimSpace(name)] = i
	}
	order := make([]int, len(names))
	for i, name := range names {
		place, found := places[name]
		if !found {
			return nil, fmt.Errorf("there is no column %q", name)
		}
		order[i] = place
	}
	return order, nil
}

func (p *perceptron) add(line []string, order []int, t task) error {
	x := make([]float32, len(order))
	for i, place := range order {
		if place >= len(line)-1 {
			return fmt.Errorf("%d numbers, not %d", len(line)-1, len(order))
		}
		number, err := strconv.ParseFloat(strings.TrimSpace(line[place]), 32)
		if err != nil || math.IsNaN(number) || math.IsInf(number, 0) {
			return fmt.Errorf("%q is no finite number", line[place])
		}
		x[i] = normalise(float32(number), of(t.mean, i), of(t.deviation, i))
	}
	label, err := labelOf(strings.TrimSpace(line[len(line)-1]), t)
	if err != nil {
		return err
	}
	p.rows = append(p.rows, x)
	p.labels = append(p.labels, label)
	return nil
}

// of is the number of a column: there is one for each, or one for all.
func of(list []float64, column int) float32 {
	if len(list) == 1 {
		return float32(list[0])
	}
	return float32(list[column])
}

// labelOf takes a label of the plan, or the number of an output.
func labelOf(cell string, t task) (int, error) {
	for i, label := range t.labels {
		if cell == label {
			return i, nil
		}
	}
	number, err := strconv.Atoi(cell)
	if err != nil || number < 0 || number >= t.widths[len(t.widths)-1] {
		return 0, fmt.Errorf("%q is no label of this run", cell)
	}
	return number, nil
}
