package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	nvmltest "github.com/podgauge/podgauge/test/nvml"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const (
	// maxScrapeDuration is how long a scrape may take, whatever hangs.
	maxScrapeDuration = 1500 * time.Millisecond
	// maxExtraThreads is how many threads more a machine may cost whose calls hang: one a GPU, one that lists, one that waits, and
	// Go's own.
	maxExtraThreads = defaultGPUs + 2 + maxRuntimeThreads
	// hungGPU is the GPU that hangs, or holds the driver's lock.
	hungGPU = 5
	// hangTimeout is the time after which a GPU whose calls hang is to be unhealthy, where it is not the usual 30 s.
	hangTimeout = 20 * time.Second
	// podDuringHang is a pod that comes in the middle of trouble.
	podDuringHang = "meanwhile"
)

// TestHangs has calls to the driver hang, one GPU's, then everybody's, and then the library's start.
func TestHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	t.Run("one GPU", func(t *testing.T) { singleGPUHangs(ctx, t, n) })
	t.Run("the driver's lock", func(t *testing.T) { driverHangs(ctx, t, n) })
	t.Run("the library's start", func(t *testing.T) { nvmlInitHangs(ctx, t, n) })
}

// hangResult is what was seen while something hung.
type hangResult struct {
	threadsBefore int // threads before
	maxThreads    int // the most of them
	pendingCalls  int // that did not come back
	slowest       time.Duration
	// How long Allocate, a list on a new stream and a new pod took.
	allocate, list, pod time.Duration
}

func (h hangResult) print(t *testing.T, while string) {
	t.Helper()
	measureDurations(t, "slowest scrape while "+while, maxScrapeDuration, h.slowest)
	measureDurations(t, "Allocate answered while "+while+", by podgauge_plugin_request_duration_seconds", 50*time.Millisecond, h.allocate)
	measureDurations(t, "a new pod ran while "+while, 5*time.Second, h.pod)
	measureDurations(t, "the list was on a new stream after podgauge's socket was deleted, while "+while, time.Second, h.list)
	printMeasurement(t, "calls that do not come back while "+while, fmt.Sprintf("%d; may be %d", h.pendingCalls, defaultGPUs+2))
	if h.pendingCalls > defaultGPUs+2 {
		t.Errorf("%d calls hang while %s", h.pendingCalls, while)
	}
	printMeasurement(t, "threads more than before while "+while, fmt.Sprintf("%d (of %d); may be %d", h.maxThreads-h.threadsBefore, h.threadsBefore, maxExtraThreads))
	if h.maxThreads > h.threadsBefore+maxExtraThreads {
		t.Errorf("%d threads while %s, %d before", h.maxThreads, while, h.threadsBefore)
	}
}

// singleGPUHangs hangs one GPU for as long as it takes until it is called unhealthy.
func singleGPUHangs(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	d := m.start(t, n, "--web.enable-pprof")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	calm := threadsAtRest(ctx, t, n, d)
	others := slices.DeleteFunc(uuids(defaultGPUs), func(id string) bool { return id == uuid(hungGPU) })
	defer m.clear(t, "hang")
	m.setLines(t, fmt.Sprintf("hang * gpu %d", hungGPU))
	hangs := time.Now()
	taken := timeUntilUnallocatable(ctx, n, uuid(hungGPU), time.Minute)
	h := measureDuringHang(ctx, t, n, m, d, calm, func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "nvidia_gpu_up", seriesLabels{"uuid": uuid(hungGPU)}), s.wantValue(1, "nvidia_gpu_stalled", seriesLabels{"uuid": uuid(hungGPU)}),
			checkReadingsGone(s, uuid(hungGPU)))
	})
	// A value that the others have only now has been read only now.
	m.setLines(t, "gpu * temperature 61")
	s := d.nextScrape(ctx, t)
	for _, id := range others {
		if err := s.wantValue(61, "nvidia_gpu_temperature_celsius", seriesLabels{"uuid": id, "sensor": "gpu"}); err != nil {
			t.Error(err)
		}
	}
	reportsOtherGPU(ctx, t, n, m, hangs)
	if took := <-taken; took == 0 {
		t.Error("the GPU whose calls hang stays among the kubelet's")
	} else {
		measureDurations(t, "a GPU whose calls hang is taken from the kubelet's GPUs", 35*time.Second, took)
	}
	waitForAllocatable(ctx, t, n, others...)
	wantHangUnhealthy(ctx, t, d, uuid(hungGPU))
	sustainHang(ctx, t, d, hangs, func(s metricsScrape) error { return checkReadingsGone(s, uuid(hungGPU)) })
	waitForAllocatable(ctx, t, n, others...)
	h.maxThreads = max(h.maxThreads, threadCount(t, d))
	h.print(t, "one GPU's calls hang")
	m.clear(t, "hang")
	m.clear(t, "gpu * temperature")
	waitForRecovery(ctx, t, n, m, d, "one GPU's calls")
	waitUntilHangOver(ctx, t, d, uuid(hungGPU))
}

