package incident

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/podgauge/podgauge/internal/device"
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

// prune removes expired counters, and the oldest ones beyond maxCounters: those of affected containers first.
func (s *counterSet) prune(expired func(*EventCount) bool) (changed bool) {
	before := len(*s)
	*s = slices.DeleteFunc(*s, expired)
	if excess := len(*s) - maxCounters; excess > 0 {
		slices.SortFunc(*s, func(a, b *EventCount) int {
			return cmp.Or(min(len(b.Pod), 1)-min(len(a.Pod), 1), a.Last.Compare(b.Last))
		})
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
