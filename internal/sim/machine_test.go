package sim_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/devicetest"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testRows = []device.Metric{
	{Name: "nvidia_gpu_power_watts", Help: "Power."},
	{Name: "nvidia_gpu_energy_joules_total", Help: "Energy.", Kind: device.OwnerCounter},
	{Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "sm"}}},
	{Name: "nvidia_gpu_unsimulated", Help: "No value."},
}

// TestMachinesConform checks all named machines, a GPU that was added, and a
// partitioned GPU.
func TestMachinesConform(t *testing.T) {
	rows := parseMetrics("nvidia_gpu_power_watts", "nvidia_gpu_memory_used_bytes", "nvidia_gpu_sm_active_ratio",
		"nvidia_gpu_utilization_ratio")
	for name, gpus := range map[string]int{"h100": 8, "h200": 4, "a100": 4, "gb200": 4, "t4": 4, "mixed": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // Wait takes a second
			m := sim.NewNamedMachine(name, rows, time.Now)
			expect.Equal(t, len(m.GPUs()), gpus, "GPUs")
			added := m.AddGPU()
			m.Partition(added, "1g.10gb", "", "1c.3g.40gb", "2c.3g.40gb", "1c.3g.40gb")
			for e := (device.Event{PartitionChanged: true}); e.PartitionChanged; { // until there is no event
				var err error
				if e, err = m.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			devicetest.TestBackend(t, m)
		})
	}
	if sim.NewNamedMachine("v100", rows, time.Now) != nil {
		t.Error("machine of an unknown name: want nil")
	}
}

// wantMIGDevices compares a machine's MIG devices as "index:GI/CI profile".
func wantMIGDevices(t *testing.T, m *sim.Machine, want ...string) {
	t.Helper()
	devices, err := m.Devices(t.Context())
	require.NoError(t, err)
	var got []string
	for _, d := range devices {
		if !d.WholeGPU() {
			got = append(got, fmt.Sprintf("%d:%d/%d %s", d.MIGDeviceIndex, d.GI, d.CI, d.Profile))
		}
	}
	expect.EqualSlices(t, got, want)
}

func TestPartition(t *testing.T) {
	m := sim.NewMachine(testRows, 2, time.Now)
	gpu := m.GPUs()[0]
	m.Partition(gpu, "1c.3g.40gb", "2c.3g.40gb", "1c.3g.40gb", "1g.10gb")
	wantMIGDevices(t, m, "0:2/0 1c.3g.40gb", "1:2/1 2c.3g.40gb", "2:1/0 1c.3g.40gb", "3:15/0 1g.10gb")
	before := m.AllocatableIDs()
	if len(before) != 5 || before[4] != device.ID(m.GPUs()[1]) {
		t.Errorf("got allocatable ids %v, want four MIG devices and GPU 1", before)
	}
	if e, err := m.Wait(t.Context()); err != nil || e != (device.Event{GPU: gpu, PartitionChanged: true}) {
		t.Errorf("got event %+v, %v, want PartitionChanged", e, err)
	}
	m.Partition(gpu, "", "2c.3g.40gb", "2g.20gb", "1g.10gb")
	wantMIGDevices(t, m, "1:2/1 2c.3g.40gb", "2:3/0 2g.20gb", "3:15/0 1g.10gb")
	after := m.AllocatableIDs()
	if after[0] != before[1] || after[1] == before[2] || after[2] != before[3] {
		t.Errorf("UUIDs: got %v, then %v, want new UUIDs for new devices only", before, after)
	}
	m.SetUtilization(after[0], 1) // two sevenths of the GPU
	expect.Equal(t, metricValues(t, m, gpu)[device.ID(gpu)]["nvidia_gpu_power_watts"], 70+630*2.0/7, "power W")
	m.Unpartition(gpu)
	wantMIGDevices(t, m)
	if got := m.AllocatableIDs(); len(got) != 2 || got[0] != device.ID(gpu) {
		t.Errorf("allocatable ids after Unpartition: got %v, want two GPUs", got)
	}
}

func TestPowerAndEnergyFollowLoad(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(testRows, 1, func() time.Time { return now })
	id := m.AllocatableIDs()[0]
	m.SetUtilization(id, 1)
	now = now.Add(10 * time.Second)
	m.SetUtilization(id, 0)
	now = now.Add(10 * time.Second)
	const power, energy, clock = "nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_clock_hertz sm"
	values := func() map[string]float64 { return metricValues(t, m, device.GPU(id))[id] }
	if got := values(); got[power] != 70 || got[energy] != 7700 || len(got) != 3 {
		t.Errorf("after 10 s busy and 10 s idle: got %v, want 70 W, 7700 J and a clock", got)
	}
	m.SetValue(id, `nvidia_gpu_clock_hertz{clock="sm"}`, 42)
	expect.Equal(t, values()[clock], 42, "fixed value")
	m.SetRate(id, `nvidia_gpu_clock_hertz{clock="sm"}`, 2)
	now = now.Add(10 * time.Second)
	expect.Equal(t, values()[clock], 62, "growing value")
	m.ResetGPU(id)
	expect.Equal(t, values()[energy], 0, "energy after a reset J")
}

