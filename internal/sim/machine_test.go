package sim_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/devicetest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testRows = []device.Metric{
	{Name: "nvidia_gpu_power_watts", Help: "Power."},
	{Name: "nvidia_gpu_energy_joules_total", Help: "Energy.", Kind: device.OwnerCounter},
	{Name: "nvidia_gpu_clock_hertz", Help: "Clock.", Labels: []device.Label{{Name: "clock", Value: "sm"}}},
	{Name: "nvidia_gpu_unsimulated", Help: "No value."},
}

func TestMachineConforms(t *testing.T) {
	devicetest.TestBackend(t, sim.NewMachine(testRows, 3, time.Now))
}

func TestPartitionedMachineConforms(t *testing.T) {
	m := sim.NewMachine(testRows, 3, time.Now)
	m.Partition(m.GPUs()[1], "1g.10gb", "", "1c.3g.40gb", "2c.3g.40gb", "1c.3g.40gb")
	m.Partition(m.GPUs()[2])
	for range 2 { // the events of the partitioning
		if _, err := m.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	devicetest.TestBackend(t, m)
}

// migDeviceList returns a machine's MIG devices as "index:GI/CI profile".
func migDeviceList(t *testing.T, m *sim.Machine) (list []string) {
	t.Helper()
	devices, err := m.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if !d.WholeGPU() {
			list = append(list, fmt.Sprintf("%d:%d/%d %s", d.MIGDeviceIndex, d.GI, d.CI, d.Profile))
		}
	}
	return list
}

