package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
)

// signed are the bytes that a signature of a kind is of.
func signed(kind string, run []byte, place uint32, payload ...[]byte) []byte {
	message := append([]byte("fedzero-device/1 "), kind...)
	message = append(message, 0)
	message = append(message, run...)
	message = binary.LittleEndian.AppendUint32(message, place)
	for _, part := range payload {
		message = append(message, part...)
	}
	return message
}

// number is an order's number in signatures.
func (o orderNumber) number() []byte {
	b := binary.LittleEndian.AppendUint64(nil, o.round)
	b = binary.LittleEndian.AppendUint32(b, o.exchange)
	return binary.LittleEndian.AppendUint32(b, o.attempt)
}

func (i *identity) sign(kind string, payload ...[]byte) []byte {
	return ed25519.Sign(i.key, signed(kind, i.run, i.place, payload...))
}

// verify says whether the gateway has signed.
func (i *identity) verify(signature []byte, kind string, payload ...[]byte) bool {
	return ed25519.Verify(i.gateway, signed(kind, i.run, i.place, payload...), signature)
}

// fits says whether the keys of a gateway have the fingerprint of a ticket.
func (t *ticket) fits(ed, p256 []byte) bool {
	sum := sha256.Sum256(append(append([]byte(nil), ed...), p256...))
	return string(sum[:16]) == string(t.fingerprint)
}
