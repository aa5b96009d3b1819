package sim_test

import (
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

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
	if got := metricValues(t, m, gpu)[id]["nvidia_gpu_memory_used_bytes"]; got != 2<<30 {
		t.Errorf("memory after a change and an end: got %v, want 2 GiB", got)
	}
	m.StopProcess(100)
	want("after the end of all")
	if got, _ := m.ReadProcessUsage(m.GPUs()[1]); len(got) != 0 {
		t.Errorf("other GPU after the end of all: got %+v, want none", got)
	}
}
