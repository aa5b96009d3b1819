package incident

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// tally counts one kind of occurrence of a device, or of a device while a container held
// it: then it has an owner.
type tally struct {
	what  tallied
	gpu   device.GPU // and index: the device's, as of the newest occurrence
	index int
	count uint64
	last  time.Time
}

// tallied is what is counted.
type tallied struct {
	device device.ID
	owner  device.Owner
	reason string
}

func (t tallied) compare(o tallied) int {
	return cmp.Or(cmp.Compare(t.device, o.device), t.owner.Compare(o.owner), strings.Compare(t.reason, o.reason))
}

// mostTallies bounds how many of a device, and how many of devices and containers, there are.
const mostTallies = 4096

// tallies are counts, ordered by what they are of. Its owner has a lock.
type tallies struct{ rows []*tally }

func (ts *tallies) search(what tallied) (int, bool) {
	return slices.BinarySearchFunc(ts.rows, what, func(t *tally, what tallied) int { return t.what.compare(what) })
}

// of returns the tally, which is a new one where there was none.
func (ts *tallies) of(what tallied) *tally {
	i, found := ts.search(what)
	if !found {
		ts.rows = slices.Insert(ts.rows, i, &tally{what: what})
	}
	return ts.rows[i]
}

func (t *tally) add(of *entry, n uint64, at time.Time) {
	t.count += n
	t.gpu, t.index, t.last = of.GPU, of.Index, latest(t.last, at)
}

// prune drops what is over, and the oldest where there are too many.
func (ts *tallies) prune(over func(*tally) bool) (changed bool) {
	drop := over
	if excess := len(ts.rows) - mostTallies; excess > 0 {
		times := make([]time.Time, len(ts.rows))
		for i, t := range ts.rows {
			times[i] = t.last
		}
		slices.SortFunc(times, time.Time.Compare)
		newest := times[excess-1]
		drop = func(t *tally) bool { return over(t) || !t.last.After(newest) }
	}
	before := len(ts.rows)
	ts.rows = slices.DeleteFunc(ts.rows, drop)
	return len(ts.rows) != before
}
