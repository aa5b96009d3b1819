package device

import (
	"fmt"
	"sync/atomic"
	"time"
)

// heartbeatTimeout is longer than any turn of a loop that is sound.
const heartbeatTimeout = time.Minute

// Heartbeat tells whether a loop still turns, whatever it may be waiting for.
type Heartbeat struct {
	// last is when it last did; nil: it has not begun. As a time.Time it has the clock
	// that nobody sets.
	last atomic.Pointer[time.Time]
}

// Beat is called on every turn, and so at least twice a minute.
func (h *Heartbeat) Beat() {
	now := time.Now()
	h.last.Store(&now)
}

// Alive says so with an error when the loop has stopped. One that has not begun
// is alive.
func (h *Heartbeat) Alive() error {
	last := h.last.Load()
	if last == nil {
		return nil
	}
	if silence := time.Since(*last); silence > heartbeatTimeout {
		return fmt.Errorf("has not turned for %s", silence.Round(time.Second))
	}
	return nil
}
