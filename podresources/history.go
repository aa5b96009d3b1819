package podresources

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// The history's bounds: a device's last holders, and how long after their end, where
// nobody says otherwise.
const (
	holdersKept = 8
	keptFor     = time.Hour
)

// history is who held each device last.
type history struct {
	byDevice map[device.ID][]device.Seen // ordered by owner
	keptFor  time.Duration
	// order has the devices, sorted where sorted says so: they change rarely, and
	// all that was seen is published with every answer.
	order  []device.ID
	sorted bool
}

func newHistory() history { return history{byDevice: map[device.ID][]device.Seen{}, keptFor: keptFor} }

// saw notes that somebody was named, who has had the device since first, unless it was
// seen with it before.
func (h *history) saw(row device.Holding, first, now time.Time) {
	id := row.Offered.Device()
	seen, known := h.byDevice[id]
	if !known {
		h.order, h.sorted = append(h.order, id), false
	}
	i, found := slices.BinarySearchFunc(seen, row.Owner, func(s device.Seen, o device.Owner) int { return s.Owner.Compare(o) })
	switch {
	case !found:
		h.byDevice[id] = slices.Insert(seen, i, device.Seen{Device: id, Owner: row.Owner, First: first, Last: now})
	case !seen[i].Ended.IsZero(): // another of that name, or the same one once more
		seen[i] = device.Seen{Device: id, Owner: row.Owner, First: first, Last: now}
	default:
		seen[i].Last = now
	}
}

// end notes who is not among the holders any more, which are in the order of
// device.Holders.Held.
func (h *history) end(held []device.Holding, now time.Time) {
	holders := device.Holders{Held: held}
	for id, seen := range h.byDevice {
		rows := holders.Rows(id)
		for i := range seen {
			s := &seen[i]
			if s.Ended.IsZero() && !slices.ContainsFunc(rows, func(r device.Holding) bool { return r.Owner == s.Owner }) {
				s.Ended = now
			}
		}
	}
}

// forget drops what is too old, and the oldest where there are too many: never
// those of now, of which a shared device may have more than are kept.
func (h *history) forget(now time.Time) {
	h.order = slices.DeleteFunc(h.order, func(id device.ID) bool {
		seen := slices.DeleteFunc(h.byDevice[id], func(s device.Seen) bool { return !s.Ended.IsZero() && now.Sub(s.Last) > h.keptFor })
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
