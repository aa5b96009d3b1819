package status

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Quantity is something that the page shows of a reading.
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
	NotShown = quantities // what the page does not show
)

// quantitySource is a metric's name, and the value of its label.
type quantitySource struct{ name, label string }

// quantitySources say of which rows the quantities are.
var quantitySources = [quantities]quantitySource{
	Utilization:  {"nvidia_gpu_utilization_ratio", ""},
	EngineActive: {"nvidia_gpu_graphics_engine_active_ratio", ""},
	MemoryUsed:   {"nvidia_gpu_memory_used_bytes", ""},
	MemoryTotal:  {"nvidia_gpu_memory_total_bytes", ""},
	Power:        {"nvidia_gpu_power_watts", ""},
	PowerLimit:   {"nvidia_gpu_power_limit_watts", "enforced"},
	Temperature:  {"nvidia_gpu_temperature_celsius", "gpu"},
}

// QuantitiesByRow tells for each row which quantity it is of.
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

// Readings are what one flight read.
type Readings struct {
	At      time.Time // when the last of it had come; zero: there was no flight
	Devices []DeviceReading
}

// forDevice is what was read of a device: nothing where that did not answer.
func (r *Readings) forDevice(id device.ID) *DeviceReading {
	for i := range r.Devices {
		if r.Devices[i].Device == id {
			return &r.Devices[i]
		}
	}
	return &DeviceReading{}
}

// DeviceReading is what was read of one device.
type DeviceReading struct {
	Device device.ID
	values [quantities]float64
	known  [quantities]bool
}

// Set notes a value.
func (r *DeviceReading) Set(q Quantity, value float64) { r.values[q], r.known[q] = value, true }

// get is a value; false where it was not read.
func (r *DeviceReading) get(q Quantity) (value float64, known bool) { return r.values[q], r.known[q] }
