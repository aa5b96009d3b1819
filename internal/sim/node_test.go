package sim_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
)

// waitTimeout is long enough for a machine under load.
const waitTimeout = 5 * time.Minute

// anyBusy reports whether a GPU draws more than idle power. Failed GPUs of the
// workload are skipped.
func anyBusy(m *sim.Machine) bool {
	for _, gpu := range m.GPUs() {
		if samples, err := m.Read(gpu); err == nil && samples[0].Value > 70 {
			return true
		}
	}
	return false
}

// TestWorkload runs a node with a device plugin. Pods get devices, processes
// use the GPUs, and Close leaves no file.
func TestWorkload(t *testing.T) {
	m := sim.NewMachine(testRows, 8, time.Now)
	log := slog.New(slog.DiscardHandler)
	n, err := sim.NewVirtualNode(m, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	var inventory device.Inventory
	readers := device.NewReaders(m)
	monitor := device.NewMonitor(m, readers, &inventory, device.MonitorOptions{Log: log})
	devicePlugin := plugin.New(plugin.Options{
		Dir: n.DevicePluginDir(), DeviceSource: inventorySource{&inventory},
		Hooks: noHooks{}, Log: log,
	})

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	components := []func(context.Context) error{n.Run, monitor.Run, devicePlugin.Run}
	ended := make(chan error, len(components))
	for _, run := range components {
		go func() { ended <- run(ctx) }()
	}
	err = n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool {
		return len(s.Pods) >= 2 &&
			s.Pods[0].Phase == "Running"
	})
	if err != nil {
		t.Errorf("timeout: no pod runs: %v", err)
	}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !anyBusy(m) && ctx.Err() == nil {
		<-poll.C
	}
	if ctx.Err() != nil {
		t.Error("timeout: no GPU is busy")
	}
	cancel()
	for range components {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	monitor.Drain(context.Background())
	readers.Drain(context.Background())
	n.Close()
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), filepath.Base(n.Dir()))); err != nil || len(left) > 0 {
		t.Errorf("remaining files: got %v, %v, want none", left, err)
	}
}
