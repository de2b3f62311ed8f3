package main

import (
	"errors"
	"fmt"
	"time"
)

// Reasons for which a session ends.

var errFinished = errors.New("the run is over")

// waiting: the gateway ends the session, and the device comes back.
type waiting struct {
	after time.Duration
	text  string
}

func (w waiting) Error() string { return fmt.Sprintf("come back in %v: %s", w.after, w.text) }

// refused: an Error of the gateway.
type refused struct {
	code uint64
	text string
}

func (r refused) Error() string { return fmt.Sprintf("error %d: %s", r.code, r.text) }

// again says whether a later session may go better.
func (r refused) again() bool { return r.code == 8 || r.code == 15 }

// unusable: another session would end in the same way.
type unusable struct{ error }
