package device

import (
	"slices"
	"sync"
	"time"
)

const (
	// driverFirst is how long the report of a second witness waits for the driver's own,
	// which alone may name the slice that is hit.
	driverFirst = 500 * time.Millisecond
	// inboxMost bounds the different reports that wait.
	inboxMost = 256
)

// inbox is where reports of a second witness wait for Run. The zero inbox is ready for use.
type inbox struct {
	mu sync.Mutex
	// All below are guarded by mu.
	letters []letter
	lost    uint64 // for lack of room
}

// letter is the same report, once or more.
type letter struct {
	event Event
	times uint64
	came  time.Time // when the first was handed over
	at    time.Time // when the newest happened
}

// Report takes an event of a second source, the kernel's log, and the time at which it
// happened. It may be called at any time and by anybody, and never blocks. What the driver
// reports as well counts once.
func (m *Monitor) Report(e Event, at time.Time) { m.inbox.put(e, at, time.Now()) }

func (b *inbox) put(e Event, at, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.letters {
		if b.letters[i].event == e {
			b.letters[i].times++
			b.letters[i].at = latest(b.letters[i].at, at)
			return
		}
	}
	if len(b.letters) >= inboxMost {
		b.lost++
		return
	}
	b.letters = append(b.letters, letter{e, 1, now, at})
}

// take returns what came before a time, and how many found no room.
func (b *inbox) take(before time.Time) (ripe []letter, lost uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := slices.IndexFunc(b.letters, func(l letter) bool { return l.came.After(before) })
	if n < 0 {
		n = len(b.letters)
	}
	if n > 0 {
		ripe = slices.Clone(b.letters[:n])
		b.letters = slices.Delete(b.letters, 0, n)
	}
	lost, b.lost = b.lost, 0
	return ripe, lost
}

// readReports takes what a second witness has told, once the driver has had its word.
func (m *Monitor) readReports(now time.Time) {
	before := now.Add(-driverFirst)
	if m.deaf {
		before = now
	}
	m.readUntil(before, now)
}

// readUntil takes what was told by a time. Before the first listing nobody knows whom it is
// about.
func (m *Monitor) readUntil(before, now time.Time) {
	if !m.known {
		return
	}
	letters, lost := m.inbox.take(before)
	if lost > 0 {
		m.log.Warn("more is reported than can be taken", "lost", lost)
	}
	for _, l := range letters {
		for range l.times {
			m.report(l.event, second, l.at, now)
		}
	}
}
