package metric

import (
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	powerLimitHelp  = "Power limit of this type, in watts; min and max are the permitted range."
	temperatureHelp = "Temperature at this sensor, in degrees Celsius."
	thresholdHelp   = "Temperature limit of this type, in degrees Celsius."
	marginHelp      = "Value of nvidia_gpu_temperature_margin_celsius at this limit, in degrees Celsius."
	clockHelp       = "Current frequency of this clock, in hertz."
	clockMaxHelp    = "Maximum frequency of this clock, in hertz."
	throttleHelp    = "1 if this reason currently limits the clocks; idleness is no reason."

	ada   = "Ada, Hopper and newer, except GeForce"
	grace = "Grace superchips"
)

var throttleTimeRow = ownerCounterRow("nvidia_gpu_throttle_seconds_total",
	"Time during which this reason limited the clocks, by owner, in seconds.")

var powerRows = slices.Concat([]Row{
	gaugeRow("nvidia_gpu_power_watts", "Power draw of the GPU, in watts; a 1 s average with old drivers.").
		fromField(nvml.FI_DEV_POWER_INSTANT, inMilliwatts).
		fromFunction("nvmlDeviceGetPowerUsage", device.PaceFast, inMilliwatts,
			getter(nvml.Device.GetPowerUsage)).inMinimal(),
	gaugeRow("nvidia_gpu_power_average_watts", "Average power draw of the GPU over 1 s, in watts.").
		fromField(nvml.FI_DEV_POWER_AVERAGE, inMilliwatts).onHardware("Ampere and newer, except GA100"),
	gaugeRow("nvidia_gpu_module_power_watts", "Power draw of the module with GPU and CPU, in watts.").
		fromScope(nvml.FI_DEV_POWER_INSTANT, 1, inMilliwatts).onHardware(grace),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "enforced").
		fromField(nvml.FI_DEV_POWER_CURRENT_LIMIT, inMilliwatts).
		fromFunction("nvmlDeviceGetEnforcedPowerLimit", device.PaceSlow, inMilliwatts,
			getter(nvml.Device.GetEnforcedPowerLimit)).slowPace().inDefault(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "requested").
		fromField(nvml.FI_DEV_POWER_REQUESTED_LIMIT, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "default").
		fromField(nvml.FI_DEV_POWER_DEFAULT_LIMIT, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "min").
		fromField(nvml.FI_DEV_POWER_MIN_LIMIT, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "max").
		fromField(nvml.FI_DEV_POWER_MAX_LIMIT, inMilliwatts).slowPace(),
	ownerCounterRow("nvidia_gpu_energy_joules_total", "Energy consumed by the GPU, by owner, in joules.").
		fromField(EnergyField, inMillijoules).onHardware("Volta and newer").inMinimal(),

	gaugeRow("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "gpu").
		fromFunction("nvmlDeviceGetTemperature", device.PaceFast, inCelsius, // older drivers lack GetTemperatureV
			getterOf(nvml.Device.GetTemperature, nvml.TEMPERATURE_GPU)).inMinimal(),
	gaugeRow("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "memory").
		fromField(nvml.FI_DEV_MEMORY_TEMP, inCelsius).onHardware("with HBM").inDefault(),
	gaugeRow("nvidia_gpu_temperature_margin_celsius",
		"Temperature margin before the GPU slows down, in degrees Celsius.").
		fromFunction("nvmlDeviceGetMarginTemperature", device.PaceSlow, inCelsiusMargin, getTemperatureMargin).
		onHardware(ada).inMinimal(),
	temperatureLimitRow("shutdown", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN),
	temperatureLimitRow("slowdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN).inMinimal(),
	temperatureLimitRow("memory_max", nvml.TEMPERATURE_THRESHOLD_MEM_MAX),
	temperatureLimitRow("gpu_max", nvml.TEMPERATURE_THRESHOLD_GPU_MAX),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "shutdown").
		fromField(nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "slowdown").
		fromField(nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada).inDefault(),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "memory_max").
		fromField(nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "gpu_max").
		fromField(nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),

	clockRow("sm", nvml.CLOCK_SM, device.PaceFast).inDefault(),
	clockRow("memory", nvml.CLOCK_MEM, device.PaceSlow).inDefault(),
	clockRow("graphics", nvml.CLOCK_GRAPHICS, device.PaceSlow),
	clockRow("video", nvml.CLOCK_VIDEO, device.PaceSlow),
	clockMaxRow("sm", nvml.CLOCK_SM).inDefault(),
	clockMaxRow("memory", nvml.CLOCK_MEM),
	clockMaxRow("graphics", nvml.CLOCK_GRAPHICS),
	clockMaxRow("video", nvml.CLOCK_VIDEO),
	gaugeRow("nvidia_gpu_performance_state", "Performance state from 0 (fastest) to 15.").
		fromFunction("nvmlDeviceGetPerformanceState", device.PaceSlow, inPState,
			getter(nvml.Device.GetPerformanceState)),
}, fanRows(), throttleRows(), familyRows(throttleTimeRow.inDefault(), "reason", Row.fromField, inNanoseconds,
	labeledField{"sw_power_cap", nvml.FI_DEV_PERF_POLICY_POWER},
	labeledField{"thermal", nvml.FI_DEV_PERF_POLICY_THERMAL},
	labeledField{"sync_boost", nvml.FI_DEV_PERF_POLICY_SYNC_BOOST},
	labeledField{"board_limit", nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT},
), familyRows(throttleTimeRow, "reason", Row.fromField, inNanoseconds,
	labeledField{"low_utilization", nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION},
), familyRows(throttleTimeRow.inDefault(), "reason", Row.fromField, inNanoseconds,
	labeledField{"reliability", nvml.FI_DEV_PERF_POLICY_RELIABILITY},
), familyRows(throttleTimeRow.onHardware("driver 580.82 and newer").inDefault(), "reason", Row.fromField, inNanoseconds,
	labeledField{"sw_thermal", nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN},
	labeledField{"hw_thermal", nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN},
	labeledField{"hw_power_brake", nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN},
))

