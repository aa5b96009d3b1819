package podresources

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/device"
)

// The history's bounds: a device's last holders, and how long after their end.
const (
	holdersKept = 8
	keptFor     = time.Hour
)

// history is who held each device last, ordered by owner.
type history map[device.ID][]device.Seen

func (h history) saw(row device.Holding, now time.Time) {
	id := row.Offered.Device()
	seen := h[id]
	i, found := slices.BinarySearchFunc(seen, row.Owner, func(s device.Seen, o device.Owner) int { return s.Owner.Compare(o) })
	if found {
		seen[i].Last = now
		return
	}
	if len(seen) == holdersKept {
		oldest := slices.IndexFunc(seen, func(s device.Seen) bool { return s == slices.MinFunc(seen, byLast) })
		seen = slices.Delete(seen, oldest, oldest+1)
		if oldest < i {
			i--
		}
	}
	h[id] = slices.Insert(seen, i, device.Seen{Device: id, Owner: row.Owner, Last: now})
}

// forget drops what is too old.
func (h history) forget(now time.Time) {
	for id, seen := range h {
		seen = slices.DeleteFunc(seen, func(s device.Seen) bool { return now.Sub(s.Last) > keptFor })
		if len(seen) == 0 {
			delete(h, id)
			continue
		}
		h[id] = seen
	}
}

// seen is a copy of all, ordered by device and owner.
func (h history) seen() []device.Seen {
	total := 0
	for _, s := range h {
		total += len(s)
	}
	all := make([]device.Seen, 0, total)
	for _, s := range h {
		all = append(all, s...)
	}
	slices.SortFunc(all, func(a, b device.Seen) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), a.Owner.Compare(b.Owner))
	})
	return all
}

func byLast(a, b device.Seen) int { return a.Last.Compare(b.Last) }
