package device

import (
	"slices"
	"sync"
	"time"
)

const (
	// kernelEventDelay is how long the report of a second witness waits for the driver's own,
	// which alone may name the slice that is hit.
	kernelEventDelay = 500 * time.Millisecond
	// maxQueuedEvents bounds the different reports that wait.
	maxQueuedEvents = 256
)

// eventQueue is where reports of a second witness wait for Run. The zero inbox is ready for use.
type eventQueue struct {
	mu sync.Mutex
	// All below are guarded by mu.
	events  []queuedEvent
	dropped uint64 // for lack of room
}

// queuedEvent is the same report, once or more.
type queuedEvent struct {
	event      Event
	count      uint64
	queuedAt   time.Time // when the first was handed over
	happenedAt time.Time // when the newest happened
}

// Report takes an event of a second source, the kernel's log, and the time at which it
// happened. It may be called at any time and by anybody, and never blocks. What the driver
// reports as well counts once.
func (m *Monitor) Report(e Event, at time.Time) { m.kernelEvents.add(e, at, time.Now()) }

func (q *eventQueue) add(e Event, at, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.events {
		if q.events[i].event == e {
			q.events[i].count++
			q.events[i].happenedAt = latest(q.events[i].happenedAt, at)
			return
		}
	}
	if len(q.events) >= maxQueuedEvents {
		q.dropped++
		return
	}
	q.events = append(q.events, queuedEvent{e, 1, now, at})
}

// takeBefore returns what came before a time, and how many found no room.
func (q *eventQueue) takeBefore(before time.Time) (taken []queuedEvent, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := slices.IndexFunc(q.events, func(l queuedEvent) bool { return l.queuedAt.After(before) })
	if n < 0 {
		n = len(q.events)
	}
	if n > 0 {
		taken = slices.Clone(q.events[:n])
		q.events = slices.Delete(q.events, 0, n)
	}
	dropped, q.dropped = q.dropped, 0
	return taken, dropped
}

// handleKernelEvents takes what a second witness has told, once the driver has had its word.
func (m *Monitor) handleKernelEvents(now time.Time) {
	before := now.Add(-kernelEventDelay)
	if m.inEventOutage {
		before = now
	}
	m.handleKernelEventsBefore(before, now)
}

// handleKernelEventsBefore takes what was told by a time. Before the first listing nobody knows whom it is
// about.
func (m *Monitor) handleKernelEventsBefore(before, now time.Time) {
	if !m.listedOnce {
		return
	}
	queued, dropped := m.kernelEvents.takeBefore(before)
	if dropped > 0 {
		m.log.Warn("more is reported than can be taken", "lost", dropped)
	}
	for _, l := range queued {
		for range l.count {
			m.handleEvent(l.event, sourceKernel, l.happenedAt, now)
		}
	}
}
