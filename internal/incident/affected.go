package incident

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// releaseGrace is how long before a failed check an affected container may have released the device: checks run every five seconds
	// (checkInterval in internal/device), and a crashed pod is gone within a second.
	releaseGrace = 5 * time.Second
	// ownerTimeout bounds the wait for an owner. The kubelet names the owner within milliseconds, after a restart within a minute
	// (docs/contributing/adr/0004-unknown-owners.md).
	ownerTimeout = time.Minute
	// maxAffected bounds the affected containers of an incident: a device may have many replicas.
	maxAffected = 256
)

// attribute adds the containers with an affected device at the event, or until just before, as far as the kubelet has named them. The
// history has the begin of each allocation, so later allocations are left out. A device that is gone is never allocated: if the
// allocations at the event are unknown, the present ones are older.
func (t *tracker) attribute(e *trackedIncident, h *device.Allocations) {
	for _, id := range e.deviceIDs {
		t.attributeDevice(e, id, h)
	}
}

func (t *tracker) attributeDevice(e *trackedIncident, id device.ID, h *device.Allocations) {
	allocations, records := h.ForDevice(id), recordsOf(h.Recent, id)
	var newestSince time.Time // begin of the newest allocation
	if slices.ContainsFunc(e.unnamedAllocations, func(u device.Allocation) bool { return u.DeviceID.Device() == id }) {
		newestSince = e.startedAt
	}
	for _, s := range records {
		if !s.FirstSeen.After(e.startedAt) {
			newestSince = latest(newestSince, s.FirstSeen)
		}
	}
	for _, s := range records {
		allocated := slices.ContainsFunc(allocations, func(r device.Allocation) bool { return r.Owner == s.Owner })
		switch {
		case !allocated && wasAffected(e, s, newestSince):
			t.addAffected(e, s, s.LastSeen)
		case allocated && (!s.FirstSeen.After(e.startedAt) || e.AffectedUnknown && e.Reason == device.ReasonGone):
			t.addAffected(e, s, time.Time{})
		}
	}
}

// wasAffected reports whether the event may concern an ended allocation.
//
// The driver reports an Xid within milliseconds: if the device has been allocated again since, the Xid belongs to the newer allocation. The
// cause of a failed check may be older, so both allocations are affected.
func wasAffected(e *trackedIncident, s device.AllocationRecord, newest time.Time) bool {
	ended := cmp.Or(s.EndedAt, s.LastSeen)
	if s.FirstSeen.After(e.startedAt) || ended.Before(e.startedAt.Add(-releaseGrace)) {
		return false
	}
	return e.Xid == 0 || ended.After(e.startedAt) || !newest.After(s.LastSeen)
}

// addAffected adds an affected container, once.
func (t *tracker) addAffected(e *trackedIncident, s device.AllocationRecord, until time.Time) {
	if len(e.Affected) == maxAffected || e.isAffected(s.Owner, s.Device) {
		return
	}
	c := AffectedContainer{Owner: s.Owner, Since: s.FirstSeen, Until: until}
	if s.Device != e.Device {
		c.Device = s.Device
	}
	e.Affected = append(slices.Clone(e.Affected), c)
	t.changed = true
	if e.isCounted() {
		t.counters.add(e, s.Device, s.Owner, e.Count, e.Last)
	}
}

func (e *trackedIncident) isAffected(o device.Owner, id device.ID) bool {
	return slices.ContainsFunc(e.Affected, func(c AffectedContainer) bool { return c.Owner == o && e.DeviceOf(c) == id })
}

// resolveOwners adds the containers that the kubelet has named since the event. Of a device that is gone, the kubelet may name them after
// a restart of podgauge.
func (t *tracker) resolveOwners(e *trackedIncident, h *device.Allocations, now time.Time) {
	lost := e.AffectedUnknown && e.Reason == device.ReasonGone && e.RecoveredAt == nil && !now.After(e.ownerDeadline)
	if len(e.unnamedAllocations) == 0 && !lost {
		return
	}
	known := len(e.Affected)
	t.attribute(e, h)
	allocations, endedOwners := e.currentAllocations(h), 0
	for _, c := range e.Affected[known:] {
		if !c.Until.IsZero() {
			endedOwners++
		}
	}
	e.unnamedAllocations = slices.DeleteFunc(e.unnamedAllocations, func(u device.Allocation) bool {
		i := slices.IndexFunc(allocations, func(r device.Allocation) bool { return r.Resource == u.Resource && r.DeviceID == u.DeviceID })
		if i >= 0 && (allocations[i].Owner == (device.Owner{}) || e.isAffected(allocations[i].Owner, u.DeviceID.Device())) {
			return allocations[i].Owner != (device.Owner{})
		}
		endedOwners-- // named, and ended
		return endedOwners >= 0
	})
	if len(e.unnamedAllocations) == 0 && (!lost || h.Complete && len(e.Affected) > 0) {
		e.OwnersIncomplete, e.AffectedUnknown = false, false
		e.allocations = allocations // the next event may repeat this incident
		t.changed = true
	}
	if now.After(e.ownerDeadline) || len(allocations) == 0 && h.Complete {
		e.unnamedAllocations = nil
	}
}

// updateAffected applies the newest allocations: missing owners, and the ends of allocations.
func (t *tracker) updateAffected(h *device.Allocations, now time.Time) {
	for _, e := range t.entries {
		t.resolveOwners(e, h, now)
		for i, o := range e.Affected {
			if !o.Until.IsZero() {
				continue
			}
			id := e.DeviceOf(o)
			seen := recordsOf(h.Recent, id)
			s := device.AllocationRecord{LastSeen: e.Last} // without a record: allocated at the event
			if k := slices.IndexFunc(seen, func(s device.AllocationRecord) bool { return s.Owner == o.Owner }); k >= 0 {
				s = seen[k]
			}
			ownerReplaced := s.FirstSeen.After(latest(e.Last, o.Since)) && !e.fromEarlierProcess // by a container of the same name
			allocated := slices.ContainsFunc(h.ForDevice(id), func(r device.Allocation) bool { return r.Owner == o.Owner })
			if ownerReplaced {
				s.LastSeen = e.Last
			} else if allocated || s.EndedAt.IsZero() && !h.Complete { // unknown: a starting kubelet lists pods one after the other
				continue
			}
			o.Until = latest(s.LastSeen, o.Since)
			t.setAffected(e, i, o)
		}
	}
}

// setAffected replaces an affected container.
func (t *tracker) setAffected(e *trackedIncident, i int, c AffectedContainer) {
	e.Affected = slices.Clone(e.Affected) // the list is published
	e.Affected[i] = c
	t.changed = true
}

// recordsOf returns the records of a device. The rows are ordered as device.Allocations.Recent.
func recordsOf(recent []device.AllocationRecord, id device.ID) []device.AllocationRecord {
	start, _ := slices.BinarySearchFunc(recent, id, func(s device.AllocationRecord, id device.ID) int { return cmp.Compare(s.Device, id) })
	end := start
	for end < len(recent) && recent[end].Device == id {
		end++
	}
	return recent[start:end]
}

func latest(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{b, a}, time.Time.Compare) }

func earliest(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{b, a}, time.Time.Compare) }
