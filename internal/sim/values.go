package sim

import (
	"slices"
	"time"
)

// valueRule makes up the values of a row: those of its family, or of those in it that have
// a label.
type valueRule struct {
	family   string
	label    string       // `type="enforced"`; "": whatever they are
	features modelFeature // all of them; a GPU that lacks one has no such value
	value    func(g *simGPU, now time.Time) float64
}

// constant is a value that follows from nothing.
func constant(v float64) func(*simGPU, time.Time) float64 {
	return func(*simGPU, time.Time) float64 { return v }
}

// fromModel is a value that only the model decides.
func fromModel(value func(m *Model) float64) func(*simGPU, time.Time) float64 {
	return func(g *simGPU, _ time.Time) float64 { return value(g.model) }
}

// linearInLoad is a value that follows the load: what it is at rest, and how much more at full.
func linearInLoad(idle, perLoad float64) func(*simGPU, time.Time) float64 {
	return func(g *simGPU, _ time.Time) float64 { return idle + perLoad*g.load() }
}

// interpolateByLoad is one that the load moves from one of the model's values to another.
func interpolateByLoad(idle, full func(m *Model) float64) func(*simGPU, time.Time) float64 {
	return func(g *simGPU, _ time.Time) float64 {
		low := idle(g.model)
		return low + (full(g.model)-low)*g.load()
	}
}

// perLoadSecond is a counter that rises by so much in a second of full load.
func perLoadSecond(perSecond func(m *Model) float64) func(*simGPU, time.Time) float64 {
	return func(g *simGPU, now time.Time) float64 { return perSecond(g.model) * g.totalLoadSeconds(now) }
}

// metricValues make up all rows. Of several that fit a row and a GPU the first counts.
var metricValues = slices.Concat(capacityRules, activityRules, linkRules, faultRules)

