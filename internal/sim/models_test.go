package sim_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// parseMetric parses the name of a row in the text format:
// family{label="value"}.
func parseMetric(name string) device.Metric {
	family, rest, _ := strings.Cut(name, "{")
	m := device.Metric{Name: family, Help: "Help."}
	for pair := range strings.SplitSeq(strings.TrimSuffix(rest, "}"), ",") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			m.Labels = append(m.Labels, device.Label{Name: name, Value: strings.Trim(value, `"`)})
		}
	}
	return m
}

func parseMetrics(names ...string) (list []device.Metric) {
	for _, name := range names {
		list = append(list, parseMetric(name))
	}
	return list
}

// metricValues reads a GPU and returns the values by device and row.
func metricValues(t *testing.T, m *sim.Machine, gpu device.GPU) map[device.ID]map[string]float64 {
	t.Helper()
	samples, err := m.Read(gpu)
	require.NoError(t, err)
	got := map[device.ID]map[string]float64{}
	for _, s := range samples {
		if got[s.Device] == nil {
			got[s.Device] = map[string]float64{}
		}
		row := m.Metrics()[s.Metric]
		name := row.Name
		for _, l := range row.Labels {
			name += " " + l.Value
		}
		if _, twice := got[s.Device][name]; twice {
			t.Errorf("%s: got %s twice", s.Device, name)
		}
		got[s.Device][name] = s.Value
	}
	return got
}

// TestReadingFollowsLoadAndClock checks that values do not change while the
// clock stands still.
func TestReadingFollowsLoadAndClock(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(parseMetrics("nvidia_gpu_sm_active_ratio", "nvidia_gpu_pcie_transmit_bytes_total",
		"nvidia_gpu_nvlink_transmit_bytes_total",
		`nvidia_gpu_nvlink_link_transmit_bytes_total{link="3"}`), 1, func() time.Time { return now })
	gpu := m.GPUs()[0]
	read := func() string { return fmt.Sprint(metricValues(t, m, gpu)[device.ID(gpu)]) }
	idle := read()
	now = now.Add(time.Minute)
	if after := read(); after != idle {
		t.Errorf("idle GPU: got %s, then %s", idle, after)
	}
	m.SetUtilization(device.ID(gpu), 0.5)
	now = now.Add(time.Second)
	busy := metricValues(t, m, gpu)[device.ID(gpu)]
	if second := fmt.Sprint(busy); second != read() {
		t.Error("two readings at the same time: got different values")
	}
	if busy["nvidia_gpu_sm_active_ratio"] != 0.45 || busy["nvidia_gpu_pcie_transmit_bytes_total"] != 6e9 {
		t.Errorf("after a second at half load: got %v", busy)
	}
	one, all := busy["nvidia_gpu_nvlink_link_transmit_bytes_total 3"], busy["nvidia_gpu_nvlink_transmit_bytes_total"]
	if one <= 0 || all != 18*one {
		t.Errorf("bytes: got %f for a link, %f for all links, want 18 times as many", one, all)
	}
	m.ResetGPU(device.ID(gpu))
	if got := metricValues(t, m, gpu)[device.ID(gpu)]["nvidia_gpu_pcie_transmit_bytes_total"]; got != 0 {
		t.Errorf("counter after a reset: got %f, want 0", got)
	}
}
