package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

const (
	powerLimitHelp  = "Power limits: the one that is enforced now, the one that was asked for, the one after boot, and the range that can be asked for."
	temperatureHelp = "Temperature of the GPU's core or of its memory."
	limitHelp       = "Temperatures at which the GPU shuts down, slows down, or that its core or memory may reach without that."
	marginHelp      = "At what nvidia_gpu_temperature_margin_celsius the GPU shuts down, slows down, or that its core or memory may reach without that."
	clockHelp       = "Clock of the GPU's multiprocessors, memory, graphics or video engines."
	clockMaxHelp    = "The highest that the clock of the GPU's multiprocessors, memory, graphics or video engines can be."
	throttleHelp    = "1 if this reason currently limits the clocks; only reasons that the GPU can give, and not that it is idle."
	throttledHelp   = "How long this was a reason why the clocks were not higher while this container, or nobody, held the GPU; from 0 at podgauge's first reading."

	ada         = "Ada, Hopper and newer"
	grace       = "Grace superchips"
	driver58082 = "any, with driver 580.82 and newer"
)

var powerRows = []row{
	gauge("nvidia_gpu_power_watts", "Power that the GPU draws; a second's average where the driver has nothing newer.").
		in(nvml.FI_DEV_POWER_INSTANT, inMilliwatts).asked(power, inMilliwatts),
	gauge("nvidia_gpu_power_average_watts", "Power that the GPU drew in the last second.").
		in(nvml.FI_DEV_POWER_AVERAGE, inMilliwatts).on("Ampere, GA100 apart, and newer"),
	gauge("nvidia_gpu_module_power_watts", "Power that the module draws that the GPU and its CPU sit on.").
		inScope(nvml.FI_DEV_POWER_INSTANT, 1, inMilliwatts).on(grace),
	fact("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "enforced").
		in(nvml.FI_DEV_POWER_CURRENT_LIMIT, inMilliwatts).asked(powerLimit, inMilliwatts).slowly(),
	fact("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "requested").in(nvml.FI_DEV_POWER_REQUESTED_LIMIT, inMilliwatts).slowly(),
	fact("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "default").in(nvml.FI_DEV_POWER_DEFAULT_LIMIT, inMilliwatts).slowly(),
	fact("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "min").in(nvml.FI_DEV_POWER_MIN_LIMIT, inMilliwatts).slowly(),
	fact("nvidia_gpu_power_limit_watts", powerLimitHelp, "type", "max").in(nvml.FI_DEV_POWER_MAX_LIMIT, inMilliwatts).slowly(),
	use("nvidia_gpu_energy_joules_total",
		"Energy that the GPU consumed while this container, or nobody, held it; from 0 at podgauge's first reading.").
		in(energyField, inMillijoules).on("Volta and newer"),

	gauge("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "gpu").asked(temperature, inCelsius),
	gauge("nvidia_gpu_temperature_celsius", temperatureHelp, "sensor", "memory").in(nvml.FI_DEV_MEMORY_TEMP, inCelsius).on("GPUs with HBM"),
	gauge("nvidia_gpu_temperature_margin_celsius", "How much warmer the GPU may get before it slows down.").asked(margin, inMargin).on(ada),
	fact("nvidia_gpu_temperature_limit_celsius", limitHelp, "type", "shutdown").asked(limitShutdown, inCelsius).on("up to Ampere"),
	fact("nvidia_gpu_temperature_limit_celsius", limitHelp, "type", "slowdown").asked(limitSlowdown, inCelsius).on("up to Ampere"),
	fact("nvidia_gpu_temperature_limit_celsius", limitHelp, "type", "memory_max").asked(limitMemory, inCelsius).on("up to Ampere"),
	fact("nvidia_gpu_temperature_limit_celsius", limitHelp, "type", "gpu_max").asked(limitGPU, inCelsius).on("up to Ampere"),
	fact("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "shutdown").in(nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, inMargin).slowly().on(ada),
	fact("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "slowdown").in(nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, inMargin).slowly().on(ada),
	fact("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "memory_max").in(nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, inMargin).slowly().on(ada),
	fact("nvidia_gpu_temperature_margin_limit_celsius", marginHelp, "type", "gpu_max").in(nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, inMargin).slowly().on(ada),

	gauge("nvidia_gpu_clock_hertz", clockHelp, "clock", "sm").asked(smClock, inMegahertz),
	gauge("nvidia_gpu_clock_hertz", clockHelp, "clock", "memory").asked(memoryClock, inMegahertz),
	gauge("nvidia_gpu_clock_hertz", clockHelp, "clock", "graphics").asked(graphicsClock, inMegahertz),
	gauge("nvidia_gpu_clock_hertz", clockHelp, "clock", "video").asked(videoClock, inMegahertz),
	fact("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "sm").asked(smClockMost, inMegahertz),
	fact("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "memory").asked(memoryClockMost, inMegahertz),
	fact("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "graphics").asked(graphicsClockMost, inMegahertz),
	fact("nvidia_gpu_clock_max_hertz", clockMaxHelp, "clock", "video").asked(videoClockMost, inMegahertz),
	gauge("nvidia_gpu_performance_state", "Performance state, from 0, the fastest, to 15.").asked(performance, unit{times: 1, per: 1, most: 15}),

	// The bits are nvml.h's nvmlClocksEventReason…, but for 0x1: an idle GPU is not throttled.
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
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "sw_power_cap").in(nvml.FI_DEV_PERF_POLICY_POWER, inNanoseconds),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "thermal").in(nvml.FI_DEV_PERF_POLICY_THERMAL, inNanoseconds),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "sync_boost").in(nvml.FI_DEV_PERF_POLICY_SYNC_BOOST, inNanoseconds),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "board_limit").in(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, inNanoseconds),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "low_utilization").in(nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION, inNanoseconds),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "reliability").in(nvml.FI_DEV_PERF_POLICY_RELIABILITY, inNanoseconds),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "sw_thermal").
		in(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, inNanoseconds).on(driver58082),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "hw_thermal").
		in(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, inNanoseconds).on(driver58082),
	use("nvidia_gpu_throttle_seconds_total", throttledHelp, "reason", "hw_power_brake").
		in(nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, inNanoseconds).on(driver58082),
}
