package metric

import "github.com/NVIDIA/go-nvml/pkg/nvml"

const (
	powerLimitHelp   = "Power limits: the one that is enforced now, the one that was asked for, the one after boot, and the range that can be asked for."
	temperatureHelp  = "Temperature of the GPU's core or of its memory."
	thresholdHelp    = "Temperatures at which the GPU shuts down, slows down, or that its core or memory may reach without that."
	marginHelp       = "At what nvidia_gpu_temperature_margin_celsius the GPU shuts down, slows down, or that its core or memory may reach without that."
	clockHelp        = "Clock of the GPU's multiprocessors, memory, graphics or video engines."
	clockMaxHelp     = "The highest that the clock of the GPU's multiprocessors, memory, graphics or video engines can be."
	throttleHelp     = "1 if this reason currently limits the clocks; only reasons that the GPU can give, and not that it is idle."
	throttleTimeHelp = "How long this was a reason why the clocks were not higher while this container, or nobody, held the GPU; from 0 at podgauge's first reading."

	ada         = "Ada, Hopper and newer"
	grace       = "Grace superchips"
	driver58082 = "any, with driver 580.82 and newer"
)

var powerRows = []Row{
	gaugeRow("nvidia_gpu_power_watts", "Power that the GPU draws; a second's average where the driver has nothing newer.").
		fromField(nvml.FI_DEV_POWER_INSTANT, inMilliwatts).fromCall(powerUsage, inMilliwatts),
	gaugeRow("nvidia_gpu_power_average_watts", "Power that the GPU drew in the last second.").
		fromField(nvml.FI_DEV_POWER_AVERAGE, inMilliwatts).onHardware("Ampere, GA100 apart, and newer"),
	gaugeRow("nvidia_gpu_module_power_watts", "Power that the module draws that the GPU and its CPU sit on.").
		fromScope(nvml.FI_DEV_POWER_INSTANT, 1, inMilliwatts).onHardware(grace),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "enforced").
		fromField(nvml.FI_DEV_POWER_CURRENT_LIMIT, inMilliwatts).fromCall(powerLimit, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "requested").fromField(nvml.FI_DEV_POWER_REQUESTED_LIMIT, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "default").fromField(nvml.FI_DEV_POWER_DEFAULT_LIMIT, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "min").fromField(nvml.FI_DEV_POWER_MIN_LIMIT, inMilliwatts).slowPace(),
	stateRow("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "max").fromField(nvml.FI_DEV_POWER_MAX_LIMIT, inMilliwatts).slowPace(),
	ownerCounterRow("nvidia_gpu_energy_joules_total",
		"Energy that the GPU consumed while this container, or nobody, held it; from 0 at podgauge's first reading.").
		fromField(EnergyField, inMillijoules).onHardware("Volta and newer"),

	gaugeRow("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "gpu").fromCall(temperature, inCelsius),
	gaugeRow("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "memory").fromField(nvml.FI_DEV_MEMORY_TEMP, inCelsius).onHardware("GPUs with HBM"),
	gaugeRow("nvidia_gpu_temperature_margin_celsius", "How much warmer the GPU may get before it slows down.").fromCall(temperatureMargin, inCelsiusMargin).onHardware(ada),
	stateRow("nvidia_gpu_temperature_limit_celsius", thresholdHelp, "type", "shutdown").fromCall(thresholdShutdown, inCelsius).onHardware("up to Ampere"),
	stateRow("nvidia_gpu_temperature_limit_celsius", thresholdHelp, "type", "slowdown").fromCall(thresholdSlowdown, inCelsius).onHardware("up to Ampere"),
	stateRow("nvidia_gpu_temperature_limit_celsius", thresholdHelp, "type", "memory_max").fromCall(thresholdMemory, inCelsius).onHardware("up to Ampere"),
	stateRow("nvidia_gpu_temperature_limit_celsius", thresholdHelp, "type", "gpu_max").fromCall(thresholdGPU, inCelsius).onHardware("up to Ampere"),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "shutdown").fromField(nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "slowdown").fromField(nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "memory_max").fromField(nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),
	stateRow("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "gpu_max").fromField(nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, inCelsiusMargin).slowPace().onHardware(ada),

	gaugeRow("nvidia_gpu_clock_hertz", clockHelp, "clock", "sm").fromCall(smClock, inMegahertz),
	gaugeRow("nvidia_gpu_clock_hertz", clockHelp, "clock", "memory").fromCall(memoryClock, inMegahertz),
	gaugeRow("nvidia_gpu_clock_hertz", clockHelp, "clock", "graphics").fromCall(graphicsClock, inMegahertz),
	gaugeRow("nvidia_gpu_clock_hertz", clockHelp, "clock", "video").fromCall(videoClock, inMegahertz),
	stateRow("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "sm").fromCall(maxSMClock, inMegahertz),
	stateRow("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "memory").fromCall(maxMemoryClock, inMegahertz),
	stateRow("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "graphics").fromCall(maxGraphicsClock, inMegahertz),
	stateRow("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "video").fromCall(maxVideoClock, inMegahertz),
	gaugeRow("nvidia_gpu_performance_state", "Performance state, from 0, the fastest, to 15.").fromCall(performanceState, Conversion{Multiplier: 1, Divisor: 1, max: 15}),

	// The bits are nvml.h's nvmlClocksEventReason…, but for 0x1: an idle GPU is not throttled.
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "applications_clocks").fromFlag(ClockEventReasons, 0x2),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "sw_power_cap").fromFlag(ClockEventReasons, 0x4),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "hw_slowdown").fromFlag(ClockEventReasons, 0x8),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "sync_boost").fromFlag(ClockEventReasons, 0x10),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "sw_thermal").fromFlag(ClockEventReasons, 0x20),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "hw_thermal").fromFlag(ClockEventReasons, 0x40),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "hw_power_brake").fromFlag(ClockEventReasons, 0x80),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "display_clock").fromFlag(ClockEventReasons, 0x100),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "board_limit").fromFlag(ClockEventReasons, 0x200),
	gaugeRow("nvidia_gpu_throttle_active", throttleHelp, "reason", "reliability").fromFlag(ClockEventReasons, 0x400),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "sw_power_cap").fromField(nvml.FI_DEV_PERF_POLICY_POWER, inNanoseconds),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "thermal").fromField(nvml.FI_DEV_PERF_POLICY_THERMAL, inNanoseconds),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "sync_boost").fromField(nvml.FI_DEV_PERF_POLICY_SYNC_BOOST, inNanoseconds),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "board_limit").fromField(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, inNanoseconds),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "low_utilization").fromField(nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, inNanoseconds),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "reliability").fromField(nvml.FI_DEV_PERF_POLICY_RELIABILITY, inNanoseconds),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "sw_thermal").
		fromField(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, inNanoseconds).onHardware(driver58082),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "hw_thermal").
		fromField(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, inNanoseconds).onHardware(driver58082),
	ownerCounterRow("nvidia_gpu_throttle_seconds_total", throttleTimeHelp, "reason", "hw_power_brake").
		fromField(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, inNanoseconds).onHardware(driver58082),
}

// EnergyField counts mJ since the driver was loaded or the GPU was reset. That it
// went down is the cheapest proof of either.
const EnergyField = nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION
