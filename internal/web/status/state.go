package status

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/api"
)

// PageState returns the state of a node shown on the page.
type PageState interface {
	api.NodeState
	// Readings returns the readings of the newest collection, or of a new one until ctx is done.
	Readings(ctx context.Context) Readings
	// Stalled reports whether a call to the GPU hangs.
	Stalled(gpu device.GPU) bool
	// PluginResources returns the resources of the device plugin; nil if another device plugin serves the node.
	PluginResources() []PluginResource
	// PodsAPI reports whether the kubelet's Pods API is followed. Without both results there was no attempt yet.
	PodsAPI() (synced bool, err error)
}

// PluginResource is a resource of the device plugin.
type PluginResource struct {
	Resource   string
	IDs        []device.AdvertisedID
	Sharing    string // "time-slicing" or "MPS"; empty without replicas
	Registered bool   // the kubelet reads the device list
	Healthy    int    // devices in the latest device list
	Err        string // of the latest registration
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
var Quantities = []Quantity{Utilization, EngineActive, MemoryUsed, MemoryTotal, Power, PowerLimit, Temperature}

// Readings are the readings of one collection.
type Readings struct {
	At      time.Time // end of the collection; zero without one
	Devices map[device.ID]DeviceReading
	History *ReadingHistory // nil without one
}

// DeviceReading has the known values of one device.
type DeviceReading map[Quantity]float64

// ratio returns the value of a measure as a share of its maximum.
func (r DeviceReading) ratio(measure int) (ratio float64, ok bool) {
	value, limit := MemoryUsed, MemoryTotal
	switch measure {
	case useMeasure:
		if ratio, ok = r[Utilization]; !ok {
			ratio, ok = r[EngineActive]
		}
		return ratio, ok
	case powerMeasure:
		value, limit = Power, PowerLimit
	}
	ratio, ok = r[value]
	if r[limit] <= 0 {
		return 0, false
	}
	return ratio / r[limit], ok
}
