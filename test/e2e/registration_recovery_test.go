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

// TestRegistrationHeals takes podgauge's registration from it in every way but by a restart of the kubelet: its socket, its stream, or
// everything in the folder. All the while it is scraped, and has to be right about a holder.
func TestRegistrationHeals(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	d := newMachine(t, n).start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	truth := func(s metricsScrape) error {
		return s.checkOwners(uuids(defaultGPUs), map[string]node.OwnerKey{held: mainContainer(pod)})
	}
	d.scrapeUntil(ctx, t, "the holder is shown", truth)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, truth)

	for _, trouble := range []struct {
		what string
		make func()
	}{
		{"podgauge's socket was deleted", func() { removePluginSocket(t, d) }},
		{"the kubelet's connection was cut", func() { cutStream(t, d) }},
		{"the device-plugin folder was wiped but for the kubelet's socket", func() { removeSocketFiles(t, n) }},
	} {
		var took []time.Duration
		for range 3 {
			before := currentRegistrations(ctx, t, d)
			old, logged := d.sockets(t), len(d.logLines(t, "msg=registered"))
			begin := time.Now()
			trouble.make()
			await(ctx, t, "podgauge has registered anew", func(ctx context.Context) error { // scrapes may show that a second later
				if now := len(d.logLines(t, "msg=registered")); now <= logged {
					return fmt.Errorf("%d registrations are logged", now)
				}
				return hasAllocatable(n, uuids(defaultGPUs)...)(ctx)
			})
			took = append(took, time.Since(begin))
			await(ctx, t, "scrapes show the new registration", func(ctx context.Context) error {
				if now, err := registrationCount(ctx, d); err != nil || now <= before {
					return fmt.Errorf("%v registrations: %w", now, err)
				}
				return nil
			})
			if now := d.sockets(t); len(now) != 1 || slices.Equal(now, old) {
				t.Errorf("podgauge's sockets are %q, and were %q", now, old)
			}
			// One that ends sooner is taken for one that the kubelet refuses, which podgauge answers with longer and longer pauses.
			await(ctx, t, "the stream has stood for a while", waitSince(time.Now(), 1100*time.Millisecond))
		}
		measureDurations(t, "registered anew after "+trouble.what, time.Second, took...)
	}
	printMeasurement(t, "scrapes meanwhile, each right about every holder", fmt.Sprint(watch.stop(t)))
}

// registrationCount is how often podgauge has registered, where one stream stands.
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
	await(ctx, t, "one stream stands", func(ctx context.Context) (err error) {
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

// removeSocketFiles removes everything in the folder that is no kubelet's, as eager clean-up scripts do.
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

// cutStream shuts the connection on which the kubelet watches podgauge, in the kernel: no tool does that for unix sockets, but who may trace a
// process may take a duplicate of its descriptor, and a shutdown concerns the connection itself.
func cutStream(t *testing.T, d *podgaugeProcess) {
	t.Helper()
	connections, err := acceptedConnections(d, "/device-plugins/podgauge-")
	if err != nil || len(connections) != 1 {
		t.Fatalf("the kubelet's connections to podgauge are descriptors %v: %v", connections, err)
	}
	if err := shutdownConnection(d.PID, connections[0]); err != nil {
		t.Fatalf("cut the kubelet's connection: %v", err)
	}
}

// acceptedConnections are the process's descriptors of connections that came in on a unix socket with this in its path.
func acceptedConnections(d *podgaugeProcess, path string) (fds []int, err error) {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", d.PID))
	if err != nil {
		return nil, err
	}
	inodes := []string{}
	for line := range strings.Lines(string(table)) {
		// Num RefCount Protocol Flags Type St Inode Path; a connection that came in bears the path of the socket it came in on.
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
	own, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		return fmt.Errorf("pidfd_getfd: %w", err)
	}
	return errors.Join(unix.Shutdown(own, unix.SHUT_RDWR), unix.Close(own))
}

// TestLateParts starts podgauge before everything else: half a minute before the kubelet, and then before the driver.
func TestLateParts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	m := newMachine(t, n)
	d := m.start(t, n)
	began := time.Now()
	d.waitUntilListening(ctx, t)
	d.scrapeUntil(ctx, t, "the GPUs are shown", func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "podgauge_kubelet_up", nil), s.wantValue(1, "podgauge_nvml_up", nil),
			s.wantValue(1, "nvidia_gpu_up", seriesLabels{"uuid": uuid(7)}))
	})
	awaitWithin(ctx, t, time.Minute, "podgauge has been without a kubelet for 30 s", func(ctx context.Context) error {
		if err := d.checkProbe(ctx, "/healthz"); err != nil {
			return node.StopRetrying(err)
		}
		if err := d.checkProbe(ctx, "/readyz"); err == nil || !strings.Contains(err.Error(), "no response from the kubelet yet") {
			return node.StopRetrying(fmt.Errorf("probe readiness without a kubelet: got %w", err))
		}
		if waited := time.Since(began); waited < 30*time.Second {
			return fmt.Errorf("for %s", waited)
		}
		return nil
	})
	took := measureRegistration(ctx, t, n, func() { startKubelet(ctx, t, n) }, uuids(defaultGPUs)...)
	measureDurations(t, "registered after the socket of a kubelet that came 30 s after podgauge", time.Second, took)
	d.stop(t)
	waitForAllocatable(ctx, t, n)

	t.Run("library", func(t *testing.T) { libraryInstalledLate(ctx, t, n, m) })
	t.Run("driver", func(t *testing.T) { driverLoadedLate(ctx, t, n) })
}

// checkReady is the readiness probe, which has to succeed within seconds of the start.
func checkReady(ctx context.Context, d *podgaugeProcess) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return node.Until(ctx, "podgauge is ready", func(ctx context.Context) error { return d.checkProbe(ctx, "/readyz") })
}

// libraryInstalledLate has the driver installed while podgauge runs.
func libraryInstalledLate(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine) {
	root := t.TempDir()
	d := startPodgauge(t, n, m.environ(), "--nvidia-driver-root="+root)
	checkWithoutDriver(ctx, t, d)
	begin := time.Now()
	replaceDriver(t, m.libraryDir, root)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "GPUs are allocatable after the driver's library was installed", 5*time.Second, time.Since(begin))
	d.nextScrape(ctx, t)
	d.stop(t)
	waitForAllocatable(ctx, t, n)
}

// driverLoadedLate has the kernel module loaded while podgauge runs: the library is there, and does not start.
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
	measureDurations(t, "GPUs are allocatable after the driver was loaded", 5*time.Second, time.Since(begin))
	d.stop(t)
}

// checkWithoutDriver checks what podgauge is like on a node without driver: ready, and clear about it.
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
				t.Errorf("there is %s", name)
			}
		}
	}
	if lines := d.logLines(t, "driver lists no devices"); len(lines) != 1 {
		t.Errorf("of the driver's absence it says %q", lines)
	}
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("without a device there are %q", sockets)
	}
}
