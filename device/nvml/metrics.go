package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/device"
)

// row is one fact that can be read: what it is called, and where it comes from.
// Rows of one family stand together.
type row struct {
	name, help string
	kind       device.Kind
	labels     []device.Label
	// field is the id under which GetFieldValues has it, and slot is where a call of
	// its own leaves it. Where a row has both, the call is made only for a GPU that
	// does not have the field.
	field uint32
	slot  slot
	// bit is what to look at where the value is a set of flags; 0: it is a number.
	bit  uint64
	unit unit
}

// unit turns the driver's number into the base unit that a row's name says. A
// number above most is none: it is a negative one, or all bits set for "unknown",
// in a type that could not say so.
type unit struct{ times, per, most float64 }

var (
	inBytes       = unit{1, 1, 1 << 50}
	inPercent     = unit{1, 100, 100} // divided: 29 * 0.01 is not 0.29
	inCelsius     = unit{1, 1, 1000}
	inMilliwatts  = unit{1, 1000, 1e8}
	inMillijoules = unit{1, 1000, 1 << 53} // above it a float64 no longer counts by one
	inMegahertz   = unit{1e6, 1, 1e5}
	inNumber      = unit{1, 1, 1 << 53}
)

func (u unit) convert(v float64) (float64, bool) { return v * u.times / u.per, v <= u.most }

// The helps that several rows share.
const (
	temperatureHelp = "Temperature of the GPU's core or of its memory."
	clockHelp       = "Clock of the GPU's multiprocessors or of its memory."
	throttleHelp    = "Whether this is a reason why the clocks are not higher; only reasons that the GPU can give."
	volatileHelp    = "ECC errors since the driver was loaded or the GPU was reset."
	aggregateHelp   = "ECC errors in the GPU's life."
)

// rows are all that is read, in the order of device.Sample.Metric.
var rows = [...]row{
	gauge("nvidia_gpu_memory_total_bytes", "Memory that the GPU has.").asked(memoryTotal, inBytes),
	gauge("nvidia_gpu_memory_reserved_bytes", "Memory that the driver and the firmware keep.").asked(memoryReserved, inBytes),
	gauge("nvidia_gpu_memory_used_bytes", "Memory in use; with what is reserved, where the driver is too old to tell them apart.").
		asked(memoryUsed, inBytes),
	gauge("nvidia_gpu_memory_free_bytes", "Memory that can be allocated.").asked(memoryFree, inBytes),
	gauge("nvidia_gpu_utilization_ratio", "Share of the driver's last sampling period, 1/6 to 1 s, in which a kernel ran.").
		asked(busy, inPercent),
	gauge("nvidia_gpu_memory_controller_utilization_ratio", "Share of the driver's last sampling period in which memory was read or written.").
		asked(memoryBusy, inPercent),
	gauge("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "gpu").asked(temperature, inCelsius),
	gauge("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "memory").inField(nvml.FI_DEV_MEMORY_TEMP, inCelsius),
	gauge("nvidia_gpu_power_watts", "Power that the GPU draws; a second's average where the driver has nothing newer.").
		inField(nvml.FI_DEV_POWER_INSTANT, inMilliwatts).asked(power, inMilliwatts),
	gauge("nvidia_gpu_power_limit_watts", "Power limit that is enforced now.").
		inField(nvml.FI_DEV_POWER_CURRENT_LIMIT, inMilliwatts).asked(powerLimit, inMilliwatts),
	counter(device.HolderCounter, "nvidia_gpu_energy_joules_total",
		"Energy that the GPU consumed while this container, or nobody, held it; from 0 at podgauge's first reading.").
		inField(energyField, inMillijoules),
	gauge("nvidia_gpu_clock_hertz", clockHelp, "clock", "sm").asked(smClock, inMegahertz),
	gauge("nvidia_gpu_clock_hertz", clockHelp, "clock", "memory").asked(memoryClock, inMegahertz),
	// The bits are nvml.h's nvmlClocksEventReason…
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "gpu_idle").flagged(reasons, 0x1),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "applications_clocks").flagged(reasons, 0x2),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "sw_power_cap").flagged(reasons, 0x4),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "hw_slowdown").flagged(reasons, 0x8),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "sync_boost").flagged(reasons, 0x10),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "sw_thermal").flagged(reasons, 0x20),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "hw_thermal").flagged(reasons, 0x40),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "hw_power_brake").flagged(reasons, 0x80),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "display_clock").flagged(reasons, 0x100),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "board_limit").flagged(reasons, 0x200),
	gauge("nvidia_gpu_throttle_active", throttleHelp, "reason", "reliability").flagged(reasons, 0x400),
	counter(device.FaultCounter, "nvidia_gpu_pcie_replays_total", "PCIe packets that had to be sent again.").
		inField(nvml.FI_DEV_PCIE_REPLAY_COUNTER, inNumber),
	counter(device.FaultCounter, "nvidia_gpu_ecc_volatile_errors_total", volatileHelp, "severity", "corrected").
		inField(nvml.FI_DEV_ECC_SBE_VOL_TOTAL, inNumber),
	counter(device.FaultCounter, "nvidia_gpu_ecc_volatile_errors_total", volatileHelp, "severity", "uncorrected").
		inField(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, inNumber),
	counter(device.FaultCounter, "nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", "corrected").
		inField(nvml.FI_DEV_ECC_SBE_AGG_TOTAL, inNumber),
	counter(device.FaultCounter, "nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", "uncorrected").
		inField(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, inNumber),
}

// Metrics are the rows, in the order in which Backend.Read numbers them.
func Metrics() []device.Metric {
	metrics := make([]device.Metric, len(rows))
	for i, r := range rows {
		metrics[i] = device.Metric{Name: r.name, Help: r.help, Kind: r.kind, Labels: r.labels}
	}
	return metrics
}

// gauge begins a row. The label, a name and a value, sets it apart from the others
// of its family.
func gauge(name, help string, label ...string) row {
	return counter(device.Gauge, name, help, label...)
}

func counter(kind device.Kind, name, help string, label ...string) row {
	r := row{name: name, help: help, kind: kind}
	if len(label) > 0 {
		r.labels = []device.Label{{Name: label[0], Value: label[1]}}
	}
	return r
}

func (r row) inField(id uint32, u unit) row {
	r.field, r.unit = id, u
	return r
}

func (r row) asked(s slot, u unit) row {
	r.slot, r.unit = s, u
	return r
}

func (r row) flagged(s slot, bit uint64) row {
	r.slot, r.bit = s, bit
	return r
}
