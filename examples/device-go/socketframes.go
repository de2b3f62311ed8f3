package main

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"time"
)

// Operations of RFC 6455.
const (
	opMore   = 0
	opBinary = 2
	opClose  = 8
	opPing   = 9
	opPong   = 10
)

var errClosed = errors.New("the gateway has closed the web socket")

// write sends one masked message.
func (s *webSocket) write(op byte, data []byte) error {
	b := []byte{0x80 | op}
	switch {
	case len(data) < 126:
		b = append(b, 0x80|byte(len(data)))
	case len(data) < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(len(data)))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(len(data)))
	}
	var mask [4]byte
	if _, err := rand.Read(mask[:]); err != nil {
		return err
	}
	b = append(b, mask[:]...)
	for i, one := range data {
		b = append(b, one^mask[i%4])
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	_, err := s.conn.Write(b)
	return err
}

// pump reads messages and answers pings, also while the device computes.
func (s *webSocket) pump() error {
	var message []byte
	for {
		op, last, data, err := s.read(largest - len(message))
		if err != nil {
			return err
		}
		switch op {
		case opPing:
			if err := s.write(opPong, data); err != nil {
				return err
			}
		case opPong:
		case opClose:
			return errClosed
		case opBinary, opMore:
			message = append(message, data...)
			if last {
				select {
				case s.in <- message:
				case <-s.closed:
					return errClosed
				}
				message = nil
			}
		default:
			return errFrame
		}
	}
}

func (s *webSocket) read(room int) (op byte, last bool, data []byte, err error) {
	var head [2]byte
	if _, err = io.ReadFull(s.reader, head[:]); err != nil {
		return
	}
	op, last = head[0]&0x0f, head[0]&0x80 != 0
	length := uint64(head[1] & 0x7f)
	extended := map[uint64]int{126: 2, 127: 8}[length]
	if extended > 0 {
		var wide [8]byte
		if _, err = io.ReadFull(s.reader, wide[8-extended:]); err != nil {
			return
		}
		length = binary.BigEndian.Uint64(wide[:])
	}
	if head[0]&0x70 != 0 || head[1]&0x80 != 0 || length > uint64(room) {
		err = errFrame
		return
	}
	data = make([]byte, length)
	_, err = io.ReadFull(s.reader, data)
	return
}
