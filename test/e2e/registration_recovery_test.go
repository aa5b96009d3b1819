package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestRegistrationRecovery interrupts podgauge's registration without a kubelet restart: by its socket, its stream, or all files in the
// folder. Scrapes during the test must have the right owner.
func TestRegistrationRecovery(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	d := newMachine(t, n).start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	check := func(s metricsScrape) error {
		return s.checkOwners(uuids(defaultGPUs), map[string]node.OwnerKey{gpuID: mainContainer(pod)})
	}
	d.scrapeUntil(ctx, t, "the owner is exported", check)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, check)

	for _, interruption := range []struct {
		name  string
		cause func()
	}{
		{"own socket deleted", func() { removePluginSocket(t, d) }},
		{"connection from the kubelet shut down", func() { cutStream(t, d) }},
		{"all files except the kubelet's socket deleted", func() { removeSocketFiles(t, n) }},
	} {
		var took []time.Duration
		for range 3 {
			before := currentRegistrations(ctx, t, d)
			old, logged := d.sockets(t), len(d.logLines(t, "msg=registered"))
			begin := time.Now()
			interruption.cause()
			await(ctx, t, "podgauge has registered again", func(ctx context.Context) error { // up to a second before scrapes show that
				if now := len(d.logLines(t, "msg=registered")); now <= logged {
					return fmt.Errorf("registrations in the log: got %d, want more than %d", now, logged)
				}
				return hasAllocatable(n, uuids(defaultGPUs)...)(ctx)
			})
			took = append(took, time.Since(begin))
			await(ctx, t, "scrapes show the new registration", func(ctx context.Context) error {
				if now, err := registrationCount(ctx, d); err != nil || now <= before {
					return fmt.Errorf("registrations: got %v, want more than %v, %w", now, before, err)
				}
				return nil
			})
			if now := d.sockets(t); len(now) != 1 || slices.Equal(now, old) {
				t.Errorf("podgauge's sockets: got %q, want one other than %q", now, old)
			}
			// Podgauge assumes that the kubelet rejects shorter streams, and registers with increasing delays.
			await(ctx, t, "the stream is old enough", waitSince(time.Now(), 1100*time.Millisecond))
		}
		measureDurations(t, interruption.name+" → registered", time.Second, took...)
	}
	printMeasurement(t, "number of scrapes during the test, all with the right owners", fmt.Sprint(watch.stop(t)))
}

// registrationCount returns the number of successful registrations, or an error unless one stream is open.
func registrationCount(ctx context.Context, d *podgaugeProcess) (float64, error) {
	s, err := d.scrape(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.wantValue(1, "podgauge_plugin_streams", nil); err != nil {
		return 0, err
	}
	return s.value("podgauge_registrations_total", seriesLabels{"result": "success"})
}

func currentRegistrations(ctx context.Context, t *testing.T, d *podgaugeProcess) (count float64) {
	t.Helper()
	await(ctx, t, "one stream is open", func(ctx context.Context) (err error) {
		count, err = registrationCount(ctx, d)
		return err
	})
	return count
}

func removePluginSocket(t *testing.T, d *podgaugeProcess) {
	t.Helper()
	for _, socket := range d.sockets(t) {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
}

// removeSocketFiles removes all files in the device-plugin folder except the kubelet's socket, as some clean-up scripts do.
func removeSocketFiles(t *testing.T, n *node.RealNode) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(n.DevicePluginSocket()))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if path := filepath.Join(filepath.Dir(n.DevicePluginSocket()), e.Name()); path != n.DevicePluginSocket() {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// cutStream shuts down the connection from the kubelet to podgauge. No tool does that for unix sockets, so the test shuts down a
// duplicate of podgauge's file descriptor, which affects the connection itself.
func cutStream(t *testing.T, d *podgaugeProcess) {
	t.Helper()
	connections, err := acceptedConnections(d, "/device-plugins/podgauge-")
	if err != nil || len(connections) != 1 {
		t.Fatalf("file descriptors of the kubelet's connections: got %v, %v, want one", connections, err)
	}
	if err := shutdownConnection(d.PID, connections[0]); err != nil {
		t.Fatalf("shut down the kubelet's connection: %v", err)
	}
}

// acceptedConnections returns the process's file descriptors of accepted connections to unix sockets whose path contains this text.
func acceptedConnections(d *podgaugeProcess, path string) (fds []int, err error) {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", d.PID))
	if err != nil {
		return nil, err
	}
	inodes := []string{}
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path. An accepted connection has the path of the listening socket.
		const connected = "03"
		if f := strings.Fields(line); len(f) == 8 && strings.Contains(f[7], path) && f[5] == connected {
			inodes = append(inodes, "socket:["+f[6]+"]")
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", d.PID)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if link, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && slices.Contains(inodes, link) {
			var fd int
			if _, err := fmt.Sscan(e.Name(), &fd); err != nil {
				return nil, err
			}
			fds = append(fds, fd)
		}
	}
	return fds, err
}

func shutdownConnection(pid, fd int) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(process)
	duplicate, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return fmt.Errorf("pidfd_getfd: %w", err)
	}
	return errors.Join(unix.Shutdown(duplicate, unix.SHUT_RDWR), unix.Close(duplicate))
}

