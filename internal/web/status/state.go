package status

import (
	"context"
	"slices"
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
	// PodsAPI reports whether the kubelet's Pods API is followed.
	PodsAPI() PodsAPIStatus
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

// PodsAPIStatus is the state of the connection to the Pods API. Without Synced and Reason there was no attempt yet.
type PodsAPIStatus struct {
	Synced bool
	Reason string
}

// Quantity is a value of a reading shown on the page.
type Quantity uint8

// The quantities, in base units.
const (
	Utilization  Quantity = iota // of a whole GPU, 0 to 1
	EngineActive                 // likewise, also of a GPU instance
	MemoryUsed
	MemoryTotal
	Power
	PowerLimit
	Temperature
	quantities
	NotShown = quantities // not on the page
)

// quantitySource is the name of a row and the value of the label.
type quantitySource struct{ name, label string }

var quantitySources = [quantities]quantitySource{
	Utilization:  {"nvidia_gpu_utilization_ratio", ""},
	EngineActive: {"nvidia_gpu_graphics_engine_active_ratio", ""},
	MemoryUsed:   {"nvidia_gpu_memory_used_bytes", ""},
	MemoryTotal:  {"nvidia_gpu_memory_total_bytes", ""},
	Power:        {"nvidia_gpu_power_watts", ""},
	PowerLimit:   {"nvidia_gpu_power_limit_watts", "enforced"},
	Temperature:  {"nvidia_gpu_temperature_celsius", "gpu"},
}

// QuantitiesByRow returns the quantity of each row.
func QuantitiesByRow(metrics []device.Metric) []Quantity {
	byRow := make([]Quantity, len(metrics))
	for i, m := range metrics {
		label := ""
		if len(m.Labels) > 0 {
			label = m.Labels[0].Value
		}
		byRow[i] = NotShown
		if q := slices.Index(quantitySources[:], quantitySource{m.Name, label}); q >= 0 {
			byRow[i] = Quantity(q)
		}
	}
	return byRow
}

// Readings are the readings of one collection.
type Readings struct {
	At      time.Time // end of the collection; zero without one
	Devices []DeviceReading
}

// DeviceReading is the reading of one device.
type DeviceReading struct {
	Device device.ID
	values [quantities]float64
	known  [quantities]bool
}

// forDevice returns an empty reading for a device that was not read.
func (r *Readings) forDevice(id device.ID) *DeviceReading {
	for i := range r.Devices {
		if r.Devices[i].Device == id {
			return &r.Devices[i]
		}
	}
	return &DeviceReading{}
}

// Set sets a value.
func (r *DeviceReading) Set(q Quantity, value float64) { r.values[q], r.known[q] = value, true }

func (r *DeviceReading) get(q Quantity) (value float64, known bool) { return r.values[q], r.known[q] }
