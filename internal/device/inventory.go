package device

import "sync"

// Inventory publishes the status of all devices. State is published, never queued: a
// reader that is slow, or was away, looks and sees what holds now. So no change
// can be lost, blocked on, or split between two readers.
//
// The zero Board is ready for use, and nothing is known on it.
type Inventory struct {
	mu sync.Mutex
	// All below are guarded by mu.
	statuses []Status
	changed  chan struct{}
}

// Get returns what is on the board and a channel that is closed when something
// else is. The statuses are nil before the first Post. They must not be changed.
func (inv *Inventory) Get() ([]Status, <-chan struct{}) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if inv.changed == nil {
		inv.changed = make(chan struct{})
	}
	return inv.statuses, inv.changed
}

// Set replaces what is on the board. The caller hands the slice over, and with
// it all that it points to.
func (inv *Inventory) Set(statuses []Status) {
	if statuses == nil {
		statuses = []Status{}
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.statuses = statuses
	if inv.changed != nil {
		close(inv.changed)
		inv.changed = nil
	}
}
