package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestDriverUpgrade replaces the driver under a pod: its library by one of another version, and its module, which the library in memory
// then does not fit. Podgauge ends by itself, and well; a DaemonSet would start it anew, here the test does.
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
	held := allocatedGPU(ctx, t, n, pod)
	holding := map[string]node.OwnerKey{held: mainContainer(pod)}
	d.scrapeUntil(ctx, t, "the holder is shown", func(s metricsScrape) error { return s.checkOwners([]string{held}, holding) })

	newer, err := buildLibrary("newer", "nvmlDeviceGetSerial") // which is another file
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	replaceDriver(t, newer, root)
	m.setLines(t, "driver 590.10", "fail * gpu * LIB_RM_VERSION_MISMATCH", "fail * gpu - LIB_RM_VERSION_MISMATCH")
	select {
	case <-d.Done():
	case <-time.After(waitTimeout):
		t.Fatal("podgauge goes on with the old driver's library")
	}
	measureDurations(t, "podgauge has ended after the driver was replaced", 15*time.Second, time.Since(begin)) // a listing comes every 10 s
	if state, err := d.Wait(ctx); err != nil || !state.Success() {
		t.Errorf("it ended with %v, %v", state, err)
	}
	if lines := d.logLines(t, "exiting: driver was replaced, restart loads the new library"); len(lines) != 1 {
		t.Errorf("it said why in %q", lines)
	}
	m.clear(t, "fail")
	waitForAllocatable(ctx, t, n)
	begin = time.Now()
	d = startPodgauge(t, n, m.environ(), flag)
	s := firstScrapeOf(ctx, t, d, held)
	if err := s.checkOwners([]string{held}, holding); err != nil {
		t.Errorf("the first scrape that shows the GPU: %v", err)
	}
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "all GPUs are allocatable again after the start that followed", 2*time.Second, time.Since(begin))
	if versions := findSamples(s.series["nvidia_gpu_info"], seriesLabels{"uuid": held, "driver_version": "590.10"}); len(versions) != 1 {
		t.Errorf("the info series are %v", s.series["nvidia_gpu_info"])
	}
	after, err := n.Pod(ctx, pod)
	if err != nil || after.Containers[0].ID != before.Containers[0].ID || after.Containers[0].Restarts != 0 {
		t.Errorf("the pod was %+v, and is %+v, %v", before, after, err)
	}
}

// replaceDriver puts a driver's library below a root, in place of the one that is there.
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
	if err := os.WriteFile(filepath.Join(dir, "half"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "half"), filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
}
