package incident

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// releaseGrace is how long before a report a container may have lost the device, and be
	// hit all the same: what the driver says nothing of, a check finds, and a GPU that seems
	// well is checked every five seconds (checkEvery in device/monitor.go). Its crash may be
	// all that shows until then, and a pod is gone within a second of that.
	releaseGrace = 5 * time.Second
	// ownerTimeout is how long a name is waited for. The kubelet names an allocation within
	// milliseconds; one that was restarted may take a minute (docs/adr/0004-unknown-holders.md).
	ownerTimeout = time.Minute
	// maxAffected bounds those of one incident: replicas of a device may be many.
	maxAffected = 256
)

// attribute names those who had the device when e was reported, or until just before.
func (t *tracker) attribute(e *trackedIncident, h *device.Allocations, now time.Time) {
	if e.Historical {
		e.AffectedUnknown = true
		return
	}
	seen := recordsOf(h.Recent, e.Device)
	var newestSince time.Time // when the newest of the holders of now got it
	for _, r := range e.allocations {
		if r.Owner == (device.Owner{}) {
			e.unnamedAllocations = append(e.unnamedAllocations, r)
			newestSince = e.First
			continue
		}
		since := earliest(h.At, e.First) // where the history has forgotten him, he has had it for long
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

// wasAffected tells whether somebody who has the device no more may have been hit.
// The driver reports an error within milliseconds, so where the device has been given to
// somebody else since, it is the error of that one. What a check finds may have happened
// while either had it.
func wasAffected(e *trackedIncident, s device.AllocationRecord, ended, newest time.Time) bool {
	if s.FirstSeen.After(e.First) || ended.Before(e.First.Add(-releaseGrace)) {
		return false
	}
	return e.Xid == 0 || ended.After(e.First) || !newest.After(s.LastSeen)
}

// releasedAt is when somebody was known not to have the device any more; zero where he has it.
func releasedAt(s device.AllocationRecord, allocations []device.Allocation) time.Time {
	if slices.ContainsFunc(allocations, func(r device.Allocation) bool { return r.Owner == s.Owner }) {
		return time.Time{}
	}
	if s.EndedAt.IsZero() {
		return s.LastSeen
	}
	return s.EndedAt
}

// addOwner adds a holder, once.
func (t *tracker) addOwner(e *trackedIncident, o device.Owner, since, until time.Time) {
	known := slices.ContainsFunc(e.Affected, func(h AffectedContainer) bool { return h.owner() == o })
	if known || len(e.Affected) == maxAffected {
		return
	}
	t.addAffected(e, AffectedContainer{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container, Since: since, Until: until})
}

// resolveOwners names those of whom it is known only now that they had the device then: the
// kubelet names a holder when Allocate has returned, and the history says since when he
// has had it. Who got it later is named by no answer.
func (t *tracker) resolveOwners(e *trackedIncident, h *device.Allocations, now time.Time) {
	allocations := h.ForDevice(e.Device)
	endedOwners := 0 // of those who have it no more
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
		endedOwners-- // it was named, and has ended
		return endedOwners >= 0
	})
	if len(remaining) < len(e.unnamedAllocations) {
		e.unnamedAllocations = remaining
		if len(remaining) == 0 {
			e.OwnersIncomplete = false
			e.allocations = slices.Clone(allocations) // whose error the next report is as well
		}
		t.markChanged()
	}
	if now.After(e.ownerDeadline) || len(allocations) == 0 && h.Complete {
		e.unnamedAllocations = nil
	}
}

// addOwnersOfLostDevice adds the containers that the kubelet first names after their device is gone, as
// after a restart of podgauge. A device that is gone is never allocated, so they had it before.
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

// updateAffected takes in who holds what now: names that were missing, and ends.
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

// updateUntil notes until when the holders had the device.
func (t *tracker) updateUntil(e *trackedIncident, h *device.Allocations) {
	for i, o := range e.Affected {
		if !o.Until.IsZero() {
			continue
		}
		allocations := h.ForDevice(e.Device)
		seen := recordsOf(h.Recent, e.Device)
		s := device.AllocationRecord{LastSeen: e.Last} // when it was known to have it
		if k := slices.IndexFunc(seen, func(s device.AllocationRecord) bool { return s.Owner == o.owner() }); k >= 0 {
			s = seen[k]
		}
		ownerReplaced := s.FirstSeen.After(latest(e.Last, o.Since)) && !e.fromEarlierProcess // of that name
		allocated := slices.ContainsFunc(allocations, func(r device.Allocation) bool { return r.Owner == o.owner() })
		if allocated && !ownerReplaced {
			continue
		}
		if !ownerReplaced && s.EndedAt.IsZero() && !h.Complete {
			continue // nobody can tell: a kubelet that comes up names one after the other
		}
		if ownerReplaced {
			s.LastSeen = e.Last
		}
		e.Affected = slices.Clone(e.Affected)
		e.Affected[i].Until = latest(s.LastSeen, o.Since)
		t.markChanged()
	}
}

// recordsOf are those who were seen with a device, of rows in the order of Holders.Recent.
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
