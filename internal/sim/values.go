package sim

import (
	"slices"
	"time"
)

// made makes up the values of a row: those of its family, or of those in it that have
// a label.
type made struct {
	family string
	label  string  // `type="enforced"`; "": whatever they are
	needs  feature // all of them; a GPU that lacks one has no such value
	value  func(g *gpu, now time.Time) float64
}

// always is a value that follows from nothing.
func always(v float64) func(*gpu, time.Time) float64 {
	return func(*gpu, time.Time) float64 { return v }
}

// of is a value that only the model decides.
func of(value func(m *Model) float64) func(*gpu, time.Time) float64 {
	return func(g *gpu, _ time.Time) float64 { return value(g.model) }
}

// busily is a value that follows the load: what it is at rest, and how much more at full.
func busily(rest, more float64) func(*gpu, time.Time) float64 {
	return func(g *gpu, _ time.Time) float64 { return rest + more*g.load() }
}

// between is one that the load moves from one of the model's values to another.
func between(rest, full func(m *Model) float64) func(*gpu, time.Time) float64 {
	return func(g *gpu, _ time.Time) float64 {
		low := rest(g.model)
		return low + (full(g.model)-low)*g.load()
	}
}

// worked is a counter that rises by so much in a second of full load.
func worked(perSecond func(m *Model) float64) func(*gpu, time.Time) float64 {
	return func(g *gpu, now time.Time) float64 { return perSecond(g.model) * g.workedSeconds(now) }
}

// values make up all rows. Of several that fit a row and a GPU the first counts.
var values = slices.Concat(capacity, activity, links, faults)

// capacity is of memory, power, temperature, clocks and the bus.
var capacity = []made{
	{"nvidia_gpu_memory_total_bytes", "", 0, of(func(m *Model) float64 { return m.memory })},
	{"nvidia_gpu_memory_reserved_bytes", "", 0, of(func(m *Model) float64 { return m.reserved })},
	{"nvidia_gpu_memory_used_bytes", "", 0, func(g *gpu, _ time.Time) float64 { return g.used() }},
	{"nvidia_gpu_memory_free_bytes", "", 0, func(g *gpu, _ time.Time) float64 { return g.model.memory - g.model.reserved - g.used() }},
	{"nvidia_gpu_bar1_memory_total_bytes", "", 0, of(func(m *Model) float64 { return m.bar1 })},
	{"nvidia_gpu_bar1_memory_used_bytes", "", 0, busily(2*mib, 64*mib)},

	{"nvidia_gpu_power_watts", "", 0, func(g *gpu, _ time.Time) float64 { return g.watts() }},
	{"nvidia_gpu_power_average_watts", "", average, func(g *gpu, _ time.Time) float64 { return g.watts() }},
	{"nvidia_gpu_module_power_watts", "", c2c, func(g *gpu, _ time.Time) float64 { return 110 + g.watts() }},
	{"nvidia_gpu_power_limit_watts", `type="min"`, 0, of(func(m *Model) float64 { return m.leastWatts })},
	{"nvidia_gpu_power_limit_watts", "", 0, of(func(m *Model) float64 { return m.limitWatts })},
	{"nvidia_gpu_energy_joules_total", "", 0, func(g *gpu, now time.Time) float64 { return g.energy(now) }},

	{"nvidia_gpu_temperature_celsius", `sensor="gpu"`, 0, func(g *gpu, _ time.Time) float64 { return g.celsius() }},
	{"nvidia_gpu_temperature_celsius", `sensor="memory"`, hbm, func(g *gpu, _ time.Time) float64 {
		return g.model.idleMemoryCelsius + float64(g.Index) + 34*g.load()
	}},
	{"nvidia_gpu_temperature_margin_celsius", "", margins, func(g *gpu, _ time.Time) float64 { return g.model.warmest - g.celsius() }},
	{"nvidia_gpu_temperature_limit_celsius", `type="shutdown"`, limits, of(func(m *Model) float64 { return m.shutdown })},
	{"nvidia_gpu_temperature_limit_celsius", `type="slowdown"`, limits, of(func(m *Model) float64 { return m.slowdown })},
	{"nvidia_gpu_temperature_limit_celsius", `type="gpu_max"`, limits, of(func(m *Model) float64 { return m.warmest })},
	{"nvidia_gpu_temperature_limit_celsius", `type="memory_max"`, limits | hbm, of(func(m *Model) float64 { return m.warmestMemory })},
	{"nvidia_gpu_temperature_margin_limit_celsius", `type="shutdown"`, margins, of(func(m *Model) float64 { return m.warmest - m.shutdown })},
	{"nvidia_gpu_temperature_margin_limit_celsius", `type="slowdown"`, margins, of(func(m *Model) float64 { return m.warmest - m.slowdown })},
	{"nvidia_gpu_temperature_margin_limit_celsius", "", margins, always(0)},

	{"nvidia_gpu_clock_hertz", `clock="memory"`, 0, of(func(m *Model) float64 { return m.topMemory })},
	{"nvidia_gpu_clock_hertz", `clock="video"`, 0, between(func(m *Model) float64 { return m.idleVideo }, func(m *Model) float64 { return m.topVideo })},
	{"nvidia_gpu_clock_hertz", "", 0, between(func(m *Model) float64 { return m.idleSM }, func(m *Model) float64 { return m.topSM })},
	{"nvidia_gpu_clock_max_hertz", `clock="memory"`, 0, of(func(m *Model) float64 { return m.topMemory })},
	{"nvidia_gpu_clock_max_hertz", `clock="video"`, 0, of(func(m *Model) float64 { return m.topVideo })},
	{"nvidia_gpu_clock_max_hertz", "", 0, of(func(m *Model) float64 { return m.topSM })},
	{"nvidia_gpu_performance_state", "", 0, always(0)},

	{"nvidia_gpu_pcie_transmit_bytes_total", "", pcieBytes, worked(func(m *Model) float64 { return m.pcieBytes / 2 })},
	{"nvidia_gpu_pcie_receive_bytes_total", "", pcieBytes, worked(func(m *Model) float64 { return m.pcieBytes })},
	{"nvidia_gpu_pcie_link_generation", "", 0, of(func(m *Model) float64 { return m.pcieGeneration })},
	{"nvidia_gpu_pcie_link_generation_max", "", 0, of(func(m *Model) float64 { return m.pcieGeneration })},
	{"nvidia_gpu_pcie_link_width", "", 0, always(16)},
	{"nvidia_gpu_pcie_link_width_max", "", 0, always(16)},
}

