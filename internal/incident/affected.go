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
	// (docs/adr/0004-unknown-holders.md).
	ownerTimeout = time.Minute
	// maxAffected bounds the affected containers of an incident: a device may have many replicas.
	maxAffected = 256
)

// attribute adds the containers with the device at the event, or until just before.
func (t *tracker) attribute(e *trackedIncident, h *device.Allocations, now time.Time) {
	if e.Historical {
		e.AffectedUnknown = true
		return
	}
	seen := recordsOf(h.Recent, e.Device)
	var newestSince time.Time // begin of the newest allocation
	for _, r := range e.allocations {
		if r.Owner == (device.Owner{}) {
			e.unnamedAllocations = append(e.unnamedAllocations, r)
			newestSince = e.First
			continue
		}
		since := earliest(h.At, e.First) // without a record: the allocation is old
		if i := slices.IndexFunc(seen, func(s device.AllocationRecord) bool { return s.Owner == r.Owner }); i >= 0 {
			since = seen[i].FirstSeen
		}
		newestSince = latest(newestSince, since)
		if !since.After(e.First) {
			t.addOwner(e, r.Owner, since, time.Time{})
		}
	}
	for _, s := range seen {
		if ended := releasedAt(s, e.allocations); !ended.IsZero() && wasAffected(e, s, ended, newestSince) {
			t.addOwner(e, s.Owner, s.FirstSeen, s.LastSeen)
		}
	}
	e.OwnersIncomplete, e.ownerDeadline = len(e.unnamedAllocations) > 0, now.Add(ownerTimeout)
	e.AffectedUnknown = len(e.allocations) == 0 && !h.Complete
}

// wasAffected reports whether the event may concern an ended allocation.
//
// The driver reports an Xid within milliseconds: if the device has been allocated again since, the Xid belongs to the newer allocation. The
// cause of a failed check may be older, so both allocations are affected.
func wasAffected(e *trackedIncident, s device.AllocationRecord, ended, newest time.Time) bool {
	if s.FirstSeen.After(e.First) || ended.Before(e.First.Add(-releaseGrace)) {
		return false
	}
	return e.Xid == 0 || ended.After(e.First) || !newest.After(s.LastSeen)
}

// releasedAt returns the end of an allocation; zero: it has not ended.
func releasedAt(s device.AllocationRecord, allocations []device.Allocation) time.Time {
	if slices.ContainsFunc(allocations, func(r device.Allocation) bool { return r.Owner == s.Owner }) {
		return time.Time{}
	}
	if s.EndedAt.IsZero() {
		return s.LastSeen
	}
	return s.EndedAt
}

// addOwner adds an affected container, once.
func (t *tracker) addOwner(e *trackedIncident, o device.Owner, since, until time.Time) {
	known := slices.ContainsFunc(e.Affected, func(h AffectedContainer) bool { return h.owner() == o })
	if known || len(e.Affected) == maxAffected {
		return
	}
	t.addAffected(e, AffectedContainer{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, Since: since, Until: until})
}

// resolveOwners adds the containers that the kubelet has named since the event: the allocation history has the begin of each allocation, so
// later allocations are left out.
func (t *tracker) resolveOwners(e *trackedIncident, h *device.Allocations, now time.Time) {
	allocations := h.ForDevice(e.Device)
	endedOwners := 0
	for _, s := range recordsOf(h.Recent, e.Device) {
		ended := releasedAt(s, allocations)
		had := !s.FirstSeen.After(e.First) && (ended.IsZero() || ended.After(e.First))
		if had && !slices.ContainsFunc(e.Affected, func(o AffectedContainer) bool { return o.owner() == s.Owner }) {
			until := time.Time{}
			if !ended.IsZero() {
				until = s.LastSeen
				endedOwners++
			}
			t.addOwner(e, s.Owner, s.FirstSeen, until)
		}
	}
	remaining := slices.DeleteFunc(slices.Clone(e.unnamedAllocations), func(u device.Allocation) bool {
		i := slices.IndexFunc(allocations, func(r device.Allocation) bool { return r.Resource == u.Resource && r.DeviceID == u.DeviceID })
		if i >= 0 && (allocations[i].Owner == (device.Owner{}) || slices.ContainsFunc(e.Affected, func(o AffectedContainer) bool { return o.owner() == allocations[i].Owner })) {
			return allocations[i].Owner != (device.Owner{})
		}
		endedOwners-- // named, and ended
		return endedOwners >= 0
	})
	if len(remaining) < len(e.unnamedAllocations) {
		e.unnamedAllocations = remaining
		if len(remaining) == 0 {
			e.OwnersIncomplete = false
			e.allocations = slices.Clone(allocations) // the next event may repeat this incident
		}
		t.markChanged()
	}
	if now.After(e.ownerDeadline) || len(allocations) == 0 && h.Complete {
		e.unnamedAllocations = nil
	}
}

// addOwnersOfLostDevice adds the containers that the kubelet first names after the device is gone, as after a restart of podgauge. A device
// that is gone is never allocated, so its allocations are older than the event.
func (t *tracker) addOwnersOfLostDevice(e *trackedIncident, h *device.Allocations, now time.Time) {
	if e.Reason != device.ReasonGone || e.RecoveredAt != nil || now.After(e.ownerDeadline) {
		return
	}
	allocations := h.ForDevice(e.Device)
	for _, s := range recordsOf(h.Recent, e.Device) {
		if releasedAt(s, allocations).IsZero() {
			t.addOwner(e, s.Owner, s.FirstSeen, time.Time{})
		}
	}
	if h.Complete && len(e.Affected) > 0 {
		e.AffectedUnknown, e.allocations = false, slices.Clone(allocations)
		t.markChanged()
	}
}

// updateAffected applies the newest allocations: missing owners, and the ends of allocations.
func (t *tracker) updateAffected(h *device.Allocations, now time.Time) {
	for _, e := range t.entries {
		if len(e.unnamedAllocations) > 0 {
			t.resolveOwners(e, h, now)
		}
		if e.AffectedUnknown {
			t.addOwnersOfLostDevice(e, h, now)
		}
		t.updateUntil(e, h)
	}
}

// updateUntil sets the end of allocations.
func (t *tracker) updateUntil(e *trackedIncident, h *device.Allocations) {
	for i, o := range e.Affected {
		if !o.Until.IsZero() {
			continue
		}
		allocations := h.ForDevice(e.Device)
		seen := recordsOf(h.Recent, e.Device)
		s := device.AllocationRecord{LastSeen: e.Last} // without a record: allocated at the event
		if k := slices.IndexFunc(seen, func(s device.AllocationRecord) bool { return s.Owner == o.owner() }); k >= 0 {
			s = seen[k]
		}
		ownerReplaced := s.FirstSeen.After(latest(e.Last, o.Since)) && !e.fromEarlierProcess // by a container of the same name
		allocated := slices.ContainsFunc(allocations, func(r device.Allocation) bool { return r.Owner == o.owner() })
		if allocated && !ownerReplaced {
			continue
		}
		if !ownerReplaced && s.EndedAt.IsZero() && !h.Complete {
			continue // unknown: a starting kubelet lists pods one after the other
		}
		if ownerReplaced {
			s.LastSeen = e.Last
		}
		e.Affected = slices.Clone(e.Affected)
		e.Affected[i].Until = latest(s.LastSeen, o.Since)
		t.markChanged()
	}
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

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
