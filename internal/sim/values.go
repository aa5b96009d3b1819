package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// valueRule computes the values of rows. The first matching rule counts.
type valueRule struct {
	rows  string // families, without "nvidia_gpu_" and possibly with a label: `power_limit_watts{type="min|max"}`
	on    generations
	value func(g *simGPU) float64 // nil: 0
}

// valueRules are the rules of all rows. Counters of errors are always 0.
var valueRules = []valueRule{
	{"memory_total_bytes", all, func(g *simGPU) float64 { return g.model.memory }},
	{"memory_reserved_bytes", all, func(g *simGPU) float64 { return g.model.reserved }},
	{"memory_used_bytes", all, (*simGPU).memoryUsed},
	{"memory_free_bytes", all, func(g *simGPU) float64 { return g.model.memory - g.model.reserved - g.memoryUsed() }},
	{"bar1_memory_total_bytes", all, func(g *simGPU) float64 { return g.model.bar1 }},
	{"bar1_memory_used_bytes", all, (*simGPU).bar1Used},

	{"power_watts", all, (*simGPU).watts},
	{"power_average_watts", fromHopper, (*simGPU).watts},
	{"module_power_watts", blackwell, func(g *simGPU) float64 { return 110 + g.watts() }},
	{`power_limit_watts{type="min"}`, all, func(g *simGPU) float64 { return g.model.minLimitWatts }},
	{"power_limit_watts", all, func(g *simGPU) float64 { return g.model.maxLimitWatts }},
	{"energy_joules_total", all, func(g *simGPU) float64 { return g.joules }},

	{`temperature_celsius{sensor="gpu"}`, all, (*simGPU).celsius},
	{
		`temperature_celsius{sensor="memory"}`, fromAmpere,
		func(g *simGPU) float64 { return g.model.idleMemoryCelsius + float64(g.Index) + 34*g.load() },
	},
	{"temperature_margin_celsius", fromHopper, func(g *simGPU) float64 { return g.model.maxCelsius - g.celsius() }},
	{
		`temperature_limit_celsius{type="shutdown"}`, toAmpere,
		func(g *simGPU) float64 { return g.model.shutdownCelsius },
	},
	{
		`temperature_limit_celsius{type="slowdown"}`, toAmpere,
		func(g *simGPU) float64 { return g.model.slowdownCelsius },
	},
	{`temperature_limit_celsius{type="gpu_max"}`, toAmpere, func(g *simGPU) float64 { return g.model.maxCelsius }},
	{
		`temperature_limit_celsius{type="memory_max"}`, ampere,
		func(g *simGPU) float64 { return g.model.maxMemoryCelsius },
	},
	{
		`temperature_margin_limit_celsius{type="shutdown"}`, fromHopper,
		func(g *simGPU) float64 { return g.model.maxCelsius - g.model.shutdownCelsius },
	},
	{
		`temperature_margin_limit_celsius{type="slowdown"}`, fromHopper,
		func(g *simGPU) float64 { return g.model.maxCelsius - g.model.slowdownCelsius },
	},
	{"temperature_margin_limit_celsius", fromHopper, nil},
	{"fan_speed_ratio", turing, linearInLoad(0.3, 0.6)},

	{
		`clock_hertz{clock="memory"} clock_max_hertz{clock="memory"}`, all,
		func(g *simGPU) float64 { return g.model.maxMemory },
	},
	{
		`clock_hertz{clock="video"}`, all,
		func(g *simGPU) float64 { return g.byLoad(g.model.idleVideo, g.model.maxVideo) },
	},
	{
		"clock_hertz", all,
		func(g *simGPU) float64 { return g.byLoad(g.model.idleSM, g.model.maxSM) * (1 - g.slowdown) },
	},
	{`clock_max_hertz{clock="video"}`, all, func(g *simGPU) float64 { return g.model.maxVideo }},
	{"clock_max_hertz", all, func(g *simGPU) float64 { return g.model.maxSM }},
	{"performance_state", all, nil},

	{"pcie_transmit_bytes_total", fromAmpere, func(g *simGPU) float64 {
		return g.model.pcieBytes / 2 * g.trafficSeconds
	}},
	{"pcie_receive_bytes_total", fromAmpere, func(g *simGPU) float64 { return g.model.pcieBytes * g.trafficSeconds }},
	{"pcie_link_generation pcie_link_generation_max", all, func(g *simGPU) float64 { return g.model.pcieGeneration }},
	{"pcie_link_width pcie_link_width_max", all, constant(16)},
	{"pcie_replays_total pcie_replay_rollovers_total", all, nil},
	{"pcie_errors_total", fromHopper, nil},

	{"utilization_ratio", all | wholeGPU, linearInLoad(0, 1)},
	{"memory_controller_utilization_ratio", all | wholeGPU, linearInMath(0.5)},
	{"encoder_utilization_ratio", all | wholeGPU, nil},
	{"decoder_utilization_ratio", all | wholeGPU, linearInLoad(0, 0.125)},
	{"jpeg_utilization_ratio ofa_utilization_ratio", all | wholeGPU, nil},
	{
		`throttle_active{reason="sw_power_cap"}`, all,
		func(g *simGPU) float64 { return boolValue(g.watts() >= g.model.maxLimitWatts) },
	},
	{`throttle_seconds_total{reason="sw_power_cap"}`, all, func(g *simGPU) float64 { return 0.02 * g.loadSeconds }},
	{`throttle_active{reason="hw_thermal"}`, all, func(g *simGPU) float64 { return boolValue(g.slowdown > 0) }},
	{`throttle_seconds_total{reason="hw_thermal"}`, all, func(g *simGPU) float64 { return g.slowSeconds }},
	{"throttle_active throttle_seconds_total", all, nil},

	// GPU instances have these rows as well.
	{"graphics_engine_active_ratio", fromHopper, linearInLoad(0, 1)},
	{"sm_active_ratio", fromHopper, func(g *simGPU) float64 { return 0.9 * g.usage().multiprocessors }},
	{"sm_occupancy_ratio", fromHopper, func(g *simGPU) float64 { return 0.4 * g.usage().multiprocessors }},
	{`pipe_active_ratio{pipe="tensor|hmma"}`, fromHopper, linearInMath(0.5)},
	{`pipe_active_ratio{pipe="fp32"}`, fromHopper, linearInMath(0.125)},
	{`pipe_active_ratio{pipe="int"}`, fromHopper, linearInMath(0.25)},
	{"pipe_active_ratio", fromHopper, nil},
	{"dram_bandwidth_utilization_ratio", fromHopper, linearInMath(0.6)},

	{
		"nvlink_transmit_bytes_total nvlink_receive_bytes_total", fromAmpere,
		func(g *simGPU) float64 { return float64(g.model.nvlinks) * g.linkBytes() },
	},
	{"nvlink_link_transmit_bytes_total nvlink_link_receive_bytes_total", fromAmpere, (*simGPU).linkBytes},
	{"nvlink_links nvlink_links_up", fromAmpere, func(g *simGPU) float64 { return float64(g.model.nvlinks) }},
	{"nvlink_up", fromAmpere, constant(1)},
	{"nvlink_speed_bytes_per_second", fromAmpere, func(g *simGPU) float64 { return g.model.nvlinkBytes }},
	{`nvlink_errors_total{type="crc_flit|crc_data|replay|recovery|ecc_data"}`, ampere | hopper, nil},
	{`nvlink_errors_total{type="crc"}`, hopper, nil},
	{`nvlink_errors_total{type="malformed_packet|buffer_overrun|receive|receive_remote"}`, blackwell, nil},
	{`nvlink_errors_total{type="receive_general|local_link_integrity|transmit_discard"}`, blackwell, nil},
	{`nvlink_link_errors_total{type="replay|recovery|crc"}`, ampere | hopper, nil},
	{"nvlink_link_errors_total nvlink_recoveries_total nvlink_effective_errors_total", blackwell, nil},
	{"nvlink_symbol_errors_total", blackwell, func(g *simGPU) float64 { return 0.1 * g.loadSeconds }},
	{`fabric_state{state="completed"} fabric_healthy`, fromHopper, constant(1)},
	{"fabric_state", fromHopper, nil},
	{"fabric_fault", blackwell, nil},
	{"c2c_links c2c_links_up", blackwell, constant(2)},
	{"c2c_bandwidth_max_bytes_per_second", blackwell, constant(2 * 447.12e9)},
	{"c2c_errors_total", blackwell, nil},

	{"ecc_volatile_errors_total ecc_aggregate_errors_total", all, nil},
	{
		`ecc_volatile_location_errors_total{location="dram"} ecc_aggregate_location_errors_total{location="dram"}`, all,
		nil,
	},
	{
		`ecc_volatile_location_errors_total{location="sram"} ecc_aggregate_location_errors_total{location="sram"}`,
		fromAmpere, nil,
	},
	{
		"ecc_volatile_location_errors_total ecc_aggregate_location_errors_total retired_pages retired_pages_pending",
		turing, nil,
	},
	{"ecc_sram_aggregate_unit_errors_total ecc_sram_threshold_exceeded", fromAmpere, nil},
	{"remapped_rows row_remap_pending row_remap_failure", fromAmpere, nil},
	{`row_remap_banks{availability="max"}`, fromAmpere, func(g *simGPU) float64 { return g.model.remapBanks }},
	{"row_remap_banks", fromAmpere, nil},
	{"repair_pending unrepairable_memory", fromHopper, nil},
	{"remapped_rows_inactive", blackwell, nil},
	{`recovery_action{action="none"} compute_mode{mode="default"}`, all, constant(1)},
	{`persistence_mode_enabled ecc_enabled feature_supported{feature="ecc"}`, all, constant(1)},
	{"recovery_action compute_mode", all, nil},
	{"mig_enabled", fromAmpere, func(g *simGPU) float64 { return boolValue(g.MIGEnabled) }},
	{`feature_supported{feature="c2c"}`, all, ifOn(blackwell)},
	{`feature_supported{feature="fabric|gpm"}`, all, ifOn(fromHopper)},
	{`feature_supported{feature="mig|nvlink|row_remapping"}`, all, ifOn(fromAmpere)},
	{`feature_supported{feature="page_retirement"}`, all, ifOn(turing)},
}