// activity is how busy the parts of a GPU are, and what keeps them from being busier.
var activity = []made{
	{"nvidia_gpu_utilization_ratio", "", unpartitioned, busily(0, 1)},
	{"nvidia_gpu_memory_controller_utilization_ratio", "", unpartitioned, busily(0, 0.5)},
	{"nvidia_gpu_encoder_utilization_ratio", "", unpartitioned, always(0)},
	{"nvidia_gpu_decoder_utilization_ratio", "", unpartitioned, busily(0, 0.125)},
	{"nvidia_gpu_jpeg_utilization_ratio", "", unpartitioned | jpeg, always(0)},
	{"nvidia_gpu_ofa_utilization_ratio", "", unpartitioned | jpeg, always(0)},
	{"nvidia_gpu_throttle_active", `reason="sw_power_cap"`, 0, func(g *gpu, _ time.Time) float64 { return truth(g.watts() >= g.model.limitWatts) }},
	{"nvidia_gpu_throttle_active", "", 0, always(0)},
	{"nvidia_gpu_throttle_seconds_total", `reason="sw_power_cap"`, 0, worked(func(*Model) float64 { return 0.02 })},
	{"nvidia_gpu_throttle_seconds_total", "", 0, always(0)},

	// These a slice has too, of its GPU instance.
	{"nvidia_gpu_graphics_engine_active_ratio", "", gpm, busily(0, 1)},
	{"nvidia_gpu_sm_active_ratio", "", gpm, busily(0, 0.9)},
	{"nvidia_gpu_sm_occupancy_ratio", "", gpm, busily(0, 0.4)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="tensor"`, gpm, busily(0, 0.5)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="hmma"`, gpm, busily(0, 0.5)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="fp32"`, gpm, busily(0, 0.125)},
	{"nvidia_gpu_pipe_active_ratio", `pipe="int"`, gpm, busily(0, 0.25)},
	{"nvidia_gpu_pipe_active_ratio", "", gpm, always(0)},
	{"nvidia_gpu_dram_bandwidth_utilization_ratio", "", gpm, busily(0, 0.6)},
}

// has tells whether a GPU has all of the features, now.
func (g *gpu) has(needs feature) bool {
	has := g.model.has
	if !g.MIG {
		has |= unpartitioned
	}
	return has&needs == needs
}

func (g *gpu) used() float64 {
	used := g.processBytes(g.ID)
	for _, s := range g.slices {
		used += g.processBytes(s.ID)
	}
	if g.busy > 0 {
		used += float64(int64(g.model.memory*3/4*g.busy)) + 2*gib
	}
	return min(used, g.model.memory-g.model.reserved)
}

// load is how busy the GPU is, 0 to 1.
func (g *gpu) load() float64 {
	if len(g.processes) == 0 {
		return g.busy
	}
	load := g.busy + g.processLoad(g.ID)
	for _, s := range g.slices {
		load += g.processLoad(s.ID) * float64(s.size.c) / slicesOfGPU
	}
	return min(load, 1)
}

func (g *gpu) celsius() float64 { return g.model.idleCelsius + float64(g.Index) + 30*g.load() }

func (g *gpu) watts() float64 {
	return g.model.idleWatts + (g.model.limitWatts-g.model.idleWatts)*g.load()
}

// settle notes what was done until now, before the load changes.
func (g *gpu) settle(now time.Time) {
	g.worked, g.joules, g.settled = g.workedSeconds(now), g.energy(now), now
}

// energy is what was burned since the last reset.
func (g *gpu) energy(now time.Time) float64 {
	return g.joules + g.watts()*now.Sub(g.settled).Seconds()
}

// workedSeconds is the load, summed up over the time since the last reset.
func (g *gpu) workedSeconds(now time.Time) float64 {
	return g.worked + g.load()*now.Sub(g.settled).Seconds()
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
