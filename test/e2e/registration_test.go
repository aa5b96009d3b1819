package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/expect"
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
	expect.NoError(t, d.hasLogLine("exiting: driver was replaced, restart loads the new library"))
	must(t, m.Clear("fail"))
	waitForAllocatable(t, n)
	begin = time.Now()
	s := start().firstHealthScrape(t, gpuID)
	expect.NoError(t, s.checkOwners([]string{gpuID}, owners), "first scrape with the GPU")
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	measureDurations(t, "podgauge started with the new driver → all GPUs allocatable", 2*time.Second, time.Since(begin))
	expect.NoError(t, s.wantValue(1, "nvidia_gpu_info", seriesLabels{"uuid": gpuID, "driver_version": "590.10"}))
	expect.NoError(t, checkSameContainer(t.Context(), n, pod, before))
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
		expect.NoError(t, s.wantValue(0, "podgauge_nvml_up", nil))
		if found := s.families("nvidia_gpu_"); len(found) > 0 {
			t.Errorf("families without a driver: got %q, want none", found)
		}
	}
	expect.NoError(t, d.hasLogLine("driver unusable"))
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("podgauge's sockets without a device: got %q, want none", sockets)
	}
}

// TestSurge replaces podgauge as a DaemonSet with maxSurge does: the new process starts beside the old one, which ends when the new one is
// ready. It has the state of the old one, and with kubelets from 1.37 on, no GPU is missing at any time.
func TestSurge(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n)
	old := m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	pod, before, gpuID := runPodWithGPU(t, n, "train")
	old.waitForOwner(t, gpuID, mainContainer(pod))

	endGaps := watchAllocatable(t, n)
	must(t, m.Event(indexOf(t, gpuID), "xid 31"))
	old.waitForIncident(t, gpuID, "xid_31", func(apiIncident) error { return nil }) // not on disk yet
	begin := time.Now()
	surge := m.startBeside(t, n)
	surge.waitUntilReady(t)
	measureDurations(t, "podgauge started beside another one → ready", 5*time.Second, time.Since(begin))
	both := podWithGPUs("both", 1)
	runPod(t, n, both)
	must(t, m.Event(indexOf(t, gpuID), "xid 43")) // seen by both processes
	for _, d := range []*podgaugeProcess{old, surge} {
		d.waitForIncident(t, gpuID, "xid_43", func(i apiIncident) error { return i.affectsOnly(mainContainer(pod)) })
	}
	_, err := old.Stop(t.Context(), syscall.SIGTERM)
	must(t, err)
	if n.KubeletVersion < "v1.37" { // ends both streams, and rejects pods until the next registration
		await(t, "the new process has registered again", func(context.Context) error {
			if all := surge.logLines(t, "msg=registered"); len(all) < 2 {
				return fmt.Errorf("registrations: got %q, want two", all)
			}
			return nil
		})
		waitForAllocatable(t, n, uuids(defaultGPUs)...)
	}
	after := podWithGPUs("after", 1)
	runPod(t, n, after)
	surge.waitForOwner(t, waitForDevices(t, n, after)[0], mainContainer(after))
	for _, reason := range []string{"xid_31", "xid_43"} {
		surge.waitForIncident(t, gpuID, reason, func(i apiIncident) error {
			if i.Count != 1 {
				return fmt.Errorf("incident: got %+v, want count 1", i)
			}
			return i.affectsOnly(mainContainer(pod))
		})
	}
	expect.NoError(t, checkSameContainer(t.Context(), n, pod, before))
	endGaps()
	if lines := old.logLines(t, "level=ERROR"); len(lines) > 0 {
		t.Errorf("errors in the log: %q", lines)
	}
}

// startBeside starts a second podgauge, on another port.
func (m *simulatedMachine) startBeside(t *testing.T, n *node.RealNode) *podgaugeProcess {
	t.Helper()
	const port = defaultPort + 1
	second := *m
	second.callsFile += ".second"
	d := second.start(t, n, fmt.Sprintf("--web.listen-address=:%d", port))
	d.port = port
	return d
}

