package podresources

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const maxRecentOwners = 8 // of a device

// ownerHistory has the last owners of each device.
type ownerHistory struct {
	all       []device.AllocationRecord // by device and owner
	retention time.Duration             // after the end of an allocation
}

// recordOwner records an owner named by a response. A new owner has had the
// device since first.
func (h *ownerHistory) recordOwner(a device.Allocation, first, now time.Time) {
	record := device.AllocationRecord{Device: a.DeviceID.Device(), Owner: a.Owner, FirstSeen: first, LastSeen: now}
	i, found := slices.BinarySearchFunc(h.all, record, func(r, s device.AllocationRecord) int {
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
// allocations are in the order of device.Allocations.All.
func (h *ownerHistory) markEnded(allocations []device.Allocation, now time.Time) {
	current := device.Allocations{All: allocations}
	for i := range h.all {
		r := &h.all[i]
		isOwner := func(a device.Allocation) bool { return a.Owner == r.Owner }
		if r.EndedAt.IsZero() && !slices.ContainsFunc(current.ForDevice(r.Device), isOwner) {
			r.EndedAt = now
		}
	}
}

// prune drops records after the retention, and the oldest of a device above
// maxRecentOwners. Current owners stay: a shared device may have more.
func (h *ownerHistory) prune(now time.Time) {
	h.all = slices.DeleteFunc(h.all, func(r device.AllocationRecord) bool {
		return !r.EndedAt.IsZero() && now.Sub(r.LastSeen) > h.retention
	})
	for begin := 0; begin < len(h.all); {
		end := begin + 1
		for end < len(h.all) && h.all[end].Device == h.all[begin].Device {
			end++
		}
		for ; end-begin > maxRecentOwners; end-- {
			oldest := -1
			for i := begin; i < end; i++ {
				if !h.all[i].EndedAt.IsZero() && (oldest < 0 || h.all[i].LastSeen.Before(h.all[oldest].LastSeen)) {
					oldest = i
				}
			}
			if oldest < 0 {
				break
			}
			h.all = slices.Delete(h.all, oldest, oldest+1)
		}
		begin = end
	}
}

// records returns a copy of all records, by device and owner.
func (h *ownerHistory) records() []device.AllocationRecord { return slices.Clone(h.all) }
