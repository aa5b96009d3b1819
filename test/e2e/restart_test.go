package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

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
	expect(t, checkSameContainer(t.Context(), n, one, oneStatus))
	expect(t, checkSameContainer(t.Context(), n, two, twoStatus))
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
		if err := s.checkOwners([]string{gpuID}, owners); err != nil {
			t.Errorf("first scrape with the GPU: %v", err)
		}
		waitForAllocatable(t, n, uuids(defaultGPUs)...)
		allocatable = append(allocatable, time.Since(begin))
	}
	measureDurations(t, "podgauge killed and started → owner in the first scrape", 2*time.Second, exported...)
	measureDurations(t, "podgauge killed and started → GPUs allocatable", 2*time.Second, allocatable...)
	expect(t, checkSameContainer(t.Context(), n, pod, before))
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