func temperatureLimitRow(limit string, threshold nvml.TemperatureThresholds) Row {
	return stateRow("nvidia_gpu_temperature_limit_celsius", thresholdHelp, "type", limit).
		fromFunction("nvmlDeviceGetTemperatureThreshold", device.PaceStatic, inCelsius,
			getterOf(nvml.Device.GetTemperatureThreshold, threshold)).onHardware("up to Ampere, GeForce")
}

func clockRow(label string, clock nvml.ClockType, pace device.ReadPace) Row {
	return gaugeRow("nvidia_gpu_clock_hertz", clockHelp, "clock", label).
		fromFunction("nvmlDeviceGetClockInfo", pace, inMegahertz, getterOf(nvml.Device.GetClockInfo, clock))
}

func clockMaxRow(label string, clock nvml.ClockType) Row {
	return stateRow("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", label).
		fromFunction("nvmlDeviceGetMaxClockInfo", device.PaceStatic, inMegahertz,
			getterOf(nvml.Device.GetMaxClockInfo, clock))
}

// EnergyField counts mJ since the last driver load or GPU reset. A decrease is
// the cheapest proof of either event.
const EnergyField = nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION

// maxFans is the highest number of fans on a board.
const maxFans = 3

// fanRows has a row for each fan.
func fanRows() (rows []Row) {
	for fan := range maxFans {
		rows = append(rows, gaugeRow("nvidia_gpu_fan_speed_ratio",
			"Requested fan speed as a fraction of the maximum; some boards exceed 1.", "fan", strconv.Itoa(fan)).
			fromFunction("nvmlDeviceGetFanSpeed_v2", device.PaceSlow, inFanPercent,
				getterOf(nvml.Device.GetFanSpeed_v2, fan)).
			ofPart(fan, fanCount).onHardware("with fans"))
	}
	return rows
}

// throttleRows has a row for each bit of nvml.h's nvmlClocksEventReason, from
// the second bit on: an idle GPU (0x1) is not throttled.
func throttleRows() (rows []Row) {
	for i, reason := range []string{
		"applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal",
		"hw_power_brake", "display_clock", "board_limit", "reliability",
	} {
		rows = append(rows, gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", reason).
			fromFlag(ClockEventReasons, 2<<i).inDefault().always("hw_power_brake"))
	}
	return rows
}