func constant(v float64) func(*simGPU) float64 { return func(*simGPU) float64 { return v } }

// linearInLoad grows by perLoad from idle to full load.
func linearInLoad(idle, perLoad float64) func(*simGPU) float64 {
	return func(g *simGPU) float64 { return idle + perLoad*g.load() }
}

// linearInMath grows with what kernels compute, to atFull.
func linearInMath(atFull float64) func(*simGPU) float64 {
	return func(g *simGPU) float64 { return atFull * g.usage().math }
}

func ifOn(on generations) func(*simGPU) float64 {
	return func(g *simGPU) float64 { return boolValue(g.model.generation&on != 0) }
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// metricRow is a row of the machine with matching rules.
type metricRow struct {
	name  string // as in the text format
	rules []valueRule
	link  int // number of the row's NVLink; -1 without
}

// migRows are the families and rows of GPU instances.
var migRows = []string{
	"nvidia_gpu_memory_total_bytes", "nvidia_gpu_memory_reserved_bytes", "nvidia_gpu_memory_used_bytes",
	"nvidia_gpu_memory_free_bytes",
	"nvidia_gpu_bar1_memory_total_bytes", "nvidia_gpu_bar1_memory_used_bytes",
	"nvidia_gpu_graphics_engine_active_ratio", "nvidia_gpu_sm_active_ratio", "nvidia_gpu_sm_occupancy_ratio",
	"nvidia_gpu_pipe_active_ratio", "nvidia_gpu_dram_bandwidth_utilization_ratio",
	`nvidia_gpu_ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}`,
}

func newRow(m device.Metric) metricRow {
	r := metricRow{name: m.Name, link: -1}
	var labels []string
	for _, l := range m.Labels {
		labels = append(labels, l.Name+`="`+l.Value+`"`)
		if n, err := strconv.Atoi(l.Value); err == nil && l.Name == "link" {
			r.link = n
		}
	}
	if len(labels) > 0 {
		r.name += "{" + strings.Join(labels, ",") + "}"
	}
	for _, rule := range valueRules {
		if slices.ContainsFunc(strings.Fields(rule.rows),
			func(pattern string) bool { return matches(pattern, m.Name, labels) }) {
			r.rules = append(r.rules, rule)
		}
	}
	return r
}

// matches reports whether a rule's pattern, such as
// `power_limit_watts{type="min|max"}`, includes a row.
func matches(pattern, name string, labels []string) bool {
	family, label, limited := strings.Cut(strings.TrimSuffix(pattern, `"}`), "{")
	key, values, _ := strings.Cut(label, `="`)
	return "nvidia_gpu_"+family == name &&
		(!limited || slices.ContainsFunc(strings.Split(values, "|"), func(value string) bool {
			return slices.Contains(labels, key+`="`+value+`"`)
		}))
}

// value returns the GPU's value of a row after accumulate; false without a
// value.
func (g *simGPU) value(r *metricRow, now time.Time) (float64, bool) {
	if v, ok := g.fixedValues[r.name]; ok {
		return v, true
	}
	if up, ok := g.ramps[r.name]; ok {
		return up.from + up.perSecond*now.Sub(up.since).Seconds(), true
	}
	for _, rule := range r.rules {
		if r.link >= g.model.nvlinks || rule.on&g.model.generation == 0 || rule.on&wholeGPU != 0 && g.MIGEnabled {
			continue
		}
		if rule.value == nil {
			return 0, true
		}
		return rule.value(g), true
	}
	return 0, false
}
