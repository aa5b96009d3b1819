package incident

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/xid"
)

// counterKey identifies the counter of a device, or of an affected container.
type counterKey struct {
	device device.ID
	owner  allocation.Owner // empty: of the device
	reason string
}

// counterSet has the counters of the devices and containers that incidents
// name. A process starts with the series that the earlier one had.
type counterSet map[counterKey]*EventCount

// add adds n events of an incident to the counter of a device, or of a
// container with the device.
func (s counterSet) add(i *Incident, id device.ID, o allocation.Owner, n uint64, at time.Time) {
	key := counterKey{id, o, i.Reason}
	c := s[key]
	if c == nil {
		c = &EventCount{Device: id, Owner: o, Reason: i.Reason}
		s[key] = c
	}
	c.Count += n
	c.GPU = i.GPU
	c.Index = i.Index
	c.Last = latest(c.Last, at)
}

// BySoftware reports whether the counted events are errors of software, which
// leave the device usable.
func (c *EventCount) BySoftware() bool { return xid.BySoftware(c.Reason) }

// retain removes the counters that no incident names, and reports whether there
// were any.
func (s counterSet) retain(incidents []Incident) (changed bool) {
	named := map[counterKey]bool{}
	for _, i := range incidents {
		named[counterKey{i.Device, allocation.Owner{}, i.Reason}] = true
		for _, c := range i.Affected {
			named[counterKey{i.DeviceOf(c), c.Owner, i.Reason}] = true
		}
	}
	before := len(s)
	maps.DeleteFunc(s, func(key counterKey, _ *EventCount) bool { return !named[key] })
	return len(s) < before
}

// counts returns copies of the counters of devices, and of those of affected
// containers, in order.
func (s counterSet) counts() (devices, affected []EventCount) {
	for _, c := range s {
		if c.Pod == "" {
			devices = append(devices, *c)
		} else {
			affected = append(affected, *c)
		}
	}
	order := func(a, b EventCount) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), a.Compare(b.Owner), cmp.Compare(a.Reason, b.Reason))
	}
	slices.SortFunc(devices, order)
	slices.SortFunc(affected, order)
	return devices, affected
}

func latest(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{b, a}, time.Time.Compare) }

func earliest(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{b, a}, time.Time.Compare) }
