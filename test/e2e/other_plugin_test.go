package e2e

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestFirstStartWaitsForOtherPlugin starts podgauge beside a plugin with the same resource and ids. podgauge waits, takes over when the
// other plugin ends, and does not wait after a restart.
func TestFirstStartWaitsForOtherPlugin(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	end := servePluginDevices(ctx, t, n, "nvidia-gpu.sock", gpuResource, healthyDevice(uuid(0)), healthyDevice(uuid(1)))
	waitForAllocatable(ctx, t, n, uuids(2)...)
	m := newMachine(t, n, "gpus 2")
	d := m.start(t, n)
	d.waitUntilListening(ctx, t)
	waiting := seriesLabels{"resource": gpuResource}
	d.scrapeUntil(ctx, t, "podgauge waits", func(s metricsScrape) error {
		return errors.Join(s.wantValue(1, "podgauge_plugin_waiting", waiting), s.wantValue(1, "podgauge_ready", seriesLabels{"check": "plugin"}))
	})
	if err := checkReady(ctx, d); err != nil {
		t.Error(err)
	}
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("sockets beside the other plugin: got %q, want none", sockets)
	}
	begin := time.Now()
	end()
	waitForAllocatable(ctx, t, n)
	waitForAllocatable(ctx, t, n, uuids(2)...)
	measureDurations(t, "other plugin ended → GPUs allocatable", 25*time.Second, time.Since(begin))
	d.scrapeUntil(ctx, t, "podgauge is registered", func(s metricsScrape) error { return s.wantValue(0, "podgauge_plugin_waiting", waiting) })
	d.stop(t)
	waitForAllocatable(ctx, t, n)
	begin = time.Now()
	m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(2)...)
	measureDurations(t, "restart → GPUs allocatable", 2*time.Second, time.Since(begin))
}
