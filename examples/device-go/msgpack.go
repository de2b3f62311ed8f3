package main

import (
	"encoding/binary"
	"errors"
	"math"
)

// The part of msgpack that frames have. Writing: integers, texts, bytes and
// arrays in their shortest form.

func putNat(b []byte, n uint64) []byte {
	switch {
	case n < 128:
		return append(b, byte(n))
	case n < 1<<8:
		return append(b, 0xcc, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

func putNil(b []byte) []byte { return append(b, 0xc0) }

func putArray(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func putBytes(b, data []byte) []byte {
	return append(putLength(b, len(data), 0xc4), data...)
}

func putText(b []byte, text string) []byte {
	if len(text) < 32 {
		b = append(b, 0xa0|byte(len(text)))
	} else {
		b = putLength(b, len(text), 0xd9)
	}
	return append(b, text...)
}

// putLength has codes of 8, 16 and 32 bits one after the other.
func putLength(b []byte, n int, code byte) []byte {
	switch {
	case n < 1<<8:
		return append(b, code, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, code+1), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, code+2), uint32(n))
}

var errFrame = errors.New("malformed frame")

// unpacker reads one value after the other. After an error it returns zeros,
// and bad says what was wrong.
type unpacker struct {
	b   []byte
	bad error
}

func (u *unpacker) take(n uint64) []byte {
	if u.bad != nil || n > uint64(len(u.b)) {
		u.bad = errFrame
		return nil
	}
	data := u.b[:n]
	u.b = u.b[n:]
	return data
}

func (u *unpacker) head() byte {
	if data := u.take(1); data != nil {
		return data[0]
	}
	return 0xc1 // a code that is never used
}

// number of n bytes, big-endian.
func (u *unpacker) number(n uint64) uint64 {
	value := uint64(0)
	for _, one := range u.take(n) {
		value = value<<8 | uint64(one)
	}
	return value
}

func (u *unpacker) fail() { u.bad = errFrame }

func (u *unpacker) nat() uint64 {
	head := u.head()
	switch {
	case head < 0x80:
		return uint64(head)
	case head >= 0xcc && head <= 0xcf:
		if value := u.number(1 << (head - 0xcc)); value < 1<<63 {
			return value
		}
	}
	u.fail()
	return 0
}

func (u *unpacker) nat32() uint32 {
	value := u.nat()
	if value >= 1<<32 {
		u.fail()
	}
	return uint32(value)
}

// small is a nat that fits in an int of 32 bits and is used as a size.
func (u *unpacker) small() int {
	value := u.nat()
	if value >= 1<<31 {
		u.fail()
		return 0
	}
	return int(value)
}

func (u *unpacker) boolean() bool {
	head := u.head()
	if head != 0xc2 && head != 0xc3 {
		u.fail()
	}
	return head == 0xc3
}

func (u *unpacker) f64() float64 {
	if u.head() != 0xcb {
		u.fail()
	}
	return math.Float64frombits(u.number(8))
}

func (u *unpacker) bytes() []byte {
	head := u.head()
	if head < 0xc4 || head > 0xc6 {
		u.fail()
		return nil
	}
	return u.take(u.number(1 << (head - 0xc4)))
}

func (u *unpacker) fixed(n int) []byte {
	data := u.bytes()
	if len(data) != n {
		u.fail()
		return make([]byte, n)
	}
	return data
}

func (u *unpacker) text() string {
	head := u.head()
	switch {
	case head&0xe0 == 0xa0:
		return string(u.take(uint64(head & 0x1f)))
	case head >= 0xd9 && head <= 0xdb:
		return string(u.take(u.number(1 << (head - 0xd9))))
	}
	u.fail()
	return ""
}

// array reads the head of an array. Each element has a byte at least, so a
// count beyond the rest of the frame is wrong.
func (u *unpacker) array() int {
	head := u.head()
	count := uint64(head & 0x0f)
	switch {
	case head&0xf0 == 0x90:
	case head == 0xdc || head == 0xdd:
		count = u.number(2 << (head - 0xdc))
	default:
		u.fail()
	}
	if u.bad != nil || count > uint64(len(u.b)) {
		u.fail()
		return 0
	}
	return int(count)
}

// fields reads an array of n fields or more. Those behind are ignored.
func (u *unpacker) fields(n int, read func()) {
	count := u.array()
	if count < n {
		u.fail()
		return
	}
	read()
	for i := n; i < count && u.bad == nil; i++ {
		u.skip(16)
	}
}

func (u *unpacker) end() error {
	if u.bad == nil && len(u.b) > 0 {
		u.fail()
	}
	return u.bad
}