// capacityRules is of memory, power, temperature, clocks and the bus.
var capacityRules = []valueRule{
	{"nvidia_gpu_memory_total_bytes", "", 0, fromModel(func(m *Model) float64 { return m.memory })},
	{"nvidia_gpu_memory_reserved_bytes", "", 0, fromModel(func(m *Model) float64 { return m.reserved })},
	{"nvidia_gpu_memory_used_bytes", "", 0, func(g *simGPU, _ time.Time) float64 { return g.memoryUsed() }},
	{"nvidia_gpu_memory_free_bytes", "", 0, func(g *simGPU, _ time.Time) float64 { return g.model.memory - g.model.reserved - g.memoryUsed() }},
	{"nvidia_gpu_bar1_memory_total_bytes", "", 0, fromModel(func(m *Model) float64 { return m.bar1 })},
	{"nvidia_gpu_bar1_memory_used_bytes", "", 0, linearInLoad(2*mib, 64*mib)},

	{"nvidia_gpu_power_watts", "", 0, func(g *simGPU, _ time.Time) float64 { return g.watts() }},
	{"nvidia_gpu_power_average_watts", "", featureAveragePower, func(g *simGPU, _ time.Time) float64 { return g.watts() }},
	{"nvidia_gpu_module_power_watts", "", featureC2C, func(g *simGPU, _ time.Time) float64 { return 110 + g.watts() }},
	{"nvidia_gpu_power_limit_watts", `type="min"`, 0, fromModel(func(m *Model) float64 { return m.minLimitWatts })},
	{"nvidia_gpu_power_limit_watts", "", 0, fromModel(func(m *Model) float64 { return m.maxLimitWatts })},
	{"nvidia_gpu_energy_joules_total", "", 0, func(g *simGPU, now time.Time) float64 { return g.totalJoules(now) }},

	{"nvidia_gpu_temperature_celsius", `sensor="gpu"`, 0, func(g *simGPU, _ time.Time) float64 { return g.celsius() }},
	{"nvidia_gpu_temperature_celsius", `sensor="memory"`, featureHBM, func(g *simGPU, _ time.Time) float64 {
		return g.model.idleMemoryCelsius + float64(g.Index) + 34*g.load()
	}},
	{"nvidia_gpu_temperature_margin_celsius", "", featureTemperatureMargins, func(g *simGPU, _ time.Time) float64 { return g.model.maxCelsius - g.celsius() }},
	{"nvidia_gpu_temperature_limit_celsius", `type="shutdown"`, featureTemperatureLimits, fromModel(func(m *Model) float64 { return m.shutdownCelsius })},
	{"nvidia_gpu_temperature_limit_celsius", `type="slowdown"`, featureTemperatureLimits, fromModel(func(m *Model) float64 { return m.slowdownCelsius })},
	{"nvidia_gpu_temperature_limit_celsius", `type="gpu_max"`, featureTemperatureLimits, fromModel(func(m *Model) float64 { return m.maxCelsius })},
	{"nvidia_gpu_temperature_limit_celsius", `type="memory_max"`, featureTemperatureLimits | featureHBM, fromModel(func(m *Model) float64 { return m.maxMemoryCelsius })},
	{"nvidia_gpu_temperature_margin_limit_celsius", `type="shutdown"`, featureTemperatureMargins, fromModel(func(m *Model) float64 { return m.maxCelsius - m.shutdownCelsius })},
	{"nvidia_gpu_temperature_margin_limit_celsius", `type="slowdown"`, featureTemperatureMargins, fromModel(func(m *Model) float64 { return m.maxCelsius - m.slowdownCelsius })},
	{"nvidia_gpu_temperature_margin_limit_celsius", "", featureTemperatureMargins, constant(0)},

	{"nvidia_gpu_clock_hertz", `clock="memory"`, 0, fromModel(func(m *Model) float64 { return m.maxMemory })},
	{"nvidia_gpu_clock_hertz", `clock="video"`, 0, interpolateByLoad(func(m *Model) float64 { return m.idleVideo }, func(m *Model) float64 { return m.maxVideo })},
	{"nvidia_gpu_clock_hertz", "", 0, interpolateByLoad(func(m *Model) float64 { return m.idleSM }, func(m *Model) float64 { return m.maxSM })},
	{"nvidia_gpu_clock_max_hertz", `clock="memory"`, 0, fromModel(func(m *Model) float64 { return m.maxMemory })},
	{"nvidia_gpu_clock_max_hertz", `clock="video"`, 0, fromModel(func(m *Model) float64 { return m.maxVideo })},
	{"nvidia_gpu_clock_max_hertz", "", 0, fromModel(func(m *Model) float64 { return m.maxSM })},
	{"nvidia_gpu_performance_state", "", 0, constant(0)},

	{"nvidia_gpu_pcie_transmit_bytes_total", "", featurePCIeBytes, perLoadSecond(func(m *Model) float64 { return m.pcieBytes / 2 })},
	{"nvidia_gpu_pcie_receive_bytes_total", "", featurePCIeBytes, perLoadSecond(func(m *Model) float64 { return m.pcieBytes })},
	{"nvidia_gpu_pcie_link_generation", "", 0, fromModel(func(m *Model) float64 { return m.pcieGeneration })},
	{"nvidia_gpu_pcie_link_generation_max", "", 0, fromModel(func(m *Model) float64 { return m.pcieGeneration })},
	{"nvidia_gpu_pcie_link_width", "", 0, constant(16)},
	{"nvidia_gpu_pcie_link_width_max", "", 0, constant(16)},
}

