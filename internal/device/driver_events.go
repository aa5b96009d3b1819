package device

import (
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
)

const (
	// sourceMatchWindow is how long after the last report the slower source may still report the same events.
	sourceMatchWindow = 10 * time.Second
	// maxEventCounters bounds the counters of a GPU. About 200 Xids exist.
	maxEventCounters = 256
)

// The sources of an eventCounter.
const (
	sourceDriver = iota
	sourceKernel // Monitor.Report
)

// eventCounter counts the reports of one kind about a GPU from two sources: the driver and the kernel log.
//
// An event reported by both sources happened once. Either source may miss events, since the driver's events can be interrupted and
// the kernel log can be overwritten or unreadable; either may be first; and no field identifies an event. So each source has a count, and
// a report counts if it raises the higher one. De-duplication by (GPU, Xid, 10 s) is not enough: the second of two Xids is dropped in
// the kernel log if the driver reported only the first, and both sources count after an interruption (TestTwoSources).
//
// After sourceMatchWindow without a report, both counts restart at 0; otherwise the lagging source's next event looks like a
// duplicate. During and right after an interruption the driver may still report all events, so the counts continue.
type eventCounter struct {
	Xid          // Code is 0 if the report is no Xid
	kind         string
	reason       string    // of a fault by such a report
	counts       [2]uint64 // by source
	lastReportAt time.Time // by either source
	undecidedAt  time.Time // of the newest report with SeverityUndecided
}

// eventCounter returns the counter of reports like e. Beyond maxEventCounters the counter is temporary: reports are handled, not counted.
func (g *trackedGPU) eventCounter(e Event) *eventCounter {
	for i := range g.eventCounters {
		if c := &g.eventCounters[i]; c.Code == e.Xid && c.kind == e.Kind {
			return c
		}
	}
	c := eventCounter{Xid: Xid{Code: e.Xid}, kind: e.Kind, reason: e.reason()}
	if len(g.eventCounters) >= maxEventCounters {
		return &c
	}
	g.eventCounters = append(g.eventCounters, c)
	return &g.eventCounters[len(g.eventCounters)-1]
}

// record counts a report of an event at a time, and reports whether the event is new. lastOutage is when the driver's events were
// last interrupted. Only the kernel log has the severity of some Xids, so its report also corrects that of an event which is not new.
func (c *eventCounter) record(severity Severity, source int, at, now, lastOutage time.Time) bool {
	if now.Sub(c.lastReportAt) > sourceMatchWindow && now.Sub(lastOutage) > sourceMatchWindow {
		c.counts = [2]uint64{}
	}
	c.lastReportAt = now
	c.counts[source]++
	if severity == SeverityUndecided {
		c.undecidedAt = now
	}
	if c.counts[source] <= c.counts[1-source] {
		c.Nonfatal = c.Nonfatal && severity != SeverityOfClass
		return false
	}
	c.Count++
	if severity == SeverityOfClass {
		c.Nonfatal, c.LastFatal = false, time.Time{}
	} else {
		c.Nonfatal, c.LastFatal = true, c.LastSevere()
	}
	c.Last = latest(c.Last, at)
	return true
}

func latest(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// maxQueuedEvents bounds the distinct events in the queue.
const maxQueuedEvents = 256

// eventQueue holds events of the kernel log until the Monitor handles them.
type eventQueue struct {
	added chan struct{} // has room for one

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
	pubsub.Notify(q.added)
}

// takeBefore removes the events queued up to a time, and returns them, the number of events dropped before, and the time of the first
// event left; zero: none.
func (q *eventQueue) takeBefore(before time.Time) (taken []queuedEvent, dropped uint64, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.events)
	if i := slices.IndexFunc(q.events, func(e queuedEvent) bool { return e.queuedAt.After(before) }); i >= 0 {
		n, next = i, q.events[i].queuedAt
	}
	if taken = slices.Clone(q.events[:n]); n > 0 {
		q.events, dropped, q.dropped = slices.Delete(q.events, 0, n), q.dropped, 0
	}
	return taken, dropped, next
}
