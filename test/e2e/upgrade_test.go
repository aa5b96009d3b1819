package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestDriverUpgrade replaces the driver's library and module while a pod runs. The loaded library then has the wrong version, and podgauge
// must exit with status 0. The test restarts podgauge as a DaemonSet would.
func TestDriverUpgrade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	m := newMachine(t, n, "driver 580.95.05")
	root := t.TempDir()
	replaceDriver(t, m.libraryDir, root)
	flag := "--nvidia-driver-root=" + root
	d := startPodgauge(t, n, m.environ(), flag)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	before, _ := runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	d.scrapeUntil(ctx, t, "the owner is exported", func(s metricsScrape) error { return s.checkOwners([]string{gpuID}, owners) })

	newer, err := buildLibrary("newer", "nvmlDeviceGetSerial") // a different file
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	replaceDriver(t, newer, root)
	m.setLines(t, "driver 590.10", "fail * gpu * LIB_RM_VERSION_MISMATCH", "fail * gpu - LIB_RM_VERSION_MISMATCH")
	select {
	case <-d.Done():
	case <-time.After(waitTimeout):
		t.Fatal("podgauge still runs with the old library")
	}
	measureDurations(t, "driver replaced → podgauge exited", 15*time.Second, time.Since(begin)) // listings are every 10 s
	if state, err := d.Wait(ctx); err != nil || !state.Success() {
		t.Errorf("podgauge's exit: got %v, %v, want status 0", state, err)
	}
	if lines := d.logLines(t, "exiting: driver was replaced, restart loads the new library"); len(lines) != 1 {
		t.Errorf("log lines about the exit: got %q, want one", lines)
	}
	m.clear(t, "fail")
	waitForAllocatable(ctx, t, n)
	begin = time.Now()
	d = startPodgauge(t, n, m.environ(), flag)
	s := firstScrapeOf(ctx, t, d, gpuID)
	if err := s.checkOwners([]string{gpuID}, owners); err != nil {
		t.Errorf("first scrape with the GPU: %v", err)
	}
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "podgauge started with the new driver → all GPUs allocatable", 2*time.Second, time.Since(begin))
	if versions := findSamples(s.series["nvidia_gpu_info"], seriesLabels{"uuid": gpuID, "driver_version": "590.10"}); len(versions) != 1 {
		t.Errorf("series nvidia_gpu_info: got %v, want driver_version 590.10", s.series["nvidia_gpu_info"])
	}
	after, err := n.Pod(ctx, pod)
	if err != nil || after.Containers[0].ID != before.Containers[0].ID || after.Containers[0].Restarts != 0 {
		t.Errorf("pod: got %+v, %v, want %+v", after, err, before)
	}
}

// replaceDriver copies a driver's library to the driver root and replaces the existing library.
func replaceDriver(t *testing.T, from, root string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(from, "libnvidia-ml.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "usr", "lib", "x86_64-linux-gnu")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
}
