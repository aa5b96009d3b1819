package device

import "time"

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
}

// eventCounters are the counters of one GPU, in the order of the first event.
type eventCounters []eventCounter

// find returns the counter of reports like e; nil if there are too many kinds.
func (cs *eventCounters) find(e Event) *eventCounter {
	for i := range *cs {
		if c := &(*cs)[i]; c.Code == e.Xid && c.kind == e.Kind {
			return c
		}
	}
	if len(*cs) >= maxEventCounters {
		return nil
	}
	*cs = append(*cs, eventCounter{Xid: Xid{Code: e.Xid}, kind: e.Kind, reason: e.reason()})
	return &(*cs)[len(*cs)-1]
}

// record counts a report of an event at a time, and reports whether the event is new. lastOutage is when the driver's events were
// last interrupted.
func (c *eventCounter) record(source int, at, now, lastOutage time.Time) bool {
	if now.Sub(c.lastReportAt) > sourceMatchWindow && now.Sub(lastOutage) > sourceMatchWindow {
		c.counts = [2]uint64{}
	}
	c.lastReportAt = now
	c.counts[source]++
	if c.counts[source] <= c.counts[1-source] {
		return false
	}
	c.Count++
	c.Last = latest(c.Last, at)
	return true
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
