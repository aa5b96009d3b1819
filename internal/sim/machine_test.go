package sim_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/devicetest"
	"github.com/podgauge/podgauge/test/helpers/require"
	"go.uber.org/goleak"
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
			if got := len(m.GPUs()); got != gpus {
				t.Errorf("got %d GPUs, want %d", got, gpus)
			}
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
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
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
	if got := metricValues(t, m, gpu)[device.ID(gpu)]["nvidia_gpu_power_watts"]; got != 70+630*2.0/7 {
		t.Errorf("power: got %f W", got)
	}
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
	if got := values()[clock]; got != 42 {
		t.Errorf("fixed value: got %f, want 42", got)
	}
	m.SetRate(id, `nvidia_gpu_clock_hertz{clock="sm"}`, 2)
	now = now.Add(10 * time.Second)
	if got := values()[clock]; got != 62 {
		t.Errorf("growing value: got %f, want 62", got)
	}
	m.ResetGPU(id)
	if got := values()[energy]; got != 0 {
		t.Errorf("energy after a reset: got %f J, want 0", got)
	}
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
