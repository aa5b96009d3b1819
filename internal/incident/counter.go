package incident

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// incidentCounter counts the events of a device by reason; with an owner, the events with this affected container.
type incidentCounter struct {
	key   counterKey
	gpu   device.GPU // at the newest event
	index int        // at the newest event
	count uint64
	last  time.Time
}

// counterKey identifies a counter.
type counterKey struct {
	device device.ID
	owner  device.Owner
	reason string
}

func (k counterKey) compare(o counterKey) int {
	return cmp.Or(cmp.Compare(k.device, o.device), k.owner.Compare(o.owner), strings.Compare(k.reason, o.reason))
}

// maxCounters bounds the counters of a set.
const maxCounters = 4096

// counterSet is a list of counters in the order of their keys.
type counterSet struct{ counters []*incidentCounter }

func (s *counterSet) search(key counterKey) (int, bool) {
	return slices.BinarySearchFunc(s.counters, key, func(c *incidentCounter, key counterKey) int { return c.key.compare(key) })
}

// get returns the counter of a key, and adds the counter if it is missing.
func (s *counterSet) get(key counterKey) *incidentCounter {
	i, found := s.search(key)
	if !found {
		s.counters = slices.Insert(s.counters, i, &incidentCounter{key: key})
	}
	return s.counters[i]
}

func (c *incidentCounter) add(e *trackedIncident, n uint64, at time.Time) {
	c.count += n
	c.gpu, c.index, c.last = e.GPU, e.Index, latest(c.last, at)
}

// prune removes expired counters, and the oldest ones beyond maxCounters.
func (s *counterSet) prune(expired func(*incidentCounter) bool) (changed bool) {
	drop := expired
	if excess := len(s.counters) - maxCounters; excess > 0 {
		times := make([]time.Time, len(s.counters))
		for i, c := range s.counters {
			times[i] = c.last
		}
		slices.SortFunc(times, time.Time.Compare)
		newest := times[excess-1]
		drop = func(c *incidentCounter) bool { return expired(c) || !c.last.After(newest) }
	}
	before := len(s.counters)
	s.counters = slices.DeleteFunc(s.counters, drop)
	return len(s.counters) != before
}
