package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// metricRow is what is known of one of the machine's rows.
type metricRow struct {
	name  string // as the text format names its series
	rules []*valueRule
	link  int // the NVLink that it is of; -1: of none
}

// migFamilies are the families that a GPU instance has of its own.
var migFamilies = []string{
	"nvidia_gpu_memory_total_bytes", "nvidia_gpu_memory_reserved_bytes", "nvidia_gpu_memory_used_bytes", "nvidia_gpu_memory_free_bytes",
	"nvidia_gpu_bar1_memory_total_bytes", "nvidia_gpu_bar1_memory_used_bytes",
	"nvidia_gpu_graphics_engine_active_ratio", "nvidia_gpu_sm_active_ratio", "nvidia_gpu_sm_occupancy_ratio",
	"nvidia_gpu_pipe_active_ratio", "nvidia_gpu_dram_bandwidth_utilization_ratio",
}

func newRow(m device.Metric) metricRow {
	r := metricRow{name: rowName(m), link: -1}
	var labels []string
	for _, l := range m.Labels {
		labels = append(labels, labelText(l))
		if n, err := strconv.Atoi(l.Value); err == nil && l.Name == "link" {
			r.link = n
		}
	}
	for i := range metricValues {
		if v := &metricValues[i]; v.family == m.Name && (v.label == "" || slices.Contains(labels, v.label)) {
			r.rules = append(r.rules, v)
		}
	}
	return r
}

// labelText is a label as the text format writes it.
func labelText(l device.Label) string { return l.Name + `="` + l.Value + `"` }

// rowName names a row as the text format names its series.
func rowName(m device.Metric) string {
	if len(m.Labels) == 0 {
		return m.Name
	}
	labels := make([]string, len(m.Labels))
	for i, l := range m.Labels {
		labels[i] = labelText(l)
	}
	return m.Name + "{" + strings.Join(labels, ",") + "}"
}

// appendSamples are the values of a GPU and then those of its instances.
func (m *Machine) appendSamples(g *simGPU, buf []device.Sample) []device.Sample {
	now := m.now()
	for i := range m.rows {
		if value, ok := g.value(&m.rows[i], now); ok {
			buf = append(buf, device.Sample{Device: g.ID, Metric: i, Value: value})
		}
	}
	for _, in := range g.instances {
		in.refresh(g)
		for _, i := range m.migRows {
			if value, ok := in.value(&m.rows[i], now); ok {
				buf = append(buf, device.Sample{Device: in.ID, Metric: i, Value: value})
			}
		}
	}
	return buf
}

// value is what the GPU reads for a row; false for one that it does not have.
func (g *simGPU) value(r *metricRow, now time.Time) (float64, bool) {
	if len(g.fixedValues) > 0 {
		if v, ok := g.fixedValues[r.name]; ok {
			return v, true
		}
	}
	if len(g.ramps) > 0 {
		if up, ok := g.ramps[r.name]; ok {
			return up.from + up.perSecond*now.Sub(up.since).Seconds(), true
		}
	}
	if r.link >= g.model.nvlinks {
		return 0, false
	}
	for _, m := range r.rules {
		if g.hasFeatures(m.features) {
			return m.value(g, now), true
		}
	}
	return 0, false
}