// wantHangUnhealthy checks that podgauge tells of these GPUs, and of no others, that their calls have hung for too long. If anybody had one of them
// shortly before, it was the pod that came meanwhile.
func wantHangUnhealthy(ctx context.Context, t *testing.T, d *podgaugeProcess, ids ...string) {
	t.Helper()
	another := func(h apiAffectedContainer) bool { return h.owner() != mainContainer(podWithGPUs(podDuringHang, 1)) }
	for _, id := range ids {
		d.waitForIncident(ctx, t, id, "not_responding", func(i apiIncident) error {
			if !i.MarkedUnhealthy || !i.RecoveredAt.IsZero() || slices.ContainsFunc(i.Containers, another) || i.OwnerUnnamed || i.ContainersUnknown {
				return fmt.Errorf("told is %+v", i)
			}
			return nil
		})
		if s, err := d.device(ctx, id); err != nil || s.Healthy || s.Health != "unhealthy" || s.Reason != "not_responding" {
			t.Errorf("a GPU whose calls hang is %+v, %v", s, err)
		}
	}
	if all, err := d.incidents(ctx, "reason", "not_responding"); err != nil || len(all) != len(ids) {
		t.Errorf("of calls that hang is told %+v, %v", all, err)
	}
}

// waitUntilHangOver waits until podgauge tells that it is over.
func waitUntilHangOver(ctx context.Context, t *testing.T, d *podgaugeProcess, ids ...string) {
	t.Helper()
	for _, id := range ids {
		d.waitForIncident(ctx, t, id, "not_responding", func(i apiIncident) error {
			if !i.RecoveredAt.After(i.Last) {
				return fmt.Errorf("told is %+v", i)
			}
			return nil
		})
	}
}

// sustainHang has a hang last for a minute, where the tests are in no hurry (make e2e-all).
func sustainHang(ctx context.Context, t *testing.T, d *podgaugeProcess, hangs time.Time, stuck func(metricsScrape) error) {
	t.Helper()
	if timeoutFactor() > 1 {
		return
	}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, stuck)
	awaitWithin(ctx, t, 2*time.Minute, "the hang has lasted for a minute", waitSince(hangs, time.Minute))
	printMeasurement(t, "scrapes in the rest of a minute of a hang", fmt.Sprint(watch.stop(t)))
	measureDurations(t, "the slowest of them", maxScrapeDuration, watch.longest)
}

// timeUntilUnallocatable tells how long it takes from now until the kubelet would not give the GPU away any more; 0 where it does not come
// to that.
func timeUntilUnallocatable(ctx context.Context, n *node.RealNode, id string, most time.Duration) <-chan time.Duration {
	begin, took := time.Now(), make(chan time.Duration, 1)
	ctx, cancel := context.WithTimeout(ctx, most)
	go func() {
		defer cancel()
		var last []string
		err := node.Until(ctx, "the GPU is not allocatable", func(ctx context.Context) (err error) {
			// None at all is a moment without a registration.
			if last, err = n.Allocatable(ctx, gpuResource); err != nil || len(last) == 0 || slices.Contains(last, id) {
				return fmt.Errorf("%q are: %w", last, err)
			}
			return nil
		})
		if err != nil {
			took <- 0
			return
		}
		took <- time.Since(begin)
	}()
	return took
}

