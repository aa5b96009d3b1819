package health

import (
	"slices"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// sourceMatchWindow is the time within which reports of one kind by driver and
	// kernel log are about the same event.
	sourceMatchWindow = 10 * time.Second
	// maxEventCounters bounds the counters of a GPU. About 200 Xids exist.
	maxEventCounters = 256
)

// eventCounter counts the events of one kind of a GPU, such as an Xid. Within
// sourceMatchWindow of a report from one source, reports from the second source
// do not count.
type eventCounter struct {
	device.Xid  // Code is 0 if the event is no Xid
	kind        string
	reason      string    // of a fault by such an event
	source      string    // of the newest counted report
	device      device.ID // of the newest counted report
	countedAt   time.Time // time of the newest counted report
	undecidedAt time.Time // of the newest report with SeverityUndecided
}

// reasonOf returns the reason of a fault by the event.
func reasonOf(e device.Event) string {
	if e.Xid == 0 {
		return e.Kind
	}
	return "xid_" + strconv.FormatUint(e.Xid, 10)
}

// record counts a report of an event at a time, and reports whether the event is
// new. Only the kernel log has the severity of some Xids, so a duplicate also
// corrects the severity.
func (c *eventCounter) record(e device.Event, at, now time.Time) bool {
	if e.Severity == device.SeverityUndecided {
		c.undecidedAt = now
	}
	if c.isDuplicate(e, now) {
		c.Nonfatal = c.Nonfatal && e.Severity != device.SeverityOfClass
		return false
	}
	c.source, c.device, c.countedAt = e.Source, e.Device, now
	c.Count++
	if e.Severity == device.SeverityOfClass {
		c.Nonfatal, c.LastFatal = false, time.Time{}
	} else {
		c.Nonfatal, c.LastFatal = true, c.LastSevere()
	}
	c.Last = latest(c.Last, at)
	return true
}

// isDuplicate reports whether the second source has reported the event before.
// Reports of two MIG devices are two events.
func (c *eventCounter) isDuplicate(e device.Event, now time.Time) bool {
	sameDevice := e.Device == c.device || e.Device == "" || c.device == ""
	return e.Source != c.source && sameDevice && now.Sub(c.countedAt) <= sourceMatchWindow
}

func earliest(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }

func latest(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }
