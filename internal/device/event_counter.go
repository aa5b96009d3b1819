package device

import "time"

const (
	// sourceMatchWindow is how long after the last report of a kind its witnesses may still be
	// telling of the same.
	sourceMatchWindow = 10 * time.Second
	// maxEventCounters bounds the kinds of reports that are counted of one GPU. There are some 200 Xids.
	maxEventCounters = 256
)

// eventCounter counts the reports of one kind about a GPU, of which there can be two witnesses:
// the driver, and what else is told to Monitor.Report. What both saw happened once, and
// either may miss some: the driver's events are not heard for a while, or do not include
// the Xid at all; the kernel's log is overwritten, or not there. Nothing in two reports
// says that they are about the same, and either may come first.
//
// So each witness' reports are counted by themselves, and the larger count is the one that
// holds: a report counts, and has consequences, when it makes its witness the one who has
// seen the most. In a storm of both, in whatever order, each happening makes exactly one
// of them so. When neither has told anything for a while, whoever is behind has missed the
// rest, and both begin anew: else the next that only this one sees would be taken for one
// of those. Where the driver is not heard it may still have to tell all of it.
type eventCounter struct {
	Xid         // Code is 0 for reports that are no Xid
	kind string // of such
	// reason is what a verdict by it says.
	reason       string
	counts       [2]uint64 // by the driver, and by the second witness
	lastReportAt time.Time // when either last told of it
}

// eventCounter finds what is counted of reports like that; nil where there are too many kinds.
func (g *trackedGPU) eventCounter(e Event) *eventCounter {
	for i := range g.eventCounters {
		if t := &g.eventCounters[i]; t.Code == e.Xid && t.kind == e.Kind {
			return t
		}
	}
	if len(g.eventCounters) >= maxEventCounters {
		return nil
	}
	g.eventCounters = append(g.eventCounters, eventCounter{Xid: Xid{Code: e.Xid}, kind: e.Kind, reason: e.reason()})
	return &g.eventCounters[len(g.eventCounters)-1]
}

// reason is what a verdict by such a report says.
func (e Event) reason() string {
	if e.Xid == 0 {
		return e.Kind
	}
	return xidReason(e.Xid)
}

// record takes a report by a witness of what happened at a time, and reports whether it is
// news. deaf is when the driver was last not heard.
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
