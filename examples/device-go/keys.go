package main

import "encoding/binary"

// deriveKey is the derived key of directions.md: a purpose and numbers under a root.
func deriveKey(root []byte, purpose string, numbers ...int64) uint64 {
	var message []byte
	for _, number := range numbers {
		message = binary.LittleEndian.AppendUint64(message, uint64(number))
	}
	return binary.LittleEndian.Uint64(blake2b(8, root, purpose, message))
}

// directionKey is the key of direction p of a step, which all clients share.
func directionKey(root []byte, round uint64, step, p int) uint64 {
	return deriveKey(root, "direction", int64(round), int64(step), int64(p), -1)
}

// batchKey is the key of the batch of a place in a step.
func batchKey(root []byte, round uint64, step int, place uint32) uint64 {
	return deriveKey(root, "batch", int64(round), int64(step), int64(place))
}