func TestPartition(t *testing.T) {
	m := sim.NewMachine(testRows, 2, time.Now)
	gpu := m.GPUs()[0]
	m.Partition(gpu, "1c.3g.40gb", "2c.3g.40gb", "1c.3g.40gb", "1g.10gb")
	if got, want := migDeviceList(t, m), []string{
		"0:1/0 1c.3g.40gb", "1:1/1 2c.3g.40gb", "2:2/0 1c.3g.40gb",
		"3:3/0 1g.10gb",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	before := m.AllocatableIDs()
	if len(before) != 5 || before[4] != device.ID(m.GPUs()[1]) {
		t.Errorf("got allocatable ids %v, want four MIG devices and GPU 1", before)
	}
	if e, err := m.Wait(t.Context()); err != nil || e != (device.Event{GPU: gpu, PartitionChanged: true}) {
		t.Errorf("got event %+v, %v, want PartitionChanged", e, err)
	}
	m.Partition(gpu, "", "2c.3g.40gb", "2g.20gb", "1g.10gb")
	if got, want := migDeviceList(t, m), []string{
		"1:1/1 2c.3g.40gb", "2:2/0 2g.20gb",
		"3:3/0 1g.10gb",
	}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	after := m.AllocatableIDs()
	if after[0] != before[1] || after[1] == before[2] || after[2] != before[3] {
		t.Errorf("UUIDs: got %v, then %v, want new UUIDs for new devices only", before, after)
	}
	m.SetUtilization(after[0], 1) // two sevenths of the GPU
	if got := readValues(t, m, device.ID(gpu))[0]; got != 70+630*2.0/7 {
		t.Errorf("power: got %f W", got)
	}
	m.Unpartition(gpu)
	if got := m.AllocatableIDs(); len(got) != 2 || got[0] != device.ID(gpu) || migDeviceList(t, m) != nil {
		t.Errorf("allocatable ids after Unpartition: got %v, want two GPUs", got)
	}
}

func TestXidOfMIGDevice(t *testing.T) {
	m := sim.NewMachine(testRows, 1, time.Now)
	gpu := m.GPUs()[0]
	m.Partition(gpu, "3g.40gb", "3g.40gb")
	id := m.AllocatableIDs()[1]
	m.Fail(id, "xid 13")
	m.Fail(id, "xid 999")
	m.Fail(id, "xid 79")
	for _, want := range []device.Event{
		{GPU: gpu, PartitionChanged: true},
		{GPU: gpu, Device: id, Xid: 13},
		{GPU: gpu, Device: id, Xid: 999, Recovery: device.RecoveryAfterReset, Action: "reset_gpu"},
		{GPU: gpu, Xid: 79, Recovery: device.RecoveryAfterReset, Action: "reboot"},
	} {
		if got, err := m.Wait(t.Context()); err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
	if _, err := m.Check(gpu); !errors.Is(err, device.ErrLost) {
		t.Errorf("Check of the GPU: got %v, want ErrLost", err)
	}
}

func TestAddGPU(t *testing.T) {
	m := sim.NewMachine(testRows, 2, time.Now)
	gpu := m.AddGPU()
	devices, err := m.Devices(t.Context())
	if err != nil || len(devices) != 3 || devices[2].GPU != gpu || devices[2].Index != 2 {
		t.Errorf("got %+v, %v, want three devices", devices, err)
	}
	devicetest.TestBackend(t, m)
}

// readValues returns a GPU's values by row.
func readValues(t *testing.T, m *sim.Machine, id device.ID) map[int]float64 {
	t.Helper()
	samples, err := m.Read(device.GPU(id))
	if err != nil {
		t.Fatal(err)
	}
	values := map[int]float64{}
	for _, s := range samples {
		values[s.Metric] = s.Value
	}
	return values
}

func TestPowerAndEnergyFollowLoad(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(testRows, 1, func() time.Time { return now })
	id := m.AllocatableIDs()[0]
	m.SetUtilization(id, 1)
	now = now.Add(10 * time.Second)
	m.SetUtilization(id, 0)
	now = now.Add(10 * time.Second)
	got := readValues(t, m, id)
	if got[0] != 70 || got[1] != 7700 {
		t.Errorf("after 10 s busy and 10 s idle: got %.0f W and %.0f J, want 70 W and 7700 J", got[0], got[1])
	}
	if _, ok := got[3]; ok {
		t.Error("unsimulated row: got a value")
	}
	m.SetValue(id, `nvidia_gpu_clock_hertz{clock="sm"}`, 42)
	if got := readValues(t, m, id); got[2] != 42 {
		t.Errorf("fixed value: got %f, want 42", got[2])
	}
	m.ResetGPU(id)
	if got := readValues(t, m, id); got[1] != 0 {
		t.Errorf("energy after a reset: got %f J, want 0", got[1])
	}
}

func TestFaults(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := sim.NewMachine(testRows, 2, time.Now)
		id := m.AllocatableIDs()[0]
		gpu := device.GPU(id)
		m.Fail(id, "xid 79")
		if e, err := m.Wait(t.Context()); err != nil || e.GPU != gpu || e.Xid != 79 ||
			e.Recovery != device.RecoveryAfterReset {
			t.Errorf("got event %+v, %v, want Xid 79 with recovery after a reset", e, err)
		}
		if _, err := m.Check(gpu); !errors.Is(err, device.ErrLost) {
			t.Errorf("Check after Xid 79: got %v, want ErrLost", err)
		}
		m.ResetGPU(id)
		if v, err := m.Check(gpu); v != (device.ResetEvidence{Resets: 1, EnergyCounter: 1}) || err != nil {
			t.Errorf("Check after a reset: got %+v, %v, want one reset", v, err)
		}
		m.Fail(id, "a fan stands still")
		if _, err := m.Check(gpu); err == nil || err.Error() != "a fan stands still" {
			t.Errorf("Check: got %v, want the set error", err)
		}
		m.RemoveGPU(id)
		if devices, err := m.Devices(t.Context()); err != nil || len(devices) != 1 {
			t.Errorf("devices after RemoveGPU: got %d, %v, want 1", len(devices), err)
		}
		m.SetDriverError(errors.New("rmmod"))
		if _, err := m.Devices(t.Context()); !errors.Is(err, device.ErrNoDriver) {
			t.Errorf("Devices without a driver: got %v, want ErrNoDriver", err)
		}
	})
}

func TestHangsUntilRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := sim.NewMachine(testRows, 2, time.Now)
		m.HangAll()
		calls := make(chan error, 3)
		go func() { _, err := m.Devices(context.Background()); calls <- err }()
		go func() { _, err := m.Read(device.GPU(m.AllocatableIDs()[0])); calls <- err }()
		go func() { _, err := m.Wait(context.Background()); calls <- err }()
		time.Sleep(time.Hour)
		if len(calls) > 0 {
			t.Error("a call returned during a hang")
		}
		m.ReleaseHangs()
		for range 3 {
			if err := <-calls; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestLinks(t *testing.T) {
	m := sim.NewMachine(testRows, 4, time.Now)
	gpus := m.GPUs()
	m.RemoveGPU(device.ID(gpus[3]))
	links, err := m.Links(t.Context())
	if err != nil || len(links) != 6 || m.LinkReads() != 1 {
		t.Fatalf("got %+v, %v, want 6 links", links, err)
	}
	for _, want := range []device.Link{
		{A: gpus[0], B: gpus[1], NVLinks: 18, Path: device.PathNUMANode},
		{A: gpus[1], B: gpus[0], NVLinks: 18, Path: device.PathNUMANode},
		{A: gpus[2], B: gpus[0], NVLinks: 18, Path: device.PathSystem},
	} {
		if !slices.Contains(links, want) {
			t.Errorf("want link %+v in %+v", want, links)
		}
	}
	m.Fail(device.ID(gpus[0]), "lost")
	if links, err := m.Links(t.Context()); len(links) != 4 || !errors.Is(err, device.ErrLost) {
		t.Errorf("links with a lost GPU: got %+v, %v, want 4 and ErrLost", links, err)
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
		{
			sim.H100,
			[]string{"1g.10gb", "3g.40gb"},
			[]string{"2g.20gb", "3g.40gb", "1g.10gb"},
			"[{14 0 2} {9 4 4} {19 2 1}]",
		},
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
		if err != nil {
			t.Fatal(err)
		}
		var got []device.Placement
		for _, d := range devices[1:] {
			got = append(got, d.Placement)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("placements of %v after %v: got %v, want %s", c.is, c.was, got, c.want)
		}
	}
}

// TestResetEvidence checks that the energy counter grows until a reset, which
// also ends faults and pending repairs.
func TestResetEvidence(t *testing.T) {
	now := time.Unix(1e9, 0)
	m := sim.NewMachine(testRows, 1, func() time.Time { return now })
	id := m.AllocatableIDs()[0]
	fault := &device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", NeedsReset: true}
	m.SetCheckError(id, fault)
	m.SetRepairPending(id)
	now = now.Add(time.Second)
	v, err := m.Check(m.GPUs()[0])
	if got := new(device.Fault); !errors.As(err, &got) || *got != *fault ||
		v != (device.ResetEvidence{EnergyCounter: 70_001, RepairPending: true}) {
		t.Errorf("Check: got %+v, %v, want the fault and a pending repair", v, err)
	}
	m.SetCheckError(id, device.ErrLost)
	now = now.Add(time.Second)
	if v, err := m.Check(m.GPUs()[0]); !errors.Is(err, device.ErrLost) || v.EnergyCounter != 70_001 {
		t.Errorf("Check of a lost GPU: got %+v, %v, want ErrLost", v, err)
	}
	m.SetCheckError(id, nil)
	if v, err := m.Check(m.GPUs()[0]); err != nil || v.EnergyCounter != 140_001 || !v.RepairPending {
		t.Errorf("Check of a recovered GPU: got %+v, %v, want a pending repair", v, err)
	}
	m.ResetGPU(id)
	if v, err := m.Check(m.GPUs()[0]); err != nil || v != (device.ResetEvidence{Resets: 1, EnergyCounter: 1}) {
		t.Errorf("Check after a reset: got %+v, %v, want one reset", v, err)
	}
}
