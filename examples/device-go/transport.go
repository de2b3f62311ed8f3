package main

import (
	"context"
	"time"
)

// transport carries frames between a device and a gateway.
type transport interface {
	send(frame []byte) error
	receive(ctx context.Context) ([]byte, error)
	// waiting says whether a frame is there already.
	waiting() bool
	// alive keeps the session while the device computes.
	alive(ctx context.Context, beat time.Duration) (stop func())
	close()
}

// largest is the largest message or body that is read.
const largest = 64 << 20
