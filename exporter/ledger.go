package exporter

import (
	"slices"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
)

// maxOwners is how many owners of a device keep their counts, as many as podresources
// remembers. The count of no owner is kept besides.
const maxOwners = 8

// ledger attributes what a device's counters rise by to the owner of the device at that time
// (docs/adr/0003-holder-counters.md). The counts of all owners that a device ever had sum up to
// what its own counter rose by since it was first read.
//
// What a counter rises by between two readings is due to the owner at the first of them. At an
// Allocate the counters are read at once: that reading ends the predecessor's share, also where
// a collection is under way that read the device before. From then on the rise waits until the
// allocation has an owner. It counts for no owner if the device is allocated again before that.
type ledger struct {
	// index is the place of a row of Sources.Metrics among those that are attributed; -1: it
	// is not.
	index []int
	count int // of those that are
	rates rates

	mu sync.Mutex
	// devices are guarded by mu. Collections do not overlap, but an Allocate may come at any time.
	devices map[device.ID]*deviceCounters
}

// deviceCounters are the attributed counters of one device.
type deviceCounters struct {
	counters []ownerCounter
	nobody   *account   // of no owner, and of several at a time
	owners   []*account // the most recent one first
	// awaited are readings that an Allocate asked for and that have not come, and cut says that
	// one has come since the collection began. The collection's own reading may be older.
	awaited int
	cut     bool
}

// ownerCounter is one counter of a device.
type ownerCounter struct {
	read    bool
	raw     float64  // the device's own counter at the last reading
	due     *account // the owner's at the last reading, of which the account may be dropped since
	unnamed bool     // the owner at the last reading has no name yet
	waiting float64  // that owner's share
	anew    bool     // the device was allocated again since, and could not be read then
}

// account is what counters of a device rose by for one owner.
type account struct {
	owner device.Owner
	sums  []float64
}

func newLedger(metrics []device.Metric) *ledger {
	l := &ledger{index: make([]int, len(metrics)), rates: rates{}, devices: map[device.ID]*deviceCounters{}}
	for i, m := range metrics {
		l.index[i] = -1
		if m.Kind == device.HolderCounter {
			l.index[i] = l.count
			l.count++
		}
	}
	return l
}

// begin starts a collection: from now on readings are newer than those that came before.
func (l *ledger) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.devices {
		d.cut = false
	}
}

// await announces a reading for an Allocate, which take brings. Until then no other counts.
func (l *ledger) await(ids []device.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.device(id).awaited++
	}
}

// take ends the shares of those who had the devices, at a reading made for an Allocate. If the
// reading failed, the next one has to do.
func (l *ledger) take(ids []device.ID, r device.Reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		d := l.device(id)
		d.awaited--
		for i := range d.counters {
			d.counters[i].anew = d.counters[i].unnamed
		}
		if r.Err != nil {
			continue
		}
		d.cut = true
		for _, s := range r.Samples {
			if i := l.index[s.Metric]; i >= 0 && s.Device == id {
				d.book(i, s.Value, d.nobody, true)
			}
		}
	}
}

// book takes in a collection's reading and returns the owner's count. An unknown owner is none:
// the rise is counted without labels, once, and stays there when the owner is known.
func (l *ledger) book(id device.ID, row int, raw float64, hold device.Hold, owner device.Owner) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, i := l.device(id), l.index[row]
	a := d.account(owner)
	if !d.counters[i].read || d.awaited == 0 && !d.cut {
		d.book(i, raw, a, hold == device.Unnamed)
	}
	return a.sums[i]
}

func (l *ledger) device(id device.ID) *deviceCounters {
	d := l.devices[id]
	if d == nil {
		d = &deviceCounters{counters: make([]ownerCounter, l.count), nobody: &account{sums: make([]float64, l.count)}}
		l.devices[id] = d
	}
	return d
}

// account returns an owner's, a new one from 0. Beyond the limit the owner who was not there for
// longest loses its account: its series has ended, and it begins at 0 if it returns.
func (d *deviceCounters) account(owner device.Owner) *account {
	if owner == (device.Owner{}) {
		return d.nobody
	}
	i := slices.IndexFunc(d.owners, func(a *account) bool { return a.owner == owner })
	if i == 0 {
		return d.owners[0]
	}
	a := &account{owner: owner}
	switch {
	case i > 0:
		a = d.owners[i]
	case len(d.owners) < maxOwners:
		i = len(d.owners)
		d.owners = append(d.owners, nil)
	default:
		i = maxOwners - 1
	}
	if a.sums == nil {
		a.sums = make([]float64, len(d.counters))
	}
	copy(d.owners[1:i+1], d.owners[:i])
	d.owners[0] = a
	return a
}

// book takes in a reading from which on the rise is due to the account's owner; unnamed: to one
// whose name is to come.
func (d *deviceCounters) book(i int, raw float64, to *account, unnamed bool) {
	c := &d.counters[i]
	rose := raw - c.raw
	if rose < 0 { // the driver was loaded again, and its counter began at 0
		rose = raw
	}
	switch {
	case !c.read:
	case !c.unnamed:
		c.due.sums[i] += rose
	case c.anew:
		d.nobody.sums[i] += c.waiting + rose
		c.waiting = 0
	case unnamed:
		c.waiting += rose
	default:
		to.sums[i] += c.waiting + rose
		c.waiting = 0
	}
	c.read, c.raw, c.due, c.unnamed, c.anew = true, raw, to, unnamed, false
}