// reportsOtherGPU has a GPU fail while another hangs, and be reset. It comes so late that the listing that is made every 10 s hangs as well, and
// that 5 s later podgauge has noticed: that must not keep it from hearing of events.
func reportsOtherGPU(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, hangs time.Time) {
	t.Helper()
	const victim = 2
	await(ctx, t, "the hang has lasted for 16 s", waitSince(hangs, 16*time.Second))
	begin := time.Now()
	m.addEvent(t, victim, "xid 79")
	if took := <-timeUntilUnallocatable(ctx, n, uuid(victim), 10*time.Second); took == 0 {
		t.Fatal("an Xid of another GPU is not told while one GPU's calls hang")
	}
	at, err := firstListAfter(n, begin)
	if err != nil {
		t.Fatal(err)
	}
	measureDurations(t, "from Xid 79 of another GPU to Unhealthy on the stream while one GPU's calls hang", 100*time.Millisecond, at.Sub(begin))
	// A real reset takes seconds. One before the first check that follows the Xid could be from before the Xid, and is not evidence.
	await(ctx, t, "the GPU was checked after the Xid", waitSince(begin, 2*time.Second))
	m.setLines(t, fmt.Sprintf("gpu %d energy 0", victim))
	await(ctx, t, "that GPU is healthy again", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpuResource)
		if !slices.Contains(ids, uuid(victim)) {
			return fmt.Errorf("%q are: %w", ids, err)
		}
		return nil
	})
}

// driverHangs has one call hang while it holds the lock that real drivers have: no other call gets anywhere.
func driverHangs(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	d := m.start(t, n, "--web.enable-pprof", "--unhealthy-after="+hangTimeout.String())
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	calm := threadsAtRest(ctx, t, n, d)
	defer m.clear(t, "lock")
	defer m.clear(t, "hang")
	m.setLines(t, "lock driver", fmt.Sprintf("hang * gpu %d", hungGPU))
	hangs := time.Now()
	stuck := func(s metricsScrape) error {
		wrong := []error{}
		for _, id := range uuids(defaultGPUs) {
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_stalled", seriesLabels{"uuid": id}), checkReadingsGone(s, id))
		}
		return errors.Join(wrong...)
	}
	h := measureDuringHang(ctx, t, n, m, d, calm, stuck)
	waitForAllocatable(ctx, t, n) // none is left
	took := time.Since(hangs)
	if took < hangTimeout {
		t.Errorf("GPUs are taken away after %s", took)
	}
	measureDurations(t, "the driver hangs, which may last for 20 s: all GPUs are taken from the kubelet after", hangTimeout+5*time.Second, took)
	wantHangUnhealthy(ctx, t, d, uuids(defaultGPUs)...)
	sustainHang(ctx, t, d, hangs, stuck)
	h.maxThreads = max(h.maxThreads, threadCount(t, d))
	h.print(t, "a call hangs that holds the driver's lock")
	m.clear(t, "hang")
	m.clear(t, "lock")
	waitForRecovery(ctx, t, n, m, d, "a call that holds the driver's lock")
	waitUntilHangOver(ctx, t, d, uuids(defaultGPUs)...)
}

// nvmlInitHangs starts podgauge on a driver whose library does not get up.
func nvmlInitHangs(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n, "hang * gpu -")
	defer m.clear(t, "hang")
	d := m.start(t, n, "--web.enable-pprof")
	d.waitUntilListening(ctx, t)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error { return s.wantValue(0, "podgauge_nvml_up", nil) })
	await(ctx, t, "podgauge says that the driver does not answer", func(context.Context) error {
		if lines := d.logLines(t, "driver lists no devices", "hang"); len(lines) != 1 {
			return fmt.Errorf("it says %q", lines)
		}
		return nil
	})
	if err := errors.Join(d.checkProbe(ctx, "/healthz"), checkReady(ctx, d)); err != nil {
		t.Error(err)
	}
	most := threadCount(t, d)
	watch.stop(t)
	measureDurations(t, "slowest scrape while the library's start hangs", maxScrapeDuration, watch.longest)
	printMeasurement(t, "threads while the library's start hangs", fmt.Sprint(most))
	m.clear(t, "hang")
	took := waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "all GPUs are allocatable after the end of a hanging start", 5*time.Second, took)
	if calm := threadsAtRest(ctx, t, n, d); most > calm+2+maxRuntimeThreads {
		t.Errorf("%d threads while the start hung, %d after", most, calm)
	}
	m.checkedCalls(t)
}

// threadsAtRest is how many threads podgauge has when nothing hangs.
func threadsAtRest(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) int {
	t.Helper()
	return minResourceUse(ctx, t, n, d).threads
}

