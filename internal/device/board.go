package device

import "sync"

// Board publishes the status of all devices. State is published, never queued: a
// reader that is slow, or was away, looks and sees what holds now. So no change
// can be lost, blocked on, or split between two readers.
//
// The zero Board is ready for use, and nothing is known on it.
type Board struct {
	mu sync.Mutex
	// All below are guarded by mu.
	statuses []Status
	changed  chan struct{}
}

// Look returns what is on the board and a channel that is closed when something
// else is. The statuses are nil before the first Post. They must not be changed.
func (b *Board) Look() ([]Status, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.changed == nil {
		b.changed = make(chan struct{})
	}
	return b.statuses, b.changed
}

// Post replaces what is on the board. The caller hands the slice over, and with
// it all that it points to.
func (b *Board) Post(statuses []Status) {
	if statuses == nil {
		statuses = []Status{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.statuses = statuses
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}
