package incident

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// maxAffected bounds the affected containers of an incident: a device may have
// many replicas.
const maxAffected = 128

// trackedIncident is an Incident with its private state. Published parts of the
// Incident (Affected and pointers) are replaced, never written.
type trackedIncident struct {
	Incident
	startedAt          time.Time               // the first event that affected the containers without Last
	software           bool                    // as in xid.BySoftware
	merged             bool                    // with the incidents that it repeats
	deviceIDs          []device.ID             // of the affected devices
	allocations        []allocation.Allocation // of each of them at the event
	unnamedAllocations []allocation.Allocation // those without an owner, until ownerDeadline
	ownerDeadline      time.Time

	recordedAt         time.Time // time of the newest Record; zero: of an earlier process
	fromEarlierProcess bool
	changed            bool       // since the last snapshot
	counters           counterSet // of the tracker
}

// count counts an event.
func (e *trackedIncident) count(o *device.HealthEvent, now time.Time) {
	e.Count++
	e.recordedAt = now
	e.First, e.Last = earliest(e.First, o.At), latest(e.Last, o.At)
	e.MarkedUnhealthy = e.MarkedUnhealthy || o.MarkedUnhealthy
	e.changed = true
	if !e.isCounted() {
		return
	}
	e.counters.add(&e.Incident, e.Device, allocation.Owner{}, 1, o.At)
	for _, c := range e.Affected {
		if c.Last.IsZero() {
			e.counters.add(&e.Incident, e.DeviceOf(c), c.Owner, 1, o.At)
		}
	}
}

// addAffected adds an affected container, once.
func (e *trackedIncident) addAffected(s allocation.Record, until time.Time) {
	if len(e.Affected) == maxAffected || e.isAffected(s.Owner, s.Device) {
		return
	}
	c := AffectedContainer{Owner: s.Owner, Since: s.FirstSeen, Until: until}
	if s.Device != e.Device {
		c.Device = s.Device
	}
	e.Affected = append(slices.Clone(e.Affected), c)
	e.changed = true
	if e.isCounted() {
		e.counters.add(&e.Incident, s.Device, s.Owner, e.Count, e.Last)
	}
}

func (e *trackedIncident) isAffected(o allocation.Owner, id device.ID) bool {
	return slices.ContainsFunc(e.Affected, func(c AffectedContainer) bool {
		return c.Owner == o && e.DeviceOf(c) == id
	})
}

// setAffected replaces an affected container.
func (e *trackedIncident) setAffected(i int, c AffectedContainer) {
	e.Affected = slices.Clone(e.Affected) // the list is published
	e.Affected[i] = c
	e.changed = true
}

// currentAllocations returns the allocations of each affected device, in the
// order of deviceIDs.
func (e *trackedIncident) currentAllocations(h *allocation.Snapshot) (rows []allocation.Allocation) {
	for _, id := range e.deviceIDs {
		rows = append(rows, h.ForDevice(id)...)
	}
	return rows
}

// isNeededLess reports whether an incident is removed before another, older one.
func (e *trackedIncident) isNeededLess(o *trackedIncident, byNamespace map[string]int) bool {
	if e.isOpen() != o.isOpen() {
		return !e.isOpen()
	}
	return byNamespace[e.namespace()] > byNamespace[o.namespace()]
}

// namespace returns the namespace of the first affected container; empty: none.
func (e *trackedIncident) namespace() string {
	if len(e.Affected) == 0 {
		return ""
	}
	return e.Affected[0].Namespace
}

// isCounted reports whether counters have the events: those since the start,
// except the operator's decision to retire a device.
func (e *trackedIncident) isCounted() bool { return !e.Historical && e.Reason != device.ReasonRetired }

// isOpen reports whether the device has not recovered yet.
func (e *trackedIncident) isOpen() bool { return e.MarkedUnhealthy && e.RecoveredAt == nil }

// counterKey identifies the counter of a device, or of an affected container.
type counterKey struct {
	device device.ID
	owner  allocation.Owner // empty: of the device
	reason string
}

// counterSet has the counters of the devices and containers that incidents
// name. A process starts with the series that the earlier one had.
type counterSet map[counterKey]*EventCount

// add adds n events of an incident to the counter of a device, or of a
// container with the device.
func (s counterSet) add(i *Incident, id device.ID, o allocation.Owner, n uint64, at time.Time) {
	key := counterKey{id, o, i.Reason}
	c := s[key]
	if c == nil {
		c = &EventCount{Device: id, Owner: o, Reason: i.Reason}
		s[key] = c
	}
	c.Count += n
	c.GPU = i.GPU
	c.Index = i.Index
	c.Last = latest(c.Last, at)
}

// BySoftware reports whether the counted events are errors of software, which
// leave the device usable.
func (c *EventCount) BySoftware() bool { return xid.BySoftware(c.Reason) }

// retain removes the counters that no incident names, and reports whether there
// were any.
func (s counterSet) retain(incidents []Incident) (changed bool) {
	named := map[counterKey]bool{}
	for _, i := range incidents {
		named[counterKey{i.Device, allocation.Owner{}, i.Reason}] = true
		for _, c := range i.Affected {
			named[counterKey{i.DeviceOf(c), c.Owner, i.Reason}] = true
		}
	}
	before := len(s)
	maps.DeleteFunc(s, func(key counterKey, _ *EventCount) bool { return !named[key] })
	return len(s) < before
}

// counts returns copies of the counters of devices, and of those of affected
// containers, in order.
func (s counterSet) counts() (devices, affected []EventCount) {
	for _, c := range s {
		if c.Pod == "" {
			devices = append(devices, *c)
		} else {
			affected = append(affected, *c)
		}
	}
	order := func(a, b EventCount) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), a.Compare(b.Owner), cmp.Compare(a.Reason, b.Reason))
	}
	slices.SortFunc(devices, order)
	slices.SortFunc(affected, order)
	return devices, affected
}

func latest(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{b, a}, time.Time.Compare) }

func earliest(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{b, a}, time.Time.Compare) }
