package podresources

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// The history's bounds: a device's last holders, and how long after their end, where
// nobody says otherwise.
const (
	maxRecentOwners  = 8
	defaultRetention = time.Hour
)

// ownerHistory is who held each device last.
type ownerHistory struct {
	byDevice  map[device.ID][]device.AllocationRecord // ordered by owner
	retention time.Duration
	// deviceIDs has the devices, sorted where sorted says so: they change rarely, and
	// all that was seen is published with every answer.
	deviceIDs []device.ID
	sorted    bool
}

func newOwnerHistory() ownerHistory {
	return ownerHistory{byDevice: map[device.ID][]device.AllocationRecord{}, retention: defaultRetention}
}

// recordOwner notes that somebody was named, who has had the device since first, unless it was
// seen with it before.
func (h *ownerHistory) recordOwner(row device.Allocation, first, now time.Time) {
	id := row.DeviceID.Device()
	seen, known := h.byDevice[id]
	if !known {
		h.deviceIDs, h.sorted = append(h.deviceIDs, id), false
	}
	i, found := slices.BinarySearchFunc(seen, row.Owner, func(s device.AllocationRecord, o device.Owner) int { return s.Owner.Compare(o) })
	switch {
	case !found:
		h.byDevice[id] = slices.Insert(seen, i, device.AllocationRecord{Device: id, Owner: row.Owner, FirstSeen: first, LastSeen: now})
	case !seen[i].EndedAt.IsZero(): // another of that name, or the same one once more
		seen[i] = device.AllocationRecord{Device: id, Owner: row.Owner, FirstSeen: first, LastSeen: now}
	default:
		seen[i].LastSeen = now
	}
}

// markEnded notes who is not among the holders any more, which are in the order of
// device.Allocations.All.
func (h *ownerHistory) markEnded(allocations []device.Allocation, now time.Time) {
	snapshot := device.Allocations{All: allocations}
	for id, seen := range h.byDevice {
		rows := snapshot.ForDevice(id)
		for i := range seen {
			s := &seen[i]
			if s.EndedAt.IsZero() && !slices.ContainsFunc(rows, func(r device.Allocation) bool { return r.Owner == s.Owner }) {
				s.EndedAt = now
			}
		}
	}
}

// prune drops what is too old, and the oldest where there are too many: never
// those of now, of which a shared device may have more than are kept.
func (h *ownerHistory) prune(now time.Time) {
	h.deviceIDs = slices.DeleteFunc(h.deviceIDs, func(id device.ID) bool {
		seen := slices.DeleteFunc(h.byDevice[id], func(s device.AllocationRecord) bool { return !s.EndedAt.IsZero() && now.Sub(s.LastSeen) > h.retention })
		for len(seen) > maxRecentOwners {
			oldest := slices.MinFunc(seen, compareLastSeen)
			if !oldest.LastSeen.Before(now) {
				break
			}
			i := slices.Index(seen, oldest)
			seen = slices.Delete(seen, i, i+1)
		}
		if len(seen) == 0 {
			delete(h.byDevice, id)
			return true
		}
		h.byDevice[id] = seen
		return false
	})
}

// records is a copy of all, ordered by device and owner.
func (h *ownerHistory) records() []device.AllocationRecord {
	if !h.sorted {
		slices.Sort(h.deviceIDs)
		h.sorted = true
	}
	total := 0
	for _, id := range h.deviceIDs {
		total += len(h.byDevice[id])
	}
	all := make([]device.AllocationRecord, 0, total)
	for _, id := range h.deviceIDs {
		all = append(all, h.byDevice[id]...)
	}
	return all
}

func compareLastSeen(a, b device.AllocationRecord) int { return a.LastSeen.Compare(b.LastSeen) }
