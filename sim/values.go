package sim

import (
	"strings"
	"time"

	"github.com/podgauge/podgauge/device"
)

// What an H100 draws, as its data sheet and idle ones have it.
const (
	idleWatts  = 70.0
	limitWatts = 700.0
)

// values make up a row from the GPU's state: one line a row, named as the text
// format names its series.
var values = map[string]func(g *gpu, now time.Time) float64{
	"nvidia_gpu_memory_total_bytes":                     func(g *gpu, _ time.Time) float64 { return memoryBytes },
	"nvidia_gpu_memory_reserved_bytes":                  func(g *gpu, _ time.Time) float64 { return reservedBytes },
	"nvidia_gpu_memory_used_bytes":                      func(g *gpu, _ time.Time) float64 { return g.used() },
	"nvidia_gpu_memory_free_bytes":                      func(g *gpu, _ time.Time) float64 { return memoryBytes - reservedBytes - g.used() },
	"nvidia_gpu_utilization_ratio":                      func(g *gpu, _ time.Time) float64 { return g.busy },
	"nvidia_gpu_memory_controller_utilization_ratio":    func(g *gpu, _ time.Time) float64 { return g.busy / 2 },
	`nvidia_gpu_temperature_celsius{sensor="gpu"}`:      func(g *gpu, _ time.Time) float64 { return 32 + float64(g.Index) + 30*g.busy },
	`nvidia_gpu_temperature_celsius{sensor="memory"}`:   func(g *gpu, _ time.Time) float64 { return 38 + float64(g.Index) + 34*g.busy },
	"nvidia_gpu_power_watts":                            func(g *gpu, _ time.Time) float64 { return g.watts() },
	"nvidia_gpu_power_limit_watts":                      func(g *gpu, _ time.Time) float64 { return limitWatts },
	"nvidia_gpu_energy_joules_total":                    func(g *gpu, now time.Time) float64 { return g.energy(now) },
	`nvidia_gpu_clock_hertz{clock="sm"}`:                func(g *gpu, _ time.Time) float64 { return 345e6 + 1635e6*g.busy },
	`nvidia_gpu_clock_hertz{clock="memory"}`:            func(g *gpu, _ time.Time) float64 { return 2619e6 },
	`nvidia_gpu_throttle_active{reason="gpu_idle"}`:     func(g *gpu, _ time.Time) float64 { return truth(g.busy == 0) },
	`nvidia_gpu_throttle_active{reason="sw_power_cap"}`: func(g *gpu, _ time.Time) float64 { return truth(g.watts() >= limitWatts) },
}

// none are families of which every row is 0 on a sound GPU.
var none = []string{
	"nvidia_gpu_throttle_active", "nvidia_gpu_pcie_replays_total",
	"nvidia_gpu_ecc_volatile_errors_total", "nvidia_gpu_ecc_aggregate_errors_total",
}

const reservedBytes = 600 << 20

// value is what the GPU reads for a row; false for one that it does not have.
func (g *gpu) value(row string, now time.Time) (float64, bool) {
	if v, ok := g.fixed[row]; ok {
		return v, true
	}
	if g.MIG && strings.HasSuffix(row, "utilization_ratio") { // NVML does not have them then
		return 0, false
	}
	if made, ok := values[row]; ok {
		return made(g, now), true
	}
	for _, family := range none {
		if strings.HasPrefix(row, family) {
			return 0, true
		}
	}
	return 0, false
}

// rowName names a row as the text format names its series.
func rowName(row device.Metric) string {
	if len(row.Labels) == 0 {
		return row.Name
	}
	labels := make([]string, len(row.Labels))
	for i, l := range row.Labels {
		labels[i] = l.Name + `="` + l.Value + `"`
	}
	return row.Name + "{" + strings.Join(labels, ",") + "}"
}

func (g *gpu) used() float64 {
	if g.busy == 0 {
		return 0
	}
	return float64(int64(60<<30*g.busy)) + 2<<30
}

func (g *gpu) watts() float64 { return idleWatts + (limitWatts-idleWatts)*g.busy }

// energy is what was burned since the last reset.
func (g *gpu) energy(now time.Time) float64 {
	return g.joules + g.watts()*now.Sub(g.busySet).Seconds()
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
