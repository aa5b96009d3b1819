package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// metricRow is a row of the machine with matching rules.
type metricRow struct {
	name  string // as in the text format
	rules []valueRule
	link  int // number of the row's NVLink; -1 without
}

// migFamilies are the families of GPU instances.
var migFamilies = []string{
	"nvidia_gpu_memory_total_bytes", "nvidia_gpu_memory_reserved_bytes", "nvidia_gpu_memory_used_bytes",
	"nvidia_gpu_memory_free_bytes",
	"nvidia_gpu_bar1_memory_total_bytes", "nvidia_gpu_bar1_memory_used_bytes",
	"nvidia_gpu_graphics_engine_active_ratio", "nvidia_gpu_sm_active_ratio", "nvidia_gpu_sm_occupancy_ratio",
	"nvidia_gpu_pipe_active_ratio", "nvidia_gpu_dram_bandwidth_utilization_ratio",
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

// appendSamples appends the values of a GPU and of the GPU instances.
func (m *Machine) appendSamples(g *simGPU, buf []device.Sample) []device.Sample {
	now := m.now()
	g.accumulate(now)
	for i := range m.rows {
		if value, ok := g.value(&m.rows[i], now); ok {
			buf = append(buf, device.Sample{Device: g.ID, Metric: i, Value: value})
		}
	}
	for _, in := range g.instances {
		for _, i := range m.migRows {
			if value, ok := in.value(&m.rows[i], now); ok {
				buf = append(buf, device.Sample{Device: in.ID, Metric: i, Value: value})
			}
		}
	}
	return buf
}
