package cdi_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestNoNVMLCall builds the specs of devices from the nvml backend, with a
// library whose calls hang after the listing.
func TestNoNVMLCall(t *testing.T) {
	s := newFixture(t, 4, driverOnHost)
	if _, err := nvmltest.Build(filepath.Join(s.driverRoot, "usr/lib64")); err != nil {
		t.Fatal(err)
	}
	scenario, calls := filepath.Join(t.TempDir(), "scenario"), filepath.Join(t.TempDir(), "calls")
	t.Setenv(nvmltest.EnvScenario, scenario)
	t.Setenv(nvmltest.EnvCalls, calls)
	machine := nvmltest.NewScenario(scenario)
	s.must(machine.Set("gpus 4", "driver "+testDriverVersion))

	driver := nvml.New(nvml.Options{DriverRoots: []string{s.driverRoot}, DevRoot: s.driverRoot, SysRoot: t.TempDir()})
	devices, err := driver.Devices(t.Context())
	s.must(err)
	t.Cleanup(driver.Close)
	s.must(machine.Set("hang * gpu *", "hang * gpu -", "gpu 2 lost"))
	t.Cleanup(func() { s.must(machine.Clear("")) })
	before := totalReads(t, calls)
	s.Update(healthyStatuses(devices))
	s.must(s.state.Err)
	if after := totalReads(t, calls); after != before {
		t.Errorf("got %d NVML calls, want 0", after-before)
	}
	if len(devices) != 4 {
		t.Fatalf("got %d listed devices, want 4", len(devices))
	}
	for i, d := range devices {
		nodes, _, _, _ := s.injectDevices("k8s.device-plugin.nvidia.com/gpu=" + string(d.ID))
		wantSet(t, fmt.Sprintf("nodes of %d", i), nodes, fmt.Sprintf("/dev/nvidia%d", i), "/dev/nvidiactl",
			"/dev/nvidia-uvm")
	}
}

func totalReads(t *testing.T, path string) (n uint64) {
	t.Helper()
	calls, err := nvmltest.ReadCalls(path)
	if err != nil {
		t.Fatal(err)
	}
	for gpu := range nvmltest.NoGPU + 1 {
		n += calls.GPUTotal(gpu)
	}
	return n
}
