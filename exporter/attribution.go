package exporter

import (
	"slices"
	"sync"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
)

// maxOwners bounds the owners of a device with counts, as podresources bounds
// recent allocations. The count without owner is extra.
const maxOwners = 8

// attribution attributes the increase of a device's counters to the owner at
// that time (docs/contributing/adr/0003-owner-counters.md). The counts of all
// owners of a device sum up to the increase since its first reading.
//
// The increase between two readings belongs to the owner at the first one. Each
// Allocate triggers a reading, which ends the share of the previous owner even
// if a running collection has read the device before. If that reading is late,
// the reading of a collection that began after the Allocate replaces it. The
// increase after an Allocate is pending until the allocation has an owner. If
// the device is allocated again before that, the increase belongs to no owner.
type attribution struct {
	index    []int // of each row of Sources.Metrics among the attributed rows; -1: not attributed
	rowCount int   // attributed rows

	mu         sync.Mutex // an Allocate may come during a collection
	devices    map[device.ID]*deviceCounters
	events     uint64 // Allocates, arrivals of their readings, and begins of collections
	collection uint64 // begin of the running collection among the events
}

// deviceCounters are the attributed counters of one device.
type deviceCounters struct {
	counters     []attributedCounter
	unattributed *ownerCounters   // without an owner, or with several
	owners       []*ownerCounters // the most recent one first
	// lastAllocate is the latest Allocate among the events, or the arrival of
	// its reading. Readings of earlier Allocates and collections may be older.
	lastAllocate uint64
	// lastCollection is the latest collection with a reading.
	lastCollection uint64
}

// attributedCounter is one counter of a device, as of the latest reading.
type attributedCounter struct {
	hasReading  bool
	lastRaw     float64        // of the device
	lastOwner   *ownerCounters // possibly dropped from deviceCounters.owners since
	lastUnnamed bool           // the owner has no name yet
	pending     float64        // share of the unnamed owner
	reallocated bool           // allocated again since the latest reading
}

// ownerCounters are the increases of a device's counters for one owner.
type ownerCounters struct {
	owner allocation.Owner
	sums  []float64
}

func newAttribution(metrics []device.Metric) *attribution {
	a := &attribution{index: make([]int, len(metrics)), devices: map[device.ID]*deviceCounters{}}
	for i, m := range metrics {
		a.index[i] = -1
		if m.Kind == device.OwnerCounter {
			a.index[i] = a.rowCount
			a.rowCount++
		}
	}
	return a
}

// beginCollection marks the begin of a collection.
func (a *attribution) beginCollection() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events++
	a.collection = a.events
}

// beginAllocate marks an Allocate of devices, which addAllocateReading has to follow.
func (a *attribution) beginAllocate(ids []device.ID) (event uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events++
	for _, id := range ids {
		d := a.countersOf(id)
		d.lastAllocate = a.events
		for i := range d.counters {
			d.counters[i].reallocated = d.counters[i].lastUnnamed
		}
	}
	return a.events
}

// addAllocateReading ends the shares of the devices' previous owners, unless a
// later Allocate or collection does. If the reading failed, the next one ends
// them.
func (a *attribution) addAllocateReading(event uint64, ids []device.ID, r health.Reading) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		d := a.countersOf(id)
		if r.Err != nil || d.lastAllocate > event || d.lastCollection > event {
			continue
		}
		a.events++
		d.lastAllocate = a.events
		for _, s := range r.Samples {
			if i := a.index[s.Metric]; i >= 0 && s.Device == id {
				d.add(i, s.Value, d.unattributed, true)
			}
		}
	}
}

// add adds a collection's reading and returns the owner's count. While the
// owner is unknown, the increase belongs to no owner, also after the owner is
// known again.
func (a *attribution) add(s device.Sample, state allocation.State, owner allocation.Owner) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	d, i := a.countersOf(s.Device), a.index[s.Metric]
	counters := d.forOwner(owner)
	if a.collection >= d.lastAllocate {
		d.lastCollection = a.collection
		d.add(i, s.Value, counters, state == allocation.OwnerUnknown)
	}
	return counters.sums[i]
}

func (a *attribution) countersOf(id device.ID) *deviceCounters {
	d := a.devices[id]
	if d == nil {
		d = &deviceCounters{
			counters:     make([]attributedCounter, a.rowCount),
			unattributed: &ownerCounters{sums: make([]float64, a.rowCount)},
		}
		a.devices[id] = d
	}
	return d
}

// forOwner returns the counters of an owner, from 0 for a new one. At the limit
// it drops the least recent owner, whose series has ended and restarts at 0.
func (d *deviceCounters) forOwner(owner allocation.Owner) *ownerCounters {
	if owner == (allocation.Owner{}) {
		return d.unattributed
	}
	var counters *ownerCounters
	i := slices.IndexFunc(d.owners, func(counters *ownerCounters) bool { return counters.owner == owner })
	if i >= 0 {
		counters = d.owners[i]
		d.owners = slices.Delete(d.owners, i, i+1)
	} else {
		counters = &ownerCounters{owner, make([]float64, len(d.counters))}
	}
	d.owners = slices.Insert(d.owners[:min(len(d.owners), maxOwners-1)], 0, counters)
	return counters
}

// add adds a reading. The increase from now on belongs to owner, or to an owner without a name yet.
func (d *deviceCounters) add(i int, raw float64, owner *ownerCounters, unnamed bool) {
	c := &d.counters[i]
	increase := raw - c.lastRaw
	if increase < 0 { // the driver was reloaded and restarted its counter at 0
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
	c.hasReading = true
	c.lastRaw = raw
	c.lastOwner = owner
	c.lastUnnamed = unnamed
	c.reallocated = false
}
