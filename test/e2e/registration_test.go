package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
)

// TestRegistrationRecovery interrupts podgauge's registration without a kubelet restart: by its socket, or all files in the folder. Scrapes
// during the test must have the right owner.
func TestRegistrationRecovery(t *testing.T) {
	n := startNode(t, node.Options{})
	d := newMachine(t, n).start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	pod, _, gpuID := runPodWithGPU(t, n, "train")
	check := func(s metricsScrape) error {
		return s.checkOwners(uuids(defaultGPUs), map[string]node.OwnerKey{gpuID: mainContainer(pod)})
	}
	d.scrapeUntil(t, "the owner is exported", check)
	scrapes := watchScrapes(t, d, 200*time.Millisecond, check)
	for _, interruption := range []struct {
		name  string
		cause func()
	}{
		{"own socket deleted", func() { d.removeSocket(t) }},
		{"all files except the kubelet's socket deleted", func() { removeSocketFiles(t, n) }},
	} {
		var took []time.Duration
		for range 3 {
			before := d.waitForRegistrations(t, 1)
			old, logged := d.sockets(t), len(d.logLines(t, "msg=registered"))
			begin := time.Now()
			interruption.cause()
			await(t, "podgauge has registered again", func(ctx context.Context) error { // up to a second before scrapes show that
				if now := len(d.logLines(t, "msg=registered")); now <= logged {
					return fmt.Errorf("registrations in the log: got %d, want more than %d", now, logged)
				}
				return hasAllocatable(n, uuids(defaultGPUs)...)(ctx)
			})
			took = append(took, time.Since(begin))
			d.waitForRegistrations(t, before+1)
			if now := d.sockets(t); len(now) != 1 || slices.Equal(now, old) {
				t.Errorf("podgauge's sockets: got %q, want one other than %q", now, old)
			}
			// Podgauge assumes that the kubelet rejects shorter streams, and registers with increasing delays.
			waitUntil(t, time.Now().Add(1100*time.Millisecond))
		}
		measureDurations(t, interruption.name+" → registered", time.Second, took...)
	}
	printMeasurement(t, "number of scrapes during the test, all with the right owners", fmt.Sprint(scrapes.stop(t)))
}

// waitForRegistrations waits until a stream is open and at least this number of registrations has succeeded, and returns the number.
func (d *podgaugeProcess) waitForRegistrations(t *testing.T, atLeast float64) (count float64) {
	t.Helper()
	d.scrapeUntil(t, "podgauge is registered", func(s metricsScrape) (err error) {
		if count, err = s.value("podgauge_registrations_total", seriesLabels{"result": "success"}); err != nil {
			return err
		}
		if count < atLeast {
			return fmt.Errorf("registrations: got %v, want at least %v", count, atLeast)
		}
		return s.wantValue(1, "podgauge_plugin_streams", nil)
	})
	return count
}

func (d *podgaugeProcess) removeSocket(t *testing.T) {
	t.Helper()
	for _, socket := range d.sockets(t) {
		must(t, os.Remove(socket))
	}
}

// removeSocketFiles removes all files in the device-plugin folder except the kubelet's socket, as some clean-up scripts do.
func removeSocketFiles(t *testing.T, n *node.RealNode) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(n.DevicePluginSocket()), "*"))
	must(t, err)
	for _, file := range without(files, n.DevicePluginSocket()) {
		must(t, os.Remove(file))
	}
}

