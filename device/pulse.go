package device

import (
	"fmt"
	"sync/atomic"
	"time"
)

// stoppedAfter is longer than any turn of a loop that is sound.
const stoppedAfter = time.Minute

// Pulse tells whether a loop still turns, whatever it may be waiting for.
type Pulse struct{ beat atomic.Int64 }

// Beat is called on every turn, and so at least twice a minute.
func (p *Pulse) Beat() { p.beat.Store(time.Now().UnixNano()) }

// Alive says so with an error when the loop has stopped. One that has not begun
// is alive.
func (p *Pulse) Alive() error {
	last := p.beat.Load()
	if still := time.Since(time.Unix(0, last)); last != 0 && still > stoppedAfter {
		return fmt.Errorf("has not turned for %s", still.Round(time.Second))
	}
	return nil
}
