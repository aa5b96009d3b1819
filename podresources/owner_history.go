package podresources

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

const maxRecentOwners = 8 // of a device

// ownerHistory has the last owners of each device.
type ownerHistory struct {
	all       []allocation.Record // by device and owner
	retention time.Duration       // after the end of an allocation
}

// recordOwner records an owner named by a response. A new owner has had the
// device since first.
func (h *ownerHistory) recordOwner(a allocation.Allocation, first, now time.Time) {
	record := allocation.Record{Device: a.DeviceID.Device(), Owner: a.Owner, FirstSeen: first, LastSeen: now}
	i, found := slices.BinarySearchFunc(h.all, record, func(r, s allocation.Record) int {
		return cmp.Or(cmp.Compare(r.Device, s.Device), r.Owner.Compare(s.Owner))
	})
	switch {
	case !found:
		h.all = slices.Insert(h.all, i, record)
	case !h.all[i].EndedAt.IsZero(): // a pod of the same name, or the same pod again
		h.all[i] = record
	default:
		h.all[i].LastSeen = now
	}
}

// markEnded records the end of the owners without an allocation. The
// allocations are in the order of allocation.Snapshot.All.
func (h *ownerHistory) markEnded(allocations []allocation.Allocation, now time.Time) {
	current := allocation.Snapshot{All: allocations}
	for i := range h.all {
		r := &h.all[i]
		isOwner := func(a allocation.Allocation) bool { return a.Owner == r.Owner }
		if r.EndedAt.IsZero() && !slices.ContainsFunc(current.ForDevice(r.Device), isOwner) {
			r.EndedAt = now
		}
	}
}

// prune drops records after the retention, and the oldest of a device above
// maxRecentOwners. Current owners stay: a shared device may have more.
func (h *ownerHistory) prune(now time.Time) {
	h.all = slices.DeleteFunc(h.all, func(r allocation.Record) bool {
		return !r.EndedAt.IsZero() && now.Sub(r.LastSeen) > h.retention
	})
	owners := map[device.ID]int{}
	for _, r := range h.all {
		owners[r.Device]++
	}
	byAge := func(r, s allocation.Record) int { return r.LastSeen.Compare(s.LastSeen) }
	excess := map[allocation.Record]bool{}
	for _, r := range slices.SortedStableFunc(slices.Values(h.all), byAge) {
		if !r.EndedAt.IsZero() && owners[r.Device] > maxRecentOwners {
			owners[r.Device]--
			excess[r] = true
		}
	}
	h.all = slices.DeleteFunc(h.all, func(r allocation.Record) bool { return excess[r] })
}

// records returns a copy of all records, by device and owner.
func (h *ownerHistory) records() []allocation.Record { return slices.Clone(h.all) }
