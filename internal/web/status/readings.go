package status

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
