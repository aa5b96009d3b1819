package incident

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/device"
)

// tally counts one kind of occurrence of a device, or of a device while a container held
// it: then it has an owner.
type tally struct {
	what  tallied
	gpu   device.GPU // and index: the device's, as of the newest occurrence
	index int
	count uint64
	last  time.Time
	// stored is how much of the count the store has. The rest is added to what the store
	// has by then, which another process may have written.
	stored uint64
	// tried is what a write was to leave there that has failed, and may have come to the disk
	// all the same; 0: none has.
	tried uint64
	dirty bool
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

// tallies are counts by what they are of. Its owner has a lock.
type tallies struct {
	rows  []*tally // by what they are of
	dirty []*tally
	gone  []tallied // what the store is to forget
}

func (ts *tallies) search(what tallied) (int, bool) {
	return slices.BinarySearchFunc(ts.rows, what, func(t *tally, what tallied) int { return t.what.compare(what) })
}

// of returns the tally, which is a new one where there was none.
func (ts *tallies) of(what tallied) *tally {
	i, found := ts.search(what)
	if !found {
		ts.rows = slices.Insert(ts.rows, i, &tally{what: what})
		ts.gone = slices.DeleteFunc(ts.gone, func(g tallied) bool { return g == what })
	}
	return ts.rows[i]
}

func (ts *tallies) add(t *tally, of *entry, n uint64, at time.Time) {
	t.count += n
	t.gpu, t.index = of.GPU, of.Index
	if at.After(t.last) {
		t.last = at
	}
	ts.touch(t)
}

func (ts *tallies) touch(t *tally) {
	if !t.dirty {
		t.dirty = true
		ts.dirty = append(ts.dirty, t)
	}
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
	ts.rows = slices.DeleteFunc(ts.rows, func(t *tally) bool {
		if !drop(t) {
			return false
		}
		if t.stored > 0 {
			ts.gone = append(ts.gone, t.what)
		}
		return true
	})
	if len(ts.rows) == before {
		return false
	}
	ts.dirty = slices.DeleteFunc(ts.dirty, func(t *tally) bool {
		_, there := ts.search(t.what)
		return !there
	})
	return true
}

func (ts *tallies) has(t *tally) bool {
	i, found := ts.search(t.what)
	return found && ts.rows[i] == t
}

// record is a tally as the store has it.
type record struct {
	Device    device.ID  `json:"device"`
	GPU       device.GPU `json:"gpu"`
	Index     int        `json:"index"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Container string     `json:"container,omitempty"`
	Reason    string     `json:"reason"`
	Count     uint64     `json:"count"`
	Last      time.Time  `json:"last"`
}

func (t *tally) record() record {
	w := t.what
	return record{w.device, t.gpu, t.index, w.owner.Namespace, w.owner.Pod, w.owner.Container, w.reason, t.count, t.last}
}

func (r *record) what() tallied {
	return tallied{r.Device, device.Owner{Namespace: r.Namespace, Pod: r.Pod, Container: r.Container}, r.Reason}
}

// key is under which the store has it. No name has a byte that is 0.
func (t tallied) key() []byte {
	return []byte(strings.Join([]string{string(t.device), t.reason, t.owner.Namespace, t.owner.Pod, t.owner.Container}, "\x00"))
}