// activityRules is how busy the parts of a GPU are, and what keeps them from being busier.
var activityRules = []valueRule{
	{"nvidia_gpu_utilization_ratio", "", featureWholeGPU, linearInLoad(0, 1)},
	{"nvidia_gpu_memory_controller_utilization_ratio", "", featureWholeGPU, linearInLoad(0, 0.5)},
	{"nvidia_gpu_encoder_utilization_ratio", "", featureWholeGPU, constant(0)},
	{"nvidia_gpu_decoder_utilization_ratio", "", featureWholeGPU, linearInLoad(0, 0.125)},
	{"nvidia_gpu_jpeg_utilization_ratio", "", featureWholeGPU | featureJPEG, constant(0)},
	{"nvidia_gpu_ofa_utilization_ratio", "", featureWholeGPU | featureJPEG, constant(0)},
	{"nvidia_gpu_throttle_active", `reason="sw_power_cap"`, 0, func(g *simGPU, _ time.Time) float64 { return boolValue(g.watts() >= g.model.maxLimitWatts) }},
	{"nvidia_gpu_throttle_active", "", 0, constant(0)},
	{"nvidia_gpu_throttle_seconds_total", `reason="sw_power_cap"`, 0, perLoadSecond(func(*Model) float64 { return 0.02 })},
	{"nvidia_gpu_throttle_seconds_total", "", 0, constant(0)},

	// These a slice has too, of its GPU instance.
	{"nvidia_gpu_graphics_engine_active_ratio", "", featureGPM, linearInLoad(0, 1)},
	{"nvidia_gpu_sm_active_ratio", "", featureGPM, linearInLoad(0, 0.9)},
	{"nvidia_gpu_sm_occupancy_ratio", "", featureGPM, linearInLoad(0, 0.4)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="tensor"`, featureGPM, linearInLoad(0, 0.5)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="hmma"`, featureGPM, linearInLoad(0, 0.5)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="fp32"`, featureGPM, linearInLoad(0, 0.125)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="int"`, featureGPM, linearInLoad(0, 0.25)},
	{"nvidia_gpu_pipe_active_ratio", "", featureGPM, constant(0)},
	{"nvidia_gpu_dram_bandwidth_utilization_ratio", "", featureGPM, linearInLoad(0, 0.6)},
}

// hasFeatures tells whether a GPU has all of the features, now.
func (g *simGPU) hasFeatures(needs modelFeature) bool {
	has := g.model.features
	if !g.MIGEnabled {
		has |= featureWholeGPU
	}
	return has&needs == needs
}

func (g *simGPU) memoryUsed() float64 {
	used := g.processBytes(g.ID)
	for _, s := range g.migDevices {
		used += g.processBytes(s.ID)
	}
	if g.baseLoad > 0 {
		used += float64(int64(g.model.memory*3/4*g.baseLoad)) + 2*gib
	}
	return min(used, g.model.memory-g.model.reserved)
}

// load is how busy the GPU is, 0 to 1.
func (g *simGPU) load() float64 {
	if len(g.processes) == 0 {
		return g.baseLoad
	}
	load := g.baseLoad + g.processLoad(g.ID)
	for _, s := range g.migDevices {
		load += g.processLoad(s.ID) * float64(s.size.computeSlices) / computeSlicesPerGPU
	}
	return min(load, 1)
}

func (g *simGPU) celsius() float64 { return g.model.idleCelsius + float64(g.Index) + 30*g.load() }

func (g *simGPU) watts() float64 {
	return g.model.idleWatts + (g.model.maxLimitWatts-g.model.idleWatts)*g.load()
}

// accumulate notes what was done until now, before the load changes.
func (g *simGPU) accumulate(now time.Time) {
	g.loadSeconds, g.joules, g.accumulatedAt = g.totalLoadSeconds(now), g.totalJoules(now), now
}

// totalJoules is what was burned since the last reset.
func (g *simGPU) totalJoules(now time.Time) float64 {
	return g.joules + g.watts()*now.Sub(g.accumulatedAt).Seconds()
}

// totalLoadSeconds is the load, summed up over the time since the last reset.
func (g *simGPU) totalLoadSeconds(now time.Time) float64 {
	return g.loadSeconds + g.load()*now.Sub(g.accumulatedAt).Seconds()
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