// TestFirstStartWaitsForOtherPlugin starts podgauge beside a plugin with the same resource and ids. podgauge waits, takes over when the
// other plugin ends, and does not wait after a restart.
func TestFirstStartWaitsForOtherPlugin(t *testing.T) {
	n := startNode(t, node.Options{})
	end := servePlugin(t, n, "nvidia-gpu.sock", gpuResource, deviceplugin.Healthy(uuid(0), uuid(1))...)
	waitForAllocatable(t, n, uuids(2)...)
	m := newMachine(t, n, "gpus 2")
	d := m.start(t, n)
	d.waitUntilListening(t)
	waiting := seriesLabels{"resource": gpuResource}
	d.scrapeUntil(t, "podgauge waits", func(s metricsScrape) error { return s.wantValue(1, "podgauge_plugin_waiting", waiting) })
	d.waitUntilReady(t)
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("sockets beside the other plugin: got %q, want none", sockets)
	}
	begin := time.Now()
	end()
	waitForAllocatable(t, n)
	waitForAllocatable(t, n, uuids(2)...)
	measureDurations(t, "other plugin ended → GPUs allocatable", 25*time.Second, time.Since(begin))
	d.scrapeUntil(t, "podgauge is registered", func(s metricsScrape) error { return s.wantValue(0, "podgauge_plugin_waiting", waiting) })
	d.stop(t)
	waitForAllocatable(t, n)
	m.start(t, n)
	measureDurations(t, "restart → GPUs allocatable", 2*time.Second, waitForAllocatable(t, n, uuids(2)...))
}

// TestDriver installs the driver's library while podgauge runs, and later replaces library and module while a pod runs. The loaded library
// then has the wrong version, and podgauge must exit with status 0. The test restarts podgauge as a DaemonSet would.
func TestDriver(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n, "driver 580.95.05")
	root := t.TempDir()
	start := func() *podgaugeProcess { return startPodgauge(t, n, m.environ(), "--nvidia-driver-root="+root) }
	d := start()
	checkWithoutDriver(t, d)
	begin := time.Now()
	installLibrary(t, m.libraryDir, root)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	measureDurations(t, "driver library installed → GPUs allocatable", 5*time.Second, time.Since(begin))
	pod, before, gpuID := runPodWithGPU(t, n, "train")
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	d.scrapeUntil(t, "the owner is exported", func(s metricsScrape) error { return s.checkOwners([]string{gpuID}, owners) })

	begin = time.Now()
	installLibrary(t, m.libraryDir, root)
	must(t, m.Set("driver 590.10", "fail * gpu * LIB_RM_VERSION_MISMATCH", "fail * gpu - LIB_RM_VERSION_MISMATCH"))
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if state, err := d.Wait(ctx); err != nil || !state.Success() {
		t.Fatalf("podgauge's exit: got %v, %v, want status 0", state, err)
	}
	measureDurations(t, "driver replaced → podgauge exited", 15*time.Second, time.Since(begin)) // listings are every 10 s
	expect(t, d.hasLogLine("exiting: driver was replaced, restart loads the new library"))
	must(t, m.Clear("fail"))
	waitForAllocatable(t, n)
	begin = time.Now()
	s := start().firstHealthScrape(t, gpuID)
	if err := s.checkOwners([]string{gpuID}, owners); err != nil {
		t.Errorf("first scrape with the GPU: %v", err)
	}
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	measureDurations(t, "podgauge started with the new driver → all GPUs allocatable", 2*time.Second, time.Since(begin))
	expect(t, s.wantValue(1, "nvidia_gpu_info", seriesLabels{"uuid": gpuID, "driver_version": "590.10"}))
	expect(t, checkSameContainer(t.Context(), n, pod, before))
}

// installLibrary copies a driver's library to the driver root and replaces an existing library.
func installLibrary(t *testing.T, from, root string) {
	t.Helper()
	const name = "libnvidia-ml.so.1"
	content, err := os.ReadFile(filepath.Join(from, name))
	must(t, err)
	dir := filepath.Join(root, "usr", "lib", "x86_64-linux-gnu")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "new"), content, 0o755))
	must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name)))
}

// checkWithoutDriver checks that podgauge is ready on a node without a driver, logs that once, and exports no GPU metrics.
func checkWithoutDriver(t *testing.T, d *podgaugeProcess) {
	t.Helper()
	d.waitUntilListening(t)
	d.waitUntilReady(t)
	for range 3 { // a second each
		s := d.nextScrape(t)
		expect(t, s.wantValue(0, "podgauge_nvml_up", nil))
		if found := s.families("nvidia_gpu_"); len(found) > 0 {
			t.Errorf("families without a driver: got %q, want none", found)
		}
	}
	expect(t, d.hasLogLine("driver unusable"))
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("podgauge's sockets without a device: got %q, want none", sockets)
	}
}
