package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/plugin"
)

// The grades of a node and its parts: classes of the style.
const (
	gradeWell    = "well"
	gradeWarning = "warning"
	gradeBad     = "bad"
)

// dependency is the driver or the kubelet. State continues a sentence.
type dependency struct{ Grade, State string }

// ShortState returns the state as a phrase of its own.
func (d dependency) ShortState() string {
	return strings.TrimPrefix(strings.TrimPrefix(d.State, "is "), "was ")
}

var driverStates = map[string]dependency{
	"starting":       {gradeWarning, "is starting"},
	"up":             {gradeWell, "is up"},
	"failing":        {gradeBad, "fails"},
	"absent":         {gradeBad, "was not found"},
	"not_responding": {gradeBad, "does not respond"},
	"replaced":       {gradeWarning, "was replaced, and podgauge restarts"},
	"released":       {gradeBad, "is released"},
}

func kubeletState(k api.KubeletJSON) dependency {
	switch {
	case k.Up:
		return dependency{gradeWell, "responds"}
	case k.Error == "":
		return dependency{gradeWarning, "is not connected yet"}
	}
	return dependency{gradeBad, "does not respond"}
}

// resourceRow is a resource of the device plugin.
type resourceRow struct {
	plugin.Resource
	Noun      string // of the ids: "GPU", "MIG device", "device" or "replica"
	Devices   string // of the replicas: "8 GPUs"
	Allocated string // number, "–" if unknown
}

// ResourceRows returns the resources of the device plugin.
func (d *nodeData) ResourceRows() (rows []resourceRow) {
	for _, resource := range d.Resources {
		devices := map[device.ID]bool{}
		for _, id := range resource.IDs {
			devices[id.Device()] = true
		}
		row := resourceRow{Resource: resource, Allocated: "–"}
		row.Noun = d.deviceNoun(func(id device.ID) bool { return devices[id] })
		isReplica := func(id device.AdvertisedID) bool { return id != id.Device().Advertised() }
		if slices.ContainsFunc(resource.IDs, isReplica) {
			row.Devices = text.Plural(len(devices), row.Noun)
			row.Noun = "replica"
		}
		if d.Allocations.Complete {
			ids := d.Allocations.DeviceIDs(resource.Name)
			slices.Sort(ids)
			row.Allocated = strconv.Itoa(len(slices.Compact(ids)))
		}
		rows = append(rows, row)
	}
	return rows
}

// deviceNoun names the devices that can be allocated, of those listed.
func (d *nodeData) deviceNoun(isListed func(device.ID) bool) string {
	gpus, migDevices := false, false
	for i := range d.Response.Devices {
		switch o := &d.Response.Devices[i]; {
		case !isListed(o.ID):
		case o.IsMIGDevice():
			migDevices = true
		case o.AllocationState != "partitioned":
			gpus = true
		}
	}
	switch {
	case gpus && migDevices:
		return "device"
	case migDevices:
		return "MIG device"
	}
	return "GPU"
}

// nodeStat is a number of the node.
type nodeStat struct{ Name, Value, Note string }

// stats returns the numbers of the whole node.
func (d *nodeData) stats(gpus []*gpuCard) (stats []nodeStat) {
	if len(gpus) == 0 {
		return nil
	}
	add := func(known bool, name, value, note string) {
		if !known {
			value, note = "–", "not known yet"
		}
		stats = append(stats, nodeStat{name, value, note})
	}
	n := d.Response.Counts()
	of := "of " + text.Plural(n.Devices, d.deviceNoun(func(device.ID) bool { return true }))
	add(true, "Healthy", strconv.Itoa(n.Healthy), of)
	add(n.Unknown == 0 && n.Devices > 0, "Allocated", strconv.Itoa(n.Allocated), of)
	allocated, replicas := 0, 0
	for _, g := range gpus {
		for _, card := range g.devices() {
			if card.Replicas != nil {
				allocated += card.Replicas.Allocated
				replicas += card.Replicas.Total
			}
		}
	}
	if replicas > 0 {
		add(d.Allocations.Complete, "Replicas allocated", strconv.Itoa(allocated), "of "+strconv.Itoa(replicas))
	}
	if m := d.sumOf(gpus, MemoryUsed, MemoryTotal); m.limit > 0 {
		add(true, "Memory", formatPercent(m.value/m.limit)+" %", m.note(fmt.Sprintf("of %.0f GiB", m.limit/gib)))
	}
	if p := d.sumOf(gpus, Power, PowerLimit); p.value > 0 {
		add(true, "Power", formatWatts(p.value), p.note("of "+formatWatts(p.limit)))
	}
	return stats
}

// sum is the sum of a quantity and of the limit over the GPUs with a reading.
type sum struct {
	value, limit float64
	gpus, limits int // GPUs with a value, and with a limit as well
	present      int // GPUs
}

func (d *nodeData) sumOf(gpus []*gpuCard, value, limit Quantity) (s sum) {
	for _, g := range gpus {
		if !g.Device.Gone {
			s.present++
		}
		r := d.Readings.Devices[g.Device.ID]
		v, ok := r[value]
		if !ok {
			continue
		}
		s.value += v
		s.gpus++
		if l, ok := r[limit]; ok {
			s.limit += l
			s.limits++
		}
	}
	return s
}

// note returns the limit, if all GPUs with a reading have a limit, and the number
// of GPUs with a reading, if GPUs are missing.
func (s sum) note(limit string) string {
	var notes []string
	if s.limits == s.gpus {
		notes = append(notes, limit)
	}
	if s.gpus < s.present {
		notes = append(notes, fmt.Sprintf("%d of %s", s.gpus, text.Plural(s.present, "GPU")))
	}
	return strings.Join(notes, ", ")
}
