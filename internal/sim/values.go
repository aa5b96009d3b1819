package sim

import "time"

// capacityRules have memory, power, temperature, clocks and PCIe.
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

	{"nvidia_gpu_fan_speed_ratio", "", featureFans, linearInLoad(0.3, 0.6)},

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

// activityRules have utilization and throttling.
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

	// GPU instances have the rows below as well.
	{"nvidia_gpu_graphics_engine_active_ratio", "", featureGPM, linearInLoad(0, 1)},
	{"nvidia_gpu_sm_active_ratio", "", featureGPM, linearInLoad(0, 0.9)},
	{"nvidia_gpu_sm_occupancy_ratio", "", featureGPM, linearInLoad(0, 0.4)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="tensor|hmma"`, featureGPM, linearInLoad(0, 0.5)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="fp32"`, featureGPM, linearInLoad(0, 0.125)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="int"`, featureGPM, linearInLoad(0, 0.25)},
	{"nvidia_gpu_pipe_active_ratio", "", featureGPM, constant(0)},
	{"nvidia_gpu_dram_bandwidth_utilization_ratio", "", featureGPM, linearInLoad(0, 0.6)},
}
