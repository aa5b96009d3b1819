package incident

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	// releaseGrace is how long before a failed check an affected container may
	// have released the device: checks run every five seconds (checkInterval in
	// internal/health), and a crashed pod is gone within a second.
	releaseGrace = 5 * time.Second
	// ownerTimeout bounds the wait for an owner. The kubelet names the owner
	// within milliseconds, after a restart within a minute
	// (docs/contributing/adr/0004-unknown-owners.md).
	ownerTimeout = time.Minute
)

// attribute adds the containers with an affected device at the event, or until
// just before, as far as the kubelet has named them. The history has the begin
// of each allocation, so later allocations are left out. A device that is gone
// is never allocated: if the allocations at the event are unknown, the present
// ones are older.
func (e *trackedIncident) attribute(h *allocation.Snapshot) {
	for _, id := range e.deviceIDs {
		e.attributeDevice(id, h)
	}
}

func (e *trackedIncident) attributeDevice(id device.ID, h *allocation.Snapshot) {
	allocations, records := h.ForDevice(id), h.RecentOf(id)
	var newestSince time.Time // begin of the newest allocation
	isOfDevice := func(u allocation.Allocation) bool { return u.DeviceID.Device() == id }
	if slices.ContainsFunc(e.unnamedAllocations, isOfDevice) {
		newestSince = e.startedAt
	}
	for _, s := range records {
		if !s.FirstSeen.After(e.startedAt) {
			newestSince = latest(newestSince, s.FirstSeen)
		}
	}
	for _, s := range records {
		allocated := slices.ContainsFunc(allocations, func(r allocation.Allocation) bool { return r.Owner == s.Owner })
		switch {
		case !allocated && e.wasAffected(s, newestSince):
			e.addAffected(s, s.LastSeen)
		case allocated && (!s.FirstSeen.After(e.startedAt) || e.AffectedUnknown && e.Reason == device.ReasonGone):
			e.addAffected(s, time.Time{})
		}
	}
}

// wasAffected reports whether the event may concern an ended allocation.
//
// The driver reports an Xid within milliseconds: if the device has been
// allocated again since, the Xid belongs to the newer allocation. The cause of
// a failed check may be older, so both allocations are affected.
func (e *trackedIncident) wasAffected(s allocation.Record, newest time.Time) bool {
	ended := cmp.Or(s.EndedAt, s.LastSeen)
	if s.FirstSeen.After(e.startedAt) || ended.Before(e.startedAt.Add(-releaseGrace)) {
		return false
	}
	return e.Xid == 0 || ended.After(e.startedAt) || !newest.After(s.LastSeen)
}

// resolveOwners adds the containers that the kubelet has named since the event.
// Of a device that is gone, the kubelet may name them after a restart of
// podgauge.
func (e *trackedIncident) resolveOwners(h *allocation.Snapshot, now time.Time) {
	lost := e.AffectedUnknown && e.Reason == device.ReasonGone && e.RecoveredAt == nil && !now.After(e.ownerDeadline)
	if len(e.unnamedAllocations) == 0 && !lost {
		return
	}
	known := len(e.Affected)
	e.attribute(h)
	allocations, endedOwners := e.currentAllocations(h), 0
	for _, c := range e.Affected[known:] {
		if !c.Until.IsZero() {
			endedOwners++
		}
	}
	e.unnamedAllocations = slices.DeleteFunc(e.unnamedAllocations, func(u allocation.Allocation) bool {
		i := slices.IndexFunc(allocations, func(r allocation.Allocation) bool {
			return r.Resource == u.Resource && r.DeviceID == u.DeviceID
		})
		if i >= 0 {
			owner := allocations[i].Owner
			isNamed := owner != (allocation.Owner{})
			if !isNamed || e.isAffected(owner, u.DeviceID.Device()) {
				return isNamed
			}
		}
		endedOwners-- // named, and ended
		return endedOwners >= 0
	})
	if len(e.unnamedAllocations) == 0 && (!lost || h.Complete && len(e.Affected) > 0) {
		e.OwnersIncomplete, e.AffectedUnknown = false, false
		e.allocations = allocations // the next event may repeat this incident
		e.changed = true
	}
	if now.After(e.ownerDeadline) || len(allocations) == 0 && h.Complete {
		e.unnamedAllocations = nil
	}
}