// watchAllocatable asks the kubelet every 20 ms; it answers a hundred requests per second. end reports the longest time without all GPUs.
// Kubelets before 1.37 drop the devices of both processes when one ends.
func watchAllocatable(t *testing.T, n *node.RealNode) (end func()) {
	t.Helper()
	before, err := n.Kubelet().Output()
	must(t, err)
	complete, answers := time.Now(), 0
	var longest time.Duration
	w := startWatch(t, 20*time.Millisecond, func(ctx context.Context) error {
		switch got, err := n.Allocatable(ctx, gpuResource); {
		case err != nil: // by the limit of requests
		case slices.Equal(got, uuids(defaultGPUs)):
			complete, answers = time.Now(), answers+1
		default:
			longest = max(longest, time.Since(complete))
		}
		return nil
	})
	return func() {
		t.Helper()
		w.stop(t)
		log, err := n.Kubelet().Output()
		must(t, err)
		marked := linesWith(log[len(before):], "Mark all resources Unhealthy")
		printMeasurement(t, "replaced beside the running one: longest time with fewer allocatable GPUs",
			fmt.Sprintf("%s; %d complete answers; marked unhealthy %d times", longest.Round(time.Millisecond), answers, len(marked)))
		if hasInstances := n.KubeletVersion >= "v1.37"; hasInstances && (longest > 0 || len(marked) > 0) {
			t.Errorf("fewer allocatable GPUs for %s, kubelet's log: %q, want none", longest, marked)
		}
	}
}

// TestKubeletRestarts restarts the kubelet repeatedly, by SIGTERM and by SIGKILL, and scrapes podgauge five times a second. All scrapes
// must have the right owners, and podgauge must not leak file descriptors, goroutines or threads.
func TestKubeletRestarts(t *testing.T) {
	const warmUps, restarts = 2, 10 // restarts for each signal
	n := startNode(t, node.Options{})
	d := newMachine(t, n).start(t, n, "--web.enable-pprof")
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	one, oneStatus, _ := runPodWithGPU(t, n, "one")
	two, twoStatus, _ := runPodWithGPU(t, n, "two")
	owners := waitForOwners(t, n, one, two)
	check := func(s metricsScrape) error { return s.checkOwners(uuids(defaultGPUs), owners) }
	d.scrapeUntil(t, "the owners are exported", check)
	if node.Tolerance() > 4 { // on a machine that slow, collections leave out late GPUs
		check = func(s metricsScrape) error { return s.checkNoWrongOwner(owners) }
	}
	scrapes := watchScrapes(t, d, 200*time.Millisecond, check)

	took := map[syscall.Signal][]time.Duration{}
	var before resourceUse
	for i := range warmUps + 2*restarts {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		after := measureRegistration(t, n, func() {
			stopKubelet(t, n, signal)
			// A collection begins every second. With these delays, some collections get the kubelet's first responses, without pods.
			waitUntil(t, d.nextScrape(t).collection.begin.Add(500*time.Millisecond+time.Duration(i)*20*time.Millisecond))
			startKubelet(t, n)
		}, uuids(defaultGPUs)...)
		d.nextScrape(t) // the watch must see several collections, not a shared one
		d.nextScrape(t)
		if i >= warmUps {
			took[signal] = append(took[signal], after)
		}
		if i == warmUps-1 {
			before = minResourceUse(t, n, d)
		}
	}
	after := minResourceUse(t, n, d)
	measureDurations(t, "kubelet restart by SIGTERM → registered", time.Second, took[syscall.SIGTERM]...)
	measureDurations(t, "kubelet restart by SIGKILL → registered", time.Second, took[syscall.SIGKILL]...)
	printMeasurement(t, fmt.Sprintf("%d kubelet restarts", 2*restarts), fmt.Sprintf("%v before, %v after", before, after))
	if after.fds > before.fds || after.goroutines > before.goroutines || after.threads > before.threads+maxRuntimeThreads {
		t.Errorf("podgauge's resources after %d restarts: got %v, want at most %v", 2*restarts, after, before)
	}
	printMeasurement(t, "number of scrapes during the restarts, all with the right owners", fmt.Sprint(scrapes.stop(t)))
	expect.NoError(t, checkSameContainer(t.Context(), n, one, oneStatus))
	expect.NoError(t, checkSameContainer(t.Context(), n, two, twoStatus))
}

