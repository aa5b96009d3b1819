package sim_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/devicetest"
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
	if err != nil {
		t.Fatal(err)
	}
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

func TestRowsOfModels(t *testing.T) {
	const h100, a100, gb200, t4 = 1, 2, 4, 8
	has := map[string]int{
		"nvidia_gpu_power_watts":                                                            h100 | a100 | gb200 | t4,
		"nvidia_gpu_power_average_watts":                                                    h100 | gb200,
		"nvidia_gpu_module_power_watts":                                                     gb200,
		"nvidia_gpu_sm_active_ratio":                                                        h100 | gb200,
		`nvidia_gpu_temperature_celsius{sensor="memory"}`:                                   h100 | a100 | gb200,
		`nvidia_gpu_temperature_limit_celsius{type="memory_max"}`:                           a100,
		`nvidia_gpu_temperature_limit_celsius{type="shutdown"}`:                             a100 | t4,
		"nvidia_gpu_temperature_margin_celsius":                                             h100 | gb200,
		"nvidia_gpu_nvlink_links":                                                           h100 | a100 | gb200,
		`nvidia_gpu_nvlink_errors_total{type="crc_flit"}`:                                   h100 | a100,
		`nvidia_gpu_nvlink_errors_total{type="crc"}`:                                        h100,
		`nvidia_gpu_nvlink_errors_total{type="receive"}`:                                    gb200,
		`nvidia_gpu_nvlink_link_transmit_bytes_total{link="11"}`:                            h100 | a100 | gb200,
		`nvidia_gpu_nvlink_link_transmit_bytes_total{link="12"}`:                            h100 | gb200,
		`nvidia_gpu_nvlink_link_errors_total{link="0",type="replay"}`:                       h100 | a100 | gb200,
		"nvidia_gpu_c2c_links":                                                              gb200,
		"nvidia_gpu_fabric_healthy":                                                         h100 | gb200,
		`nvidia_gpu_ecc_volatile_location_errors_total{location="l1",severity="corrected"}`: t4,
		"nvidia_gpu_ecc_sram_threshold_exceeded":                                            h100 | a100 | gb200,
		"nvidia_gpu_row_remap_pending":                                                      h100 | a100 | gb200,
		"nvidia_gpu_retired_pages_pending":                                                  t4,
		`nvidia_gpu_mig_enabled{when="now"}`:                                                h100 | a100 | gb200,
		"nvidia_gpu_unrepairable_memory":                                                    gb200,
	}
	m := sim.NewMachineWithModels(parseMetrics(slices.Sorted(maps.Keys(has))...), time.Now, sim.Models()...)
	for i, gpu := range m.GPUs() {
		got := metricValues(t, m, gpu)[device.ID(gpu)]
		for name, models := range has {
			row := parseMetric(name)
			key := row.Name
			for _, l := range row.Labels {
				key += " " + l.Value
			}
			if _, ok := got[key]; ok != (models&(1<<i) != 0) {
				t.Errorf("GPU %d, row %s: got present %v, want %v", i, name, ok, !ok)
			}
		}
	}
	devices, err := m.Devices(t.Context())
	if err != nil || devices[1].Model != "NVIDIA A100-SXM4-80GB" || devices[3].MemoryBytes != 15<<30 {
		t.Errorf("got %+v, %v, want an A100 and a T4", devices, err)
	}
	links, err := m.Links(t.Context())
	if err != nil || slices.ContainsFunc(links, func(l device.Link) bool { return l.NVLinks != 0 }) {
		t.Errorf("links between models: got %+v, %v, want no NVLinks", links, err)
	}
}

func TestNamedMachinesConform(t *testing.T) {
	rows := parseMetrics("nvidia_gpu_power_watts", "nvidia_gpu_memory_used_bytes", "nvidia_gpu_sm_active_ratio",
		"nvidia_gpu_utilization_ratio")
	for name, gpus := range map[string]int{"h100": 8, "a100": 4, "gb200": 4, "t4": 4, "mixed": 4} {
		t.Run(name, func(t *testing.T) {
			m := sim.NewNamedMachine(name, rows, time.Now)
			if got := len(m.GPUs()); got != gpus {
				t.Errorf("got %d GPUs, want %d", got, gpus)
			}
			if name == "a100" {
				for range 3 { // the events of the partitioning
					if _, err := m.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			devicetest.TestBackend(t, m)
		})
	}
	if sim.NewNamedMachine("v100", rows, time.Now) != nil {
		t.Error("machine of an unknown name: want nil")
	}
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

// TestInstanceValues checks that a GPU instance has values only for its first
// MIG device.
func TestInstanceValues(t *testing.T) {
	m := sim.NewMachine(parseMetrics("nvidia_gpu_power_watts", "nvidia_gpu_utilization_ratio",
		"nvidia_gpu_memory_total_bytes", "nvidia_gpu_memory_used_bytes",
		"nvidia_gpu_bar1_memory_total_bytes", "nvidia_gpu_sm_active_ratio"), 1, time.Now)
	gpu := m.GPUs()[0]
	m.Partition(gpu, "1c.3g.40gb", "2c.3g.40gb", "1g.10gb")
	ids := m.AllocatableIDs()
	m.SetUtilization(ids[1], 1)
	m.StartProcess(ids[1], 100, 1<<30, 0)
	m.StartProcess(ids[0], 200, 1<<30, 0)
	got := metricValues(t, m, gpu)
	if _, ok := got[device.ID(gpu)]["nvidia_gpu_utilization_ratio"]; ok || len(got) != 3 {
		t.Errorf("got values %v, want three devices without utilization of the GPU", got)
	}
	first, third := got[ids[0]], got[ids[2]]
	if got[ids[1]] != nil {
		t.Errorf("second compute instance: got %v, want no values", got[ids[1]])
	}
	if _, ok := first["nvidia_gpu_power_watts"]; ok {
		t.Error("power of a MIG device: got a value, want none")
	}
	if first["nvidia_gpu_memory_total_bytes"] != 40<<30 || third["nvidia_gpu_memory_total_bytes"] != 10<<30 ||
		first["nvidia_gpu_bar1_memory_total_bytes"] != 48<<30 {
		t.Errorf("sizes: got %v, %v", first, third)
	}
	if sm := first["nvidia_gpu_sm_active_ratio"]; sm < 0.59 || sm > 0.61 { // 0.9 of two thirds
		t.Errorf("SM activity with two of three compute slices busy: got %f, want 0.6", sm)
	}
	if third["nvidia_gpu_sm_active_ratio"] != 0 || third["nvidia_gpu_memory_used_bytes"] != 0 {
		t.Errorf("idle instance: got %v, want 0", third)
	}
	if used := first["nvidia_gpu_memory_used_bytes"]; used != 20<<30+2<<30+2<<30 {
		t.Errorf("memory of the instance: got %f GiB, want 24", used/(1<<30))
	}
	m.Unpartition(gpu)
	if got := metricValues(t, m, gpu); len(got) != 1 {
		t.Errorf("values of a whole GPU: got %v, want one device", got)
	}
}