// TestLateDependencies starts podgauge 30 s before the kubelet, before the installation of the library, and before the driver is loaded.
func TestLateDependencies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	m := newMachine(t, n)
	d := m.start(t, n)
	begin := time.Now()
	d.waitUntilListening(ctx, t)
	d.scrapeUntil(ctx, t, "the GPUs are exported", func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "podgauge_kubelet_up", nil), s.wantValue(1, "podgauge_nvml_up", nil),
			s.wantValue(1, "nvidia_gpu_up", seriesLabels{"uuid": uuid(7)}))
	})
	awaitWithin(ctx, t, time.Minute, "podgauge has run without a kubelet for 30 s", func(ctx context.Context) error {
		if err := d.checkProbe(ctx, "/healthz"); err != nil {
			return node.StopRetrying(err)
		}
		if err := d.checkProbe(ctx, "/readyz"); err == nil || !strings.Contains(err.Error(), "no response from the kubelet yet") {
			return node.StopRetrying(fmt.Errorf("probe readiness without a kubelet: got %w", err))
		}
		if waited := time.Since(begin); waited < 30*time.Second {
			return fmt.Errorf("%s have passed", waited)
		}
		return nil
	})
	took := measureRegistration(ctx, t, n, func() { startKubelet(ctx, t, n) }, uuids(defaultGPUs)...)
	measureDurations(t, "kubelet socket, 30 s after podgauge's start → registered", time.Second, took)
	d.stop(t)
	waitForAllocatable(ctx, t, n)

	t.Run("library", func(t *testing.T) { libraryInstalledLate(ctx, t, n, m) })
	t.Run("driver", func(t *testing.T) { driverLoadedLate(ctx, t, n) })
}

// checkReady waits until the readiness probe succeeds, at most for 10 s.
func checkReady(ctx context.Context, d *podgaugeProcess) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return node.Until(ctx, "podgauge is ready", func(ctx context.Context) error { return d.checkProbe(ctx, "/readyz") })
}

// libraryInstalledLate installs the driver's library while podgauge runs.
func libraryInstalledLate(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine) {
	root := t.TempDir()
	d := startPodgauge(t, n, m.environ(), "--nvidia-driver-root="+root)
	checkWithoutDriver(ctx, t, d)
	begin := time.Now()
	replaceDriver(t, m.libraryDir, root)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "driver library installed → GPUs allocatable", 5*time.Second, time.Since(begin))
	d.nextScrape(ctx, t)
	d.stop(t)
	waitForAllocatable(ctx, t, n)
}

// driverLoadedLate loads the kernel module while podgauge runs: before, the initialization of the library fails.
func driverLoadedLate(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	if err := os.Remove(m.scenarioFile); err != nil {
		t.Fatal(err)
	}
	d := m.start(t, n)
	checkWithoutDriver(ctx, t, d)
	begin := time.Now()
	m.setLines(t)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "driver loaded → GPUs allocatable", 5*time.Second, time.Since(begin))
	d.stop(t)
}

// checkWithoutDriver checks that podgauge is ready on a node without a driver, logs that once, and exports no GPU metrics.
func checkWithoutDriver(ctx context.Context, t *testing.T, d *podgaugeProcess) {
	t.Helper()
	d.waitUntilListening(ctx, t)
	if err := checkReady(ctx, d); err != nil {
		t.Error(err)
	}
	for range 5 { // a second each
		s := d.nextScrape(ctx, t)
		if err := s.wantValue(0, "podgauge_nvml_up", nil); err != nil {
			t.Error(err)
		}
		for name := range s.series {
			if strings.HasPrefix(name, "nvidia_gpu_") {
				t.Errorf("family %s exists without a driver", name)
			}
		}
	}
	if lines := d.logLines(t, "driver unusable"); len(lines) != 1 {
		t.Errorf("log lines about the driver: got %q, want one", lines)
	}
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("podgauge's sockets without a device: got %q, want none", sockets)
	}
}
