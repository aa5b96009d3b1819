package exporter

import (
	"slices"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
)

// maxOwners is how many owners of a device keep their counts, as many as podresources
// remembers. The count of no owner is kept besides.
const maxOwners = 8

// attribution attributes what a device's counters rise by to the owner of the device at that time
// (docs/adr/0003-holder-counters.md). The counts of all owners that a device ever had sum up to
// what its own counter rose by since it was first read.
//
// What a counter rises by between two readings is due to the owner at the first of them. At an
// Allocate the counters are read at once: that reading ends the predecessor's share, also where
// a collection is under way that read the device before. From then on the rise waits until the
// allocation has an owner. It counts for no owner if the device is allocated again before that.
type attribution struct {
	// index is the place of a row of Sources.Metrics among those that are attributed; -1: it
	// is not.
	index    []int
	rowCount int // of those that are
	rates    rateTracker

	mu sync.Mutex
	// devices are guarded by mu. Collections do not overlap, but an Allocate may come at any time.
	devices map[device.ID]*deviceCounters
}

// deviceCounters are the attributed counters of one device.
type deviceCounters struct {
	counters     []attributedCounter
	unattributed *ownerCounters   // of no owner, and of several at a time
	owners       []*ownerCounters // the most recent one first
	// pendingReadings are readings that an Allocate asked for and that have not come, and cut says that
	// one has come since the collection began. The collection's own reading may be older.
	pendingReadings int
	readSinceBegin  bool
}

// attributedCounter is one counter of a device.
type attributedCounter struct {
	hasReading  bool
	lastRaw     float64        // the device's own counter at the last reading
	lastOwner   *ownerCounters // the owner's at the last reading, of which the account may be dropped since
	lastUnnamed bool           // the owner at the last reading has no name yet
	pending     float64        // that owner's share
	reallocated bool           // the device was allocated again since, and could not be read then
}

// ownerCounters is what counters of a device rose by for one owner.
type ownerCounters struct {
	owner device.Owner
	sums  []float64
}

func newAttribution(metrics []device.Metric) *attribution {
	a := &attribution{index: make([]int, len(metrics)), rates: rateTracker{}, devices: map[device.ID]*deviceCounters{}}
	for i, m := range metrics {
		a.index[i] = -1
		if m.Kind == device.OwnerCounter {
			a.index[i] = a.rowCount
			a.rowCount++
		}
	}
	return a
}

// beginCollection starts a collection: from now on readings are newer than those that came before.
func (a *attribution) beginCollection() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range a.devices {
		d.readSinceBegin = false
	}
}

// expectAllocateReading announces a reading for an Allocate, which take brings. Until then no other counts.
func (a *attribution) expectAllocateReading(ids []device.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		a.countersOf(id).pendingReadings++
	}
}

// addAllocateReading ends the shares of those who had the devices, at a reading made for an Allocate. If the
// reading failed, the next one has to do.
func (a *attribution) addAllocateReading(ids []device.ID, r device.Reading) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		d := a.countersOf(id)
		d.pendingReadings--
		for i := range d.counters {
			d.counters[i].reallocated = d.counters[i].lastUnnamed
		}
		if r.Err != nil {
			continue
		}
		d.readSinceBegin = true
		for _, s := range r.Samples {
			if i := a.index[s.Metric]; i >= 0 && s.Device == id {
				d.add(i, s.Value, d.unattributed, true)
			}
		}
	}
}

// add takes in a collection's reading and returns the owner's count. An unknown owner is none:
// the rise is counted without labels, once, and stays there when the owner is known.
func (a *attribution) add(id device.ID, row int, raw float64, state device.AllocationState, owner device.Owner) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	d, i := a.countersOf(id), a.index[row]
	counters := d.forOwner(owner)
	if !d.counters[i].hasReading || d.pendingReadings == 0 && !d.readSinceBegin {
		d.add(i, raw, counters, state == device.AllocatedOwnerUnknown)
	}
	return counters.sums[i]
}

func (a *attribution) countersOf(id device.ID) *deviceCounters {
	d := a.devices[id]
	if d == nil {
		d = &deviceCounters{counters: make([]attributedCounter, a.rowCount), unattributed: &ownerCounters{sums: make([]float64, a.rowCount)}}
		a.devices[id] = d
	}
	return d
}

// forOwner returns an owner's, a new one from 0. Beyond the limit the owner who was not there for
// longest loses its account: its series has ended, and it begins at 0 if it returns.
func (d *deviceCounters) forOwner(owner device.Owner) *ownerCounters {
	if owner == (device.Owner{}) {
		return d.unattributed
	}
	i := slices.IndexFunc(d.owners, func(counters *ownerCounters) bool { return counters.owner == owner })
	if i == 0 {
		return d.owners[0]
	}
	counters := &ownerCounters{owner: owner}
	switch {
	case i > 0:
		counters = d.owners[i]
	case len(d.owners) < maxOwners:
		i = len(d.owners)
		d.owners = append(d.owners, nil)
	default:
		i = maxOwners - 1
	}
	if counters.sums == nil {
		counters.sums = make([]float64, len(d.counters))
	}
	copy(d.owners[1:i+1], d.owners[:i])
	d.owners[0] = counters
	return counters
}

// add takes in a reading from which on the rise is due to the account's owner; unnamed: to one
// whose name is to come.
func (d *deviceCounters) add(i int, raw float64, owner *ownerCounters, unnamed bool) {
	c := &d.counters[i]
	increase := raw - c.lastRaw
	if increase < 0 { // the driver was loaded again, and its counter began at 0
		increase = raw
	}
	switch {
	case !c.hasReading:
	case !c.lastUnnamed:
		c.lastOwner.sums[i] += increase
	case c.reallocated:
		d.unattributed.sums[i] += c.pending + increase
		c.pending = 0
	case unnamed:
		c.pending += increase
	default:
		owner.sums[i] += c.pending + increase
		c.pending = 0
	}
	c.hasReading, c.lastRaw, c.lastOwner, c.lastUnnamed, c.reallocated = true, raw, owner, unnamed, false
}
