package device

import (
	"fmt"
	"sync/atomic"
	"time"
)

// heartbeatTimeout is longer than any iteration of a live loop.
const heartbeatTimeout = time.Minute

// Heartbeat reports whether a loop is alive.
type Heartbeat struct {
	// last is the time of the newest iteration; nil: before the first
	// iteration, or at Rest. A time.Time carries the monotonic clock.
	last atomic.Pointer[time.Time]
}

// Rest is called before a wait without a limit, which ends with a Beat.
func (h *Heartbeat) Rest() { h.last.Store(nil) }

// Beat is called in every iteration, at least twice a minute.
func (h *Heartbeat) Beat() { h.last.Store(new(time.Now())) }

// Alive returns an error if the loop has stopped. A loop before its first iteration is alive.
func (h *Heartbeat) Alive() error {
	last := h.last.Load()
	if last == nil {
		return nil
	}
	if silence := time.Since(*last); silence > heartbeatTimeout {
		return fmt.Errorf("loop stopped for %s", silence.Round(time.Second))
	}
	return nil
}
