package incident

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// maxCounters bounds the counters of a set.
const maxCounters = 8192

// counterSet is a list of counters: those of devices, then those of affected containers.
type counterSet []*EventCount

func (c *EventCount) compare(o *EventCount) int {
	return cmp.Or(min(len(c.Pod), 1)-min(len(o.Pod), 1), cmp.Compare(c.Device, o.Device), c.Compare(o.Owner), cmp.Compare(c.Reason, o.Reason))
}

// get returns the counter of an incident's device, or of an affected container with its device, and adds the counter if it is missing.
func (s *counterSet) get(e *trackedIncident, id device.ID, o device.Owner) *EventCount {
	c := &EventCount{Device: id, Owner: o, Reason: e.Reason}
	i, found := slices.BinarySearchFunc(*s, c, (*EventCount).compare)
	if !found {
		*s = slices.Insert(*s, i, c)
	}
	return (*s)[i]
}

func (c *EventCount) add(e *trackedIncident, n uint64, at time.Time) {
	c.Count += n
	c.GPU, c.Index, c.Last = e.GPU, e.Index, latest(c.Last, at)
}

// BySoftware reports whether the counted events are errors of software, which leave the device usable.
func (c *EventCount) BySoftware() bool { return xid.BySoftware(c.Reason) }

// rank orders the counters that are removed beyond maxCounters: errors of software, faults by affected container, devices.
func (c *EventCount) rank() int {
	switch {
	case c.Pod == "":
		return 2
	case c.BySoftware():
		return 0
	}
	return 1
}

// prune removes expired counters, and those beyond maxCounters by rank and age.
func (s *counterSet) prune(expired func(*EventCount) bool) (changed bool) {
	before := len(*s)
	*s = slices.DeleteFunc(*s, expired)
	if excess := len(*s) - maxCounters; excess > 0 {
		slices.SortFunc(*s, func(a, b *EventCount) int { return cmp.Or(a.rank()-b.rank(), a.Last.Compare(b.Last)) })
		*s = slices.Delete(*s, 0, excess)
		slices.SortFunc(*s, (*EventCount).compare)
	}
	return len(*s) != before
}

// values returns copies of the counters.
func (s counterSet) values() []EventCount {
	values := make([]EventCount, len(s))
	for i, c := range s {
		values[i] = *c
	}
	return values
}

// splitCounts returns the counts of devices, and those of affected containers.
func splitCounts(counts []EventCount) (devices, affected []EventCount) {
	n := sort.Search(len(counts), func(i int) bool { return counts[i].Pod != "" })
	return counts[:n], counts[n:]
}
