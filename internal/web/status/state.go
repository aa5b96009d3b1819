package status

import (
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/plugin"
)

// PageState is the state of a node at one time.
type PageState struct {
	api.Node
	Readings Readings
	// Stalled reports whether a call to the GPU hangs.
	Stalled func(device.GPU) bool
	// IsPlugin is set if this process is the device plugin.
	IsPlugin  bool
	Resources []plugin.Resource
	// PodsSynced reports whether the kubelet's Pods API is followed. Without an
	// error as well, there was no attempt yet.
	PodsSynced bool
	PodsErr    error
}

// Readings are the readings of one collection.
type Readings struct {
	At      time.Time // end of the collection; zero without one
	Devices map[device.ID]DeviceReading
	History *ReadingHistory // nil without one
}

// nodeData is the state of a node at one time. All parts of a page are built
// from it.
type nodeData struct {
	*PageState
	now time.Time
	// Response is the response of the JSON API for all devices.
	Response api.DevicesResponse
}

// Quantity is the name of a row of readings shown on the page.
type Quantity string

// The quantities, in base units.
const (
	Utilization  Quantity = "nvidia_gpu_utilization_ratio"            // of a whole GPU, 0 to 1
	EngineActive Quantity = "nvidia_gpu_graphics_engine_active_ratio" // likewise, also of a GPU instance
	MemoryUsed   Quantity = "nvidia_gpu_memory_used_bytes"
	MemoryTotal  Quantity = "nvidia_gpu_memory_total_bytes"
	Power        Quantity = "nvidia_gpu_power_watts"
	PowerLimit   Quantity = "nvidia_gpu_power_limit_watts{enforced}"
	Temperature  Quantity = "nvidia_gpu_temperature_celsius{gpu}"
)

// Quantities are all quantities.
var Quantities = []Quantity{
	Utilization, EngineActive, MemoryUsed, MemoryTotal, Power, PowerLimit, Temperature,
}

// DeviceReading has the known values of one device.
type DeviceReading map[Quantity]float64

// The measures of a device, each shown as a bar and as a line.
const (
	useMeasure = iota
	memoryMeasure
	powerMeasure
	measureCount
)

// ratio returns a measure as a part of the maximum; false if unknown.
func (r DeviceReading) ratio(measure int) (ratio float64, ok bool) {
	switch measure {
	case memoryMeasure:
		return r.part(MemoryUsed, MemoryTotal)
	case powerMeasure:
		return r.part(Power, PowerLimit)
	}
	if ratio, ok = r[Utilization]; !ok {
		ratio, ok = r[EngineActive]
	}
	return ratio, ok
}

func (r DeviceReading) part(value, limit Quantity) (ratio float64, ok bool) {
	v, ok := r[value]
	if r[limit] <= 0 {
		return 0, false
	}
	return v / r[limit], ok
}

// Bounds of a ReadingHistory: half an hour of points, and the devices with
// points.
const (
	historySlots = 60
	slotDuration = 30 * time.Second
	maxHistories = 1024
)

// slotPoints are the readings of a measure, oldest first: percentages plus 1;
// 0 is no reading.
type slotPoints [historySlots]uint8

// devicePoints are the points of a device, by measure.
type devicePoints [measureCount]slotPoints

// ReadingHistory has the readings of the last half hour. A point is the newest
// reading in a slot; slots without a collection have no point.
type ReadingHistory struct {
	mu      sync.Mutex // guards all below
	newest  time.Time  // beginning of the newest slot
	devices map[device.ID]*devicePoints
}

// Record adds the readings of a collection. Later readings of a slot replace
// earlier ones.
func (h *ReadingHistory) Record(at time.Time, readings map[device.ID]DeviceReading) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.devices == nil {
		h.newest, h.devices = at, map[device.ID]*devicePoints{}
	}
	h.advance(at)
	for id, reading := range readings {
		points := h.devices[id]
		if points == nil {
			if len(h.devices) == maxHistories {
				continue
			}
			points = &devicePoints{}
			h.devices[id] = points
		}
		for measure := range points {
			if ratio, ok := reading.ratio(measure); ok {
				points[measure][historySlots-1] = 1 + uint8(100*max(0, min(ratio, 1))+0.5)
			}
		}
	}
}

// advance moves the points to older slots until now is in the newest slot, and
// forgets devices without a point.
func (h *ReadingHistory) advance(now time.Time) {
	slots := now.Sub(h.newest) / slotDuration
	if slots <= 0 {
		return
	}
	h.newest = h.newest.Add(slots * slotDuration)
	for id, old := range h.devices {
		var points devicePoints
		for measure := range old {
			copy(points[measure][:], old[measure][min(slots, historySlots):])
		}
		if points == (devicePoints{}) {
			delete(h.devices, id)
		}
		*old = points
	}
}

// points returns the points of a device up to now.
func (h *ReadingHistory) points(id device.ID, now time.Time) devicePoints {
	if h == nil {
		return devicePoints{}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advance(now)
	if points := h.devices[id]; points != nil {
		return *points
	}
	return devicePoints{}
}
