package podresources

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/device"
)

// The history's bounds: a device's last holders, and how long after their end.
const (
	holdersKept = 8
	keptFor     = time.Hour
)

// history is who held each device last.
type history struct {
	byDevice map[device.ID][]device.Seen // ordered by owner
	// order has the devices, sorted where sorted says so: they change rarely, and
	// all that was seen is published with every answer.
	order  []device.ID
	sorted bool
}

func newHistory() history { return history{byDevice: map[device.ID][]device.Seen{}} }

func (h *history) saw(row device.Holding, now time.Time) {
	id := row.Offered.Device()
	seen, known := h.byDevice[id]
	if !known {
		h.order, h.sorted = append(h.order, id), false
	}
	i, found := slices.BinarySearchFunc(seen, row.Owner, func(s device.Seen, o device.Owner) int { return s.Owner.Compare(o) })
	if found {
		seen[i].Last = now
		return
	}
	h.byDevice[id] = slices.Insert(seen, i, device.Seen{Device: id, Owner: row.Owner, Last: now})
}

// forget drops what is too old, and the oldest where there are too many: never
// those of now, of which a shared device may have more than are kept.
func (h *history) forget(now time.Time) {
	h.order = slices.DeleteFunc(h.order, func(id device.ID) bool {
		seen := slices.DeleteFunc(h.byDevice[id], func(s device.Seen) bool { return now.Sub(s.Last) > keptFor })
		for len(seen) > holdersKept {
			oldest := slices.MinFunc(seen, byLast)
			if !oldest.Last.Before(now) {
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

// seen is a copy of all, ordered by device and owner.
func (h *history) seen() []device.Seen {
	if !h.sorted {
		slices.Sort(h.order)
		h.sorted = true
	}
	total := 0
	for _, id := range h.order {
		total += len(h.byDevice[id])
	}
	all := make([]device.Seen, 0, total)
	for _, id := range h.order {
		all = append(all, h.byDevice[id]...)
	}
	return all
}

func byLast(a, b device.Seen) int { return a.Last.Compare(b.Last) }
