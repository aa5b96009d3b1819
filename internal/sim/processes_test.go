package sim_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// requireSameProcesses checks that ReadProcessUsage and Processes return the
// same processes.
func requireSameProcesses(t *testing.T, m *sim.Machine, gpu device.GPU) []device.ProcessUsage {
	t.Helper()
	usage, known := m.ReadProcessUsage(gpu)
	if !known {
		t.Fatal("process usage is unknown")
	}
	devices, err := m.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.GPU != gpu {
			continue
		}
		var want []uint32
		for _, u := range usage {
			if u.Device == d.ID || d.WholeGPU() {
				want = append(want, u.PID)
			}
		}
		slices.Sort(want)
		if got, err := m.Processes(d); err != nil || !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("device %s: want processes %v as in the usage, got %v, error %v", d.ID, want, got, err)
		}
	}
	return usage
}

func TestProcesses(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(parseMetrics("nvidia_gpu_memory_used_bytes", "nvidia_gpu_power_watts",
		"nvidia_gpu_energy_joules_total"), 2, func() time.Time { return now })
	gpu, other := m.GPUs()[0], m.GPUs()[1]
	id := device.ID(gpu)
	if usage := requireSameProcesses(t, m, gpu); len(usage) != 0 {
		t.Errorf("usage of an idle GPU: got %+v, want none", usage)
	}
	m.StartProcess(id, 200, 4<<30, 0.25)
	m.StartProcess(id, 100, 1<<30, 0.5)
	m.StartProcess(device.ID(other), 100, -1, -1)
	want := []device.ProcessUsage{
		{Device: id, PID: 200, MemoryBytes: 4 << 30, SM: 0.25, MemoryController: 0.125},
		{Device: id, PID: 100, MemoryBytes: 1 << 30, SM: 0.5, MemoryController: 0.25},
	}
	if got := requireSameProcesses(t, m, gpu); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := requireSameProcesses(t, m,
		other), (device.ProcessUsage{
		Device: device.ID(other), PID: 100, MemoryBytes: -1, SM: -1, MemoryController: -1,
		Encoder: -1, Decoder: -1,
	}); len(got) != 1 || got[0] != want {
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
	if got := requireSameProcesses(t, m, gpu); len(got) != 1 || got[0].PID != 100 || got[0].MemoryBytes != 2<<30 {
		t.Errorf("usage after a change and an end: got %+v, want process 100 with 2 GiB", got)
	}
	m.StopProcess(100)
	if got := len(requireSameProcesses(t, m, gpu)) + len(requireSameProcesses(t, m, other)); got != 0 {
		t.Errorf("processes after the end of all: got %d, want 0", got)
	}
}

func TestProcessesOfMIGDevices(t *testing.T) {
	m := sim.NewMachine(nil, 1, time.Now)
	gpu := m.GPUs()[0]
	m.StartProcess(device.ID(gpu), 1, 1, 0)
	m.Partition(gpu, "1g.10gb", "1g.10gb")
	ids := m.AllocatableIDs()
	m.StartProcess(ids[1], 2, 5, 0.5)
	want := device.ProcessUsage{
		Device: ids[1], PID: 2, MemoryBytes: 5, SM: -1, MemoryController: -1, Encoder: -1,
		Decoder: -1,
	}
	if got := requireSameProcesses(t, m, gpu); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m.Partition(gpu, "1g.10gb")
	if got := requireSameProcesses(t, m, gpu); len(got) != 0 {
		t.Errorf("usage of a removed MIG device: got %+v, want none", got)
	}
}

func TestProcessesOfLostGPU(t *testing.T) {
	m := sim.NewMachine(nil, 1, time.Now)
	gpu := m.GPUs()[0]
	m.StartProcess(device.ID(gpu), 1, 1, 0)
	m.Fail(device.ID(gpu), "lost")
	if _, known := m.ReadProcessUsage(gpu); known {
		t.Error("process usage of a lost GPU: got known, want unknown")
	}
	if _, err := m.Processes(device.Device{GPU: gpu, ID: device.ID(gpu), MIGDeviceIndex: -1}); !errors.Is(err,
		device.ErrLost) {
		t.Errorf("Processes of a lost GPU: got %v, want ErrLost", err)
	}
	if _, known := m.ReadProcessUsage("GPU-missing"); known {
		t.Error("process usage of a missing GPU: got known, want unknown")
	}
}
