package sim_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// requireSameProcesses demands that what uses a device and who has memory on it are the same.
func requireSameProcesses(t *testing.T, m *sim.Machine, gpu device.GPU) []device.ProcessUsage {
	t.Helper()
	uses, known := m.ReadProcessUsage(gpu, nil)
	if !known {
		t.Fatal("it is not known who uses the GPU")
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
		for _, u := range uses {
			if u.Device == d.ID || d.WholeGPU() {
				want = append(want, u.PID)
			}
		}
		slices.Sort(want)
		if got, err := m.Processes(d); err != nil || !slices.Equal(got, slices.Compact(want)) {
			t.Errorf("%s is used by %v and occupied by %v, %v", d.ID, want, got, err)
		}
	}
	return uses
}

func TestProcesses(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(parseMetrics("nvidia_gpu_memory_used_bytes", "nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total"), 2, func() time.Time { return now })
	gpu, other := m.GPUs()[0], m.GPUs()[1]
	id := device.ID(gpu)
	if uses := requireSameProcesses(t, m, gpu); len(uses) != 0 {
		t.Errorf("an idle GPU is used by %+v", uses)
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
	if got, want := requireSameProcesses(t, m, other), (device.ProcessUsage{Device: device.ID(other), PID: 100, MemoryBytes: -1, SM: -1, MemoryController: -1, Encoder: -1, Decoder: -1}); len(got) != 1 || got[0] != want {
		t.Errorf("of what the driver does not tell it tells %+v", got)
	}
	now = now.Add(10 * time.Second)
	got := metricValues(t, m, gpu)[id]
	if got["nvidia_gpu_memory_used_bytes"] != 5<<30 || got["nvidia_gpu_power_watts"] != 70+630*0.75 || got["nvidia_gpu_energy_joules_total"] != 10*(70+630*0.75) {
		t.Errorf("with two processes it reads %v", got)
	}
	m.StartProcess(id, 100, 2<<30, 0.5) // it grows
	m.StopProcess(200)
	if got := requireSameProcesses(t, m, gpu); len(got) != 1 || got[0].PID != 100 || got[0].MemoryBytes != 2<<30 {
		t.Errorf("one has grown, the other has ended: %+v", got)
	}
	m.StopProcess(100)
	if got := len(requireSameProcesses(t, m, gpu)) + len(requireSameProcesses(t, m, other)); got != 0 {
		t.Errorf("%d have not ended", got)
	}
}

func TestProcessesOfSlices(t *testing.T) {
	m := sim.NewMachine(nil, 1, time.Now)
	gpu := m.GPUs()[0]
	m.StartProcess(device.ID(gpu), 1, 1, 0)
	m.Partition(gpu, "1g.10gb", "1g.10gb")
	ids := m.AllocatableIDs()
	m.StartProcess(ids[1], 2, 5, 0.5)
	want := device.ProcessUsage{Device: ids[1], PID: 2, MemoryBytes: 5, SM: -1, MemoryController: -1, Encoder: -1, Decoder: -1}
	if got := requireSameProcesses(t, m, gpu); len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	m.Partition(gpu, "1g.10gb")
	if got := requireSameProcesses(t, m, gpu); len(got) != 0 {
		t.Errorf("on a slice that is gone: %+v", got)
	}
}

func TestProcessesThatCannotBeTold(t *testing.T) {
	m := sim.NewMachine(nil, 1, time.Now)
	gpu := m.GPUs()[0]
	m.StartProcess(device.ID(gpu), 1, 1, 0)
	m.Fail(device.ID(gpu), "lost")
	if _, known := m.ReadProcessUsage(gpu, nil); known {
		t.Error("a lost GPU tells who uses it")
	}
	if _, err := m.Processes(device.Device{GPU: gpu, ID: device.ID(gpu), MIGDeviceIndex: -1}); !errors.Is(err, device.ErrLost) {
		t.Errorf("a lost GPU answers %v", err)
	}
	if _, known := m.ReadProcessUsage("GPU-that-is-not-there", nil); known {
		t.Error("a GPU that is not there tells who uses it")
	}
}
