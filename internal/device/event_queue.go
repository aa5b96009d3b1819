package device

import (
	"slices"
	"sync"
	"time"
)

// maxQueuedEvents bounds the distinct events in the queue.
const maxQueuedEvents = 256

// eventQueue holds events of the kernel log until the Monitor handles them. The zero eventQueue is empty.
type eventQueue struct {
	mu      sync.Mutex
	events  []queuedEvent // guarded by mu
	dropped uint64        // guarded by mu; for lack of room
}

// queuedEvent is one or more equal events.
type queuedEvent struct {
	event      Event
	count      uint64
	queuedAt   time.Time // of the first
	happenedAt time.Time // of the newest
}

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

// takeBefore removes the events queued up to a time, and returns them and the number of dropped events.
func (q *eventQueue) takeBefore(before time.Time) (taken []queuedEvent, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := slices.IndexFunc(q.events, func(e queuedEvent) bool { return e.queuedAt.After(before) })
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
