package device

import (
	"fmt"
	"sync/atomic"
	"time"
)

// stoppedAfter is longer than any turn of a loop that is sound.
const stoppedAfter = time.Minute

// Pulse tells whether a loop still turns, whatever it may be waiting for.
type Pulse struct {
	// beat is when it last did; nil: it has not begun. As a time.Time it has the clock
	// that nobody sets.
	beat atomic.Pointer[time.Time]
}

// Beat is called on every turn, and so at least twice a minute.
func (p *Pulse) Beat() {
	now := time.Now()
	p.beat.Store(&now)
}

// Alive says so with an error when the loop has stopped. One that has not begun
// is alive.
func (p *Pulse) Alive() error {
	last := p.beat.Load()
	if last == nil {
		return nil
	}
	if still := time.Since(*last); still > stoppedAfter {
		return fmt.Errorf("has not turned for %s", still.Round(time.Second))
	}
	return nil
}