// TestPodgaugeRestarts kills podgauge while a pod runs, and checks the first scrape of the next podgauge process.
func TestPodgaugeRestarts(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	pod, before, gpuID := runPodWithGPU(t, n, "train")
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	d.scrapeUntil(t, "the owner is exported", func(s metricsScrape) error { return s.checkOwners([]string{gpuID}, owners) })

	var exported, allocatable []time.Duration
	for range 5 {
		_, err := d.Stop(t.Context(), syscall.SIGKILL)
		must(t, err)
		waitForAllocatable(t, n) // none, after the end of the stream
		begin := time.Now()
		d = m.start(t, n)
		s := d.scrapeUntil(t, "the GPU is exported", func(s metricsScrape) error { return s.wantCount(1, "nvidia_gpu_up", seriesLabels{"uuid": gpuID}) })
		exported = append(exported, time.Since(begin))
		expect.NoError(t, s.checkOwners([]string{gpuID}, owners), "first scrape with the GPU")
		waitForAllocatable(t, n, uuids(defaultGPUs)...)
		allocatable = append(allocatable, time.Since(begin))
	}
	measureDurations(t, "podgauge killed and started → owner in the first scrape", 2*time.Second, exported...)
	measureDurations(t, "podgauge killed and started → GPUs allocatable", 2*time.Second, allocatable...)
	expect.NoError(t, checkSameContainer(t.Context(), n, pod, before))
	if sockets := d.sockets(t); len(sockets) != 1 {
		t.Errorf("podgauge's sockets: got %q, want one", sockets)
	}
}

// resourceUse contains the numbers of podgauge's file descriptors, goroutines and threads.
type resourceUse struct{ fds, goroutines, threads int }

func (r resourceUse) String() string {
	return fmt.Sprintf("%d file descriptors, %d goroutines, %d threads", r.fds, r.goroutines, r.threads)
}

// minResourceUse returns the minima of a dozen samples, as the listing of every ten seconds may run during a sample. Of threads it returns
// the maximum, as threads do not end.
func minResourceUse(t *testing.T, n *node.RealNode, d *podgaugeProcess) resourceUse {
	t.Helper()
	d.waitForRegistrations(t, 1)
	d.scrapeUntil(t, "the kubelet responds", func(s metricsScrape) error { return s.wantValue(1, "podgauge_kubelet_up", nil) })
	// The kubelet rejects the stream of its Pods API for a second or two after its start. The stream needs a connection and seven goroutines.
	if _, err := os.Stat(filepath.Join(n.KubeletDir(), "pods-api", "pods-api.sock")); err == nil {
		await(t, "the stream of the Pods API is open", func(context.Context) error {
			opened, ended := len(d.logLines(t, "pods synced")), len(d.logLines(t, "pods no longer synced"))
			if opened != ended+1 {
				return fmt.Errorf("streams of the Pods API: got %d opened, %d ended", opened, ended)
			}
			return nil
		})
	}
	least := d.resourceUse(t)
	for range 11 {
		waitUntil(t, time.Now().Add(100*time.Millisecond))
		now := d.resourceUse(t)
		least = resourceUse{min(least.fds, now.fds), min(least.goroutines, now.goroutines), max(least.threads, now.threads)}
	}
	return least
}

// resourceUse counts file descriptors, goroutines and threads. podgauge needs --web.enable-pprof. The descriptors are counted before the
// request of the profile: podgauge may close that connection early or late.
func (d *podgaugeProcess) resourceUse(t *testing.T) (r resourceUse) {
	t.Helper()
	var err error
	r.fds, err = d.FDs()
	must(t, err)
	r.threads = threadCount(t, d)
	// A profile, as scrapes start varying numbers of goroutines.
	profile, err := d.get(t.Context(), "/debug/pprof/goroutine?debug=1")
	must(t, err)
	defer profile.Close()
	_, err = fmt.Fscanf(profile, "goroutine profile: total %d", &r.goroutines)
	must(t, err)
	return r
}

// maxRuntimeThreads limits the threads of the Go runtime in addition to the threads in calls. On a busy machine, the runtime starts more
// threads because its threads return late from calls.
const maxRuntimeThreads = 4

func threadCount(t *testing.T, d *podgaugeProcess) int {
	t.Helper()
	n, err := d.Threads()
	must(t, err)
	return n
}