// measureDuringHang puts podgauge to the test while something hangs: scrapes five times a second, a new pod, a new stream.
func measureDuringHang(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, threadsBefore int, stuck func(metricsScrape) error) hangResult {
	t.Helper()
	h := hangResult{threadsBefore: threadsBefore}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		if s.duration > maxScrapeDuration*timeoutFactor() {
			return fmt.Errorf("it took %s", s.duration)
		}
		return nil
	})
	d.scrapeUntil(ctx, t, "what hangs is said to", stuck)
	pod := podWithGPUs(podDuringHang, 1)
	before := d.nextScrape(ctx, t)
	status, took := runPod(ctx, t, n, pod)
	h.pod = took
	after := d.nextScrape(ctx, t)
	called := seriesLabels{"method": "Allocate"}
	const duration = "podgauge_plugin_request_duration_seconds"
	if calls := after.sum(duration+"_count", called) - before.sum(duration+"_count", called); calls != 1 {
		t.Errorf("Allocate was answered %v times for pod %s", calls, status.Name)
	}
	h.allocate = time.Duration((after.sum(duration+"_sum", called) - before.sum(duration+"_sum", called)) * float64(time.Second))
	h.list = reopenStream(ctx, t, n, d)
	asked := m.checkedCalls(t)
	for range 5 { // what a flight would leave behind adds up
		d.nextScrape(ctx, t)
		h.maxThreads = max(h.maxThreads, threadCount(t, d))
	}
	// A listing may come by once, if it has not yet.
	if again := m.checkedCalls(t).Since(asked).GPUTotal(hungGPU); again > 1 {
		t.Errorf("the GPU that hangs was asked %d times more", again)
	}
	if s := d.nextScrape(ctx, t); stuck(s) != nil {
		t.Errorf("after some scrapes: %v", stuck(s))
	}
	watch.stop(t)
	h.slowest = watch.longest
	removePod(ctx, t, n, pod)
	for gpu := range nvmltest.NoGPU + 1 {
		h.pendingCalls += int(m.checkedCalls(t).InFlight(gpu))
	}
	return h
}

// reopenStream deletes podgauge's socket and returns how long it took until the kubelet had the whole list on a new stream.
func reopenStream(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) time.Duration {
	t.Helper()
	before := currentRegistrations(ctx, t, d)
	begin := time.Now()
	removePluginSocket(t, d)
	var at time.Time
	await(ctx, t, "a new list has come", func(context.Context) (err error) {
		at, err = firstListAfter(n, begin)
		return err
	})
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	// The scrape may be of a collection from before, for as long as that is shared.
	await(ctx, t, "one more registration is counted", func(ctx context.Context) error {
		if now, err := registrationCount(ctx, d); err != nil || now != before+1 {
			return fmt.Errorf("count registrations: got %v and then %v, %w", before, now, err)
		}
		return nil
	})
	return at.Sub(begin)
}

// checkReadingsGone says which readings of the GPU are shown, none of which can be current.
func checkReadingsGone(s metricsScrape, id string) error {
	for _, family := range []string{"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius"} {
		if found := findSamples(s.series[family], seriesLabels{"uuid": id}); len(found) > 0 {
			return fmt.Errorf("%s is %v", family, found)
		}
	}
	return nil
}

// waitForRecovery waits until all is as before, and checks that no call was ever made beside one that hung.
func waitForRecovery(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, what string) {
	t.Helper()
	begin := time.Now()
	d.scrapeUntil(ctx, t, "all GPUs are shown as before", func(s metricsScrape) error {
		wrong := []error{s.checkOwners(uuids(defaultGPUs), nil)}
		for _, id := range uuids(defaultGPUs) {
			of := seriesLabels{"uuid": id}
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_up", of), s.wantValue(0, "nvidia_gpu_stalled", of), s.wantValue(1, "nvidia_gpu_healthy", of))
		}
		return errors.Join(wrong...)
	})
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "all is as before after the end of a hang of "+what, 10*time.Second, time.Since(begin))
	await(ctx, t, "no call is under way", func(context.Context) error {
		calls := m.checkedCalls(t)
		for gpu := range nvmltest.MaxGPUs {
			if calls.InFlight(gpu) > 0 {
				return fmt.Errorf("one is, about GPU %d", gpu)
			}
		}
		return nil
	})
}