// TestWork checks that the power follows the kind of work, which ends with the
// last process, and that a slow GPU has lower clock and power.
func TestWork(t *testing.T) {
	m := sim.NewMachine(testRows, 1, time.Now)
	id := m.AllocatableIDs()[0]
	const power, clock = "nvidia_gpu_power_watts", "nvidia_gpu_clock_hertz sm"
	value := func(row string) float64 { return math.Round(metricValues(t, m, device.GPU(id))[id][row]) }
	require.NoError(t, m.SetWork(id, "training"))
	expect.Equal(t, value(power), 70, "idle power W")
	m.StartProcess(id, 1, 1e9, 1)
	require.NoError(t, m.SetWork(id, "training"))
	expect.Equal(t, value(power), 70+567, "power of training W")
	require.NoError(t, m.SetWork(id, "waiting"))
	expect.Equal(t, value(power), 102, "power of waiting W")
	expect.Equal(t, value(clock), 1980e6, "clock of waiting Hz")
	m.SetSlowdown(id, 0.5)
	expect.Equal(t, value(power), 86, "power of a slow GPU W")
	expect.Equal(t, value(clock), 990e6, "clock of a slow GPU Hz")
	m.ResetGPU(id)
	m.StopProcess(1)
	m.StartProcess(id, 2, 1e9, 1)
	expect.Equal(t, value(power), 700, "power of the next process W")
}

// TestPlacements compares placements with NVML's on real GPUs. Instances do not
// overlap, and kept instances do not move.
func TestPlacements(t *testing.T) {
	for _, c := range []struct {
		model *sim.Model
		was   []string
		is    []string
		want  string // profile, start and size of each device
	}{
		{sim.H100, nil, []string{"1g.10gb", "1g.10gb", "3g.40gb"}, "[{19 0 1} {19 1 1} {9 4 4}]"},
		{sim.H100, nil, []string{"1c.3g.40gb", "2c.3g.40gb", "3g.40gb"}, "[{9 0 4} {9 0 4} {9 4 4}]"},
		{sim.A100, nil, []string{"7g.80gb"}, "[{0 0 8}]"},
		{sim.A100, nil, []string{"4g.40gb", "2g.20gb", "1g.20gb"}, "[{5 0 4} {14 4 2} {15 6 2}]"},
		{sim.H100, []string{"1g.10gb", "3g.40gb"}, []string{"2g.20gb", "3g.40gb", "1g.10gb"}, "[{14 0 2} {9 4 4} {19 2 1}]"},
		{sim.GB200, nil, []string{"1g.23gb", "3g.93gb"}, "[{19 0 1} {9 4 4}]"},
		// no space, no such profile
		{sim.H100, nil, []string{"7g.80gb", "1g.10gb", "5g.50gb"}, "[{0 0 8} {0 0 0} {0 0 0}]"},
	} {
		m := sim.NewMachineWithModels(nil, time.Now, c.model)
		if c.was != nil {
			m.Partition(m.GPUs()[0], c.was...)
		}
		m.Partition(m.GPUs()[0], c.is...)
		devices, err := m.Devices(t.Context())
		require.NoError(t, err)
		var got []device.Placement
		for _, d := range devices[1:] {
			got = append(got, d.Placement)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("placements of %v after %v: got %v, want %s", c.is, c.was, got, c.want)
		}
	}
}

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
	expect.Equal(t, read(), idle, "idle GPU: got", idle, "then")
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
	expect.Equal(t, metricValues(t, m, gpu)[device.ID(gpu)]["nvidia_gpu_pcie_transmit_bytes_total"], 0,
		"counter after a reset")
}

// TestProcesses checks the processes of a GPU beside another GPU's, and that
// they use the GPU's memory and power. The golden files of internal/app have
// the usage by process.
func TestProcesses(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(parseMetrics("nvidia_gpu_memory_used_bytes", "nvidia_gpu_power_watts",
		"nvidia_gpu_energy_joules_total"), 2, func() time.Time { return now })
	gpu, id := m.GPUs()[0], m.AllocatableIDs()[0]
	want := func(what string, pids ...uint32) {
		t.Helper()
		got, err := m.Processes(device.Device{ID: id, GPU: gpu, MIGDeviceIndex: -1})
		usage, known := m.ReadProcessUsage(gpu)
		if err != nil || !slices.Equal(got, pids) || !known || len(usage) != len(pids) {
			t.Errorf("%s: got %v, %v, usage %+v, want %v", what, got, err, usage, pids)
		}
	}
	want("idle")
	m.StartProcess(id, 200, 4<<30, 0.25)
	m.StartProcess(id, 100, 1<<30, 0.5)
	m.StartProcess(m.AllocatableIDs()[1], 100, -1, -1)
	want("two processes", 100, 200)
	if got, _ := m.ReadProcessUsage(m.GPUs()[1]); len(got) != 1 || got[0].MemoryBytes != -1 || got[0].SM != -1 {
		t.Errorf("unreported usage: got %+v, want -1", got)
	}
	now = now.Add(10 * time.Second)
	got := metricValues(t, m, gpu)[id]
	if got["nvidia_gpu_memory_used_bytes"] != 5<<30 || got["nvidia_gpu_power_watts"] != 70+630*0.75 ||
		got["nvidia_gpu_energy_joules_total"] != 10*(70+630*0.75) {
		t.Errorf("values with two processes: got %v", got)
	}
	m.StartProcess(id, 100, 2<<30, 0.5) // its memory grows
	m.StopProcess(200)
	want("after a change and an end", 100)
	expect.Equal(t, metricValues(t, m, gpu)[id]["nvidia_gpu_memory_used_bytes"], 2<<30,
		"memory after a change and an end")
	m.StopProcess(100)
	want("after the end of all")
	if got, _ := m.ReadProcessUsage(m.GPUs()[1]); len(got) != 0 {
		t.Errorf("other GPU after the end of all: got %+v, want none", got)
	}
}