// updateAffected applies the newest allocations: missing owners, and the ends
// of allocations.
func (e *trackedIncident) updateAffected(h *allocation.Snapshot, now time.Time) {
	e.resolveOwners(h, now)
	for i, o := range e.Affected {
		if !o.Until.IsZero() {
			continue
		}
		id := e.DeviceOf(o)
		seen := h.RecentOf(id)
		s := allocation.Record{LastSeen: e.Last} // without a record: allocated at the event
		if k := slices.IndexFunc(seen, func(s allocation.Record) bool { return s.Owner == o.Owner }); k >= 0 {
			s = seen[k]
		}
		isOwn := func(r allocation.Allocation) bool { return r.Owner == o.Owner }
		allocated := slices.ContainsFunc(h.ForDevice(id), isOwn)
		switch {
		case s.FirstSeen.After(latest(e.Last, o.Since)) && !e.fromEarlierProcess: // a later container of the same name
			s.LastSeen = e.Last
		case allocated:
			continue
		case s.EndedAt.IsZero() && !h.Complete: // unknown: a starting kubelet lists pods one after the other
			continue
		}
		o.Until = latest(s.LastSeen, o.Since)
		e.setAffected(i, o)
	}
}

// TerminationLookup returns the termination of an assignment's container, and
// whether its pod is known.
type TerminationLookup = func(allocation.Assignment) (allocation.Termination, bool)

// terminationTimeout bounds the search for an unknown pod: the kubelet reports
// a pod before its allocation, and for some minutes after its deletion.
const terminationTimeout = 10 * time.Minute

// awaitsTermination reports whether the termination of some affected container
// is not final.
func (e *trackedIncident) awaitsTermination() bool {
	return slices.ContainsFunc(e.Affected, func(c AffectedContainer) bool { return !c.terminationFinal })
}

// updateTerminations updates the terminations that are not final.
func (e *trackedIncident) updateTerminations(lookup TerminationLookup, now time.Time) {
	for i, before := range e.Affected {
		if before.terminationFinal {
			continue
		}
		after := before
		termination, known := lookup(allocation.Assignment{
			Owner: before.Owner, PodUID: before.UID, Since: before.Since, ObservedAt: e.startedAt,
		})
		// The kubelet may send any time, and JSON has four digits.
		if year := termination.EndedAt.Year(); year < 0 || year > 9999 {
			termination.EndedAt = time.Time{}
		}
		if known {
			after.UID = termination.PodUID
			if termination.Workload != nil && !termination.Workload.Equal(before.Workload) {
				after.Workload = termination.Workload
			}
			after.Termination = before.Termination.merge(termination)
			after.terminationFinal = termination.PodEnded
		} else {
			after.terminationFinal = now.Sub(e.Last) > terminationTimeout
		}
		if after != before {
			e.setAffected(i, after)
		}
	}
}

// merge returns p with the newest termination. The end of the affected run of
// the container does not change; restarts and phase do.
func (p *PodTermination) merge(termination allocation.Termination) *PodTermination {
	if p == nil && !termination.Ended {
		return nil
	}
	merged := PodTermination{At: termination.EndedAt, Reason: termination.Reason, ExitCode: termination.ExitCode}
	if p != nil {
		merged = *p
	}
	// The kubelet may report the end of the pod before the container's.
	if merged.ExitCode == nil && termination.ExitCode != nil {
		merged.At = termination.EndedAt
		merged.Reason = termination.Reason
		merged.ExitCode = termination.ExitCode
	}
	merged.Phase = termination.PodPhase
	merged.Restarts = termination.Restarts
	if p != nil && merged == *p {
		return p
	}
	return &merged
}
