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
	// maxScrapeDuration limits the time of a scrape during a hang.
	maxScrapeDuration = 1500 * time.Millisecond
	// maxExtraThreads limits the additional threads during a hang: GPUs, listing, wait for events, and the Go runtime's threads.
	maxExtraThreads = defaultGPUs + 2 + maxRuntimeThreads
	// hungGPU is the GPU whose calls hang, or the GPU of the call that hangs with the driver's lock.
	hungGPU = 5
	// hangTimeout is the value of --unhealthy-after in the test of the driver's lock; the default is 30 s.
	hangTimeout = 20 * time.Second
	// podDuringFault is the name of a pod that is created during a hang or a storm of Xids.
	podDuringFault = "during-fault"
)

// TestHangs checks podgauge while NVML calls hang: calls about one GPU, all calls, and the initialization of the library.
func TestHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	t.Run("one GPU", func(t *testing.T) { singleGPUHangs(ctx, t, n) })
	t.Run("driver lock", func(t *testing.T) { driverHangs(ctx, t, n) })
	t.Run("library initialization", func(t *testing.T) { nvmlInitHangs(ctx, t, n) })
}

// hangResult contains measurements during a hang.
type hangResult struct {
	threadsBefore, maxThreads int // before and during the hang
	pendingCalls              int // NVML calls that did not return
	slowest                   time.Duration
	// Durations of Allocate, until the device list on a new stream, and until a new pod ran.
	allocate, list, pod time.Duration
}

func (h hangResult) print(t *testing.T, hang string) {
	t.Helper()
	measureDurations(t, hang+": slowest scrape", maxScrapeDuration, h.slowest)
	measureDurations(t, hang+": Allocate, by podgauge_plugin_request_duration_seconds", 50*time.Millisecond, h.allocate)
	measureDurations(t, hang+": new pod created → running", 5*time.Second, h.pod)
	measureDurations(t, hang+": own socket deleted → device list on a new stream", time.Second, h.list)
	printMeasurement(t, hang+": pending calls", fmt.Sprintf("%d; limit %d", h.pendingCalls, defaultGPUs+2))
	if h.pendingCalls > defaultGPUs+2 {
		t.Errorf("%s: pending calls: got %d, want at most %d", hang, h.pendingCalls, defaultGPUs+2)
	}
	extraThreads := h.maxThreads - h.threadsBefore
	printMeasurement(t, hang+": additional threads", fmt.Sprintf("%d, %d before; limit %d", extraThreads, h.threadsBefore, maxExtraThreads))
	if extraThreads > maxExtraThreads {
		t.Errorf("%s: additional threads: got %d, want at most %d", hang, extraThreads, maxExtraThreads)
	}
}

// singleGPUHangs makes calls about one GPU hang until the GPU is unhealthy.
func singleGPUHangs(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	d := m.start(t, n, "--web.enable-pprof")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	idleThreads := threadsAtRest(ctx, t, n, d)
	others := slices.DeleteFunc(uuids(defaultGPUs), func(id string) bool { return id == uuid(hungGPU) })
	defer m.clear(t, "hang")
	m.setLines(t, fmt.Sprintf("hang * gpu %d", hungGPU))
	hangBegin := time.Now()
	unallocatableAfter := timeUntilUnallocatable(ctx, n, uuid(hungGPU), time.Minute)
	h := measureDuringHang(ctx, t, n, m, d, idleThreads, func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "nvidia_gpu_up", seriesLabels{"uuid": uuid(hungGPU)}),
			s.wantValue(1, "nvidia_gpu_stalled", seriesLabels{"uuid": uuid(hungGPU)}), checkReadingsGone(s, uuid(hungGPU)))
	})
	// A new value proves that the other GPUs are still read.
	m.setLines(t, "gpu * temperature 61")
	s := d.nextScrape(ctx, t)
	for _, id := range others {
		if err := s.wantValue(61, "nvidia_gpu_temperature_celsius", seriesLabels{"uuid": id, "sensor": "gpu"}); err != nil {
			t.Error(err)
		}
	}
	checkEventOfOtherGPU(ctx, t, n, m, hangBegin)
	if took := <-unallocatableAfter; took == 0 {
		t.Error("the hung GPU is still allocatable")
	} else {
		measureDurations(t, "a GPU hangs → not allocatable", 35*time.Second, took)
	}
	waitForAllocatable(ctx, t, n, others...)
	waitForHangIncidents(ctx, t, d, uuid(hungGPU))
	sustainHang(ctx, t, d, hangBegin, func(s metricsScrape) error { return checkReadingsGone(s, uuid(hungGPU)) })
	waitForAllocatable(ctx, t, n, others...)
	h.maxThreads = max(h.maxThreads, threadCount(t, d))
	h.print(t, "a GPU hangs")
	m.clear(t, "hang")
	m.clear(t, "gpu * temperature")
	waitForRecovery(ctx, t, n, m, d, "end of the GPU's hang")
	waitForIncidentEnd(ctx, t, d, uuid(hungGPU))
}

// waitForHangIncidents waits until exactly these GPUs are not_responding. Only the pod that ran during the hang may be affected.
func waitForHangIncidents(ctx context.Context, t *testing.T, d *podgaugeProcess, ids ...string) {
	t.Helper()
	otherContainer := func(c apiAffectedContainer) bool { return c.owner() != mainContainer(podWithGPUs(podDuringFault, 1)) }
	for _, id := range ids {
		d.waitForIncident(ctx, t, id, "not_responding", func(i apiIncident) error {
			if !i.MarkedUnhealthy || !i.RecoveredAt.IsZero() || slices.ContainsFunc(i.Containers, otherContainer) || i.OwnerUnnamed || i.ContainersUnknown {
				return fmt.Errorf("incident: got %+v, want one that marked the device unhealthy", i)
			}
			return nil
		})
		if s, err := d.device(ctx, id); err != nil || s.Healthy || s.Health != "unhealthy" || s.Reason != "not_responding" {
			t.Errorf("state of a hung GPU: got %+v, %v, want unhealthy, not_responding", s, err)
		}
	}
	if all, err := d.incidents(ctx, "reason", "not_responding"); err != nil || len(all) != len(ids) {
		t.Errorf("incidents not_responding: got %+v, %v, want %d", all, err, len(ids))
	}
}

// waitForIncidentEnd waits until the GPUs' incidents with reason not_responding have a time of recovery.
func waitForIncidentEnd(ctx context.Context, t *testing.T, d *podgaugeProcess, ids ...string) {
	t.Helper()
	for _, id := range ids {
		d.waitForIncident(ctx, t, id, "not_responding", func(i apiIncident) error {
			if !i.RecoveredAt.After(i.Last) {
				return fmt.Errorf("incident: got %+v, want a recovery", i)
			}
			return nil
		})
	}
}

// sustainHang checks scrapes until a hang has lasted for a minute, but only with PODGAUGE_STRICT (make e2e-all).
func sustainHang(ctx context.Context, t *testing.T, d *podgaugeProcess, hangBegin time.Time, stuck func(metricsScrape) error) {
	t.Helper()
	if timeoutFactor() > 1 {
		return
	}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, stuck)
	awaitWithin(ctx, t, 2*time.Minute, "the hang has lasted for a minute", waitSince(hangBegin, time.Minute))
	printMeasurement(t, "number of scrapes in the rest of a hang of a minute", fmt.Sprint(watch.stop(t)))
	measureDurations(t, "slowest of these scrapes", maxScrapeDuration, watch.longest)
}

// timeUntilUnallocatable sends the time from now until the GPU is not allocatable; 0 after the timeout.
func timeUntilUnallocatable(ctx context.Context, n *node.RealNode, id string, timeout time.Duration) <-chan time.Duration {
	begin, took := time.Now(), make(chan time.Duration, 1)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	go func() {
		defer cancel()
		var last []string
		err := node.Until(ctx, "the GPU is not allocatable", func(ctx context.Context) (err error) {
			// An empty list means that no plugin is registered at the moment.
			if last, err = n.Allocatable(ctx, gpuResource); err != nil || len(last) == 0 || slices.Contains(last, id) {
				return fmt.Errorf("allocatable GPUs: got %q, %w", last, err)
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

// checkEventOfOtherGPU fails and resets another GPU during the hang. The hang has lasted for 16 s, so the listing, made every 10 s, hangs
// as well, and podgauge detected that 5 s later: podgauge must still receive events.
func checkEventOfOtherGPU(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, hangBegin time.Time) {
	t.Helper()
	const failedGPU = 2
	await(ctx, t, "the hang has lasted for 16 s", waitSince(hangBegin, 16*time.Second))
	begin := time.Now()
	m.addEvent(t, failedGPU, "xid 79")
	if took := <-timeUntilUnallocatable(ctx, n, uuid(failedGPU), 10*time.Second); took == 0 {
		t.Fatal("after Xid 79 during the hang of another GPU, the GPU is still allocatable")
	}
	at, err := firstListAfter(n, begin)
	if err != nil {
		t.Fatal(err)
	}
	measureDurations(t, "Xid 79 of another GPU during a hang → Unhealthy in the kubelet's log", 100*time.Millisecond, at.Sub(begin))
	// A reset counts as evidence only after a check that follows the Xid. A real reset takes seconds.
	await(ctx, t, "the GPU was checked after the Xid", waitSince(begin, 2*time.Second))
	m.setLines(t, fmt.Sprintf("gpu %d energy 0", failedGPU))
	await(ctx, t, "the GPU is healthy again", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpuResource)
		if !slices.Contains(ids, uuid(failedGPU)) {
			return fmt.Errorf("allocatable GPUs: got %q, %w", ids, err)
		}
		return nil
	})
}

// driverHangs makes one call hang with the lock that real drivers have, so that all other calls hang as well.
func driverHangs(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	d := m.start(t, n, "--web.enable-pprof", "--unhealthy-after="+hangTimeout.String())
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	idleThreads := threadsAtRest(ctx, t, n, d)
	defer m.clear(t, "lock")
	defer m.clear(t, "hang")
	m.setLines(t, "lock driver", fmt.Sprintf("hang * gpu %d", hungGPU))
	hangBegin := time.Now()
	stuck := func(s metricsScrape) error {
		wrong := []error{}
		for _, id := range uuids(defaultGPUs) {
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_stalled", seriesLabels{"uuid": id}), checkReadingsGone(s, id))
		}
		return errors.Join(wrong...)
	}
	h := measureDuringHang(ctx, t, n, m, d, idleThreads, stuck)
	waitForAllocatable(ctx, t, n) // none
	took := time.Since(hangBegin)
	if took < hangTimeout {
		t.Errorf("GPUs not allocatable after %s, want at least %s", took, hangTimeout)
	}
	measureDurations(t, "driver hangs, --unhealthy-after=20s → no GPU allocatable", hangTimeout+5*time.Second, took)
	waitForHangIncidents(ctx, t, d, uuids(defaultGPUs)...)
	sustainHang(ctx, t, d, hangBegin, stuck)
	h.maxThreads = max(h.maxThreads, threadCount(t, d))
	h.print(t, "driver hangs")
	m.clear(t, "hang")
	m.clear(t, "lock")
	waitForRecovery(ctx, t, n, m, d, "end of the driver's hang")
	waitForIncidentEnd(ctx, t, d, uuids(defaultGPUs)...)
}

// nvmlInitHangs starts podgauge with a library whose initialization hangs.
func nvmlInitHangs(ctx context.Context, t *testing.T, n *node.RealNode) {
	m := newMachine(t, n, "hang * gpu -")
	defer m.clear(t, "hang")
	d := m.start(t, n, "--web.enable-pprof")
	d.waitUntilListening(ctx, t)
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error { return s.wantValue(0, "podgauge_nvml_up", nil) })
	await(ctx, t, "podgauge logs that the driver hangs", func(context.Context) error {
		if lines := d.logLines(t, "driver unusable", "hang"); len(lines) != 1 {
			return fmt.Errorf("log lines: got %q, want one", lines)
		}
		return nil
	})
	if err := errors.Join(d.checkProbe(ctx, "/healthz"), checkReady(ctx, d)); err != nil {
		t.Error(err)
	}
	threads := threadCount(t, d)
	watch.stop(t)
	measureDurations(t, "library initialization hangs: slowest scrape", maxScrapeDuration, watch.longest)
	printMeasurement(t, "library initialization hangs: threads", fmt.Sprint(threads))
	m.clear(t, "hang")
	took := waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, "end of a hanging library initialization → all GPUs allocatable", 5*time.Second, took)
	if idleThreads := threadsAtRest(ctx, t, n, d); threads > idleThreads+2+maxRuntimeThreads {
		t.Errorf("threads during the hanging initialization: got %d, want at most %d", threads, idleThreads+2+maxRuntimeThreads)
	}
	m.checkedCalls(t)
}

// threadsAtRest returns the number of podgauge's threads without a hang.
func threadsAtRest(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) int {
	t.Helper()
	return minResourceUse(ctx, t, n, d).threads
}

// measureDuringHang measures scrapes, a new pod and a new ListAndWatch stream during a hang. It scrapes five times a second.
func measureDuringHang(
	ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, threadsBefore int, stuck func(metricsScrape) error,
) hangResult {
	t.Helper()
	h := hangResult{threadsBefore: threadsBefore}
	watch := watchScrapes(ctx, t, d, 200*time.Millisecond, func(s metricsScrape) error {
		if s.duration > maxScrapeDuration*timeoutFactor() {
			return fmt.Errorf("scrape duration: got %s", s.duration)
		}
		return nil
	})
	d.scrapeUntil(ctx, t, "the hang is exported", stuck)
	pod := podWithGPUs(podDuringFault, 1)
	before := d.nextScrape(ctx, t)
	status, took := runPod(ctx, t, n, pod)
	h.pod = took
	after := d.nextScrape(ctx, t)
	allocate := seriesLabels{"method": "Allocate"}
	const duration = "podgauge_plugin_request_duration_seconds"
	if calls := after.sum(duration+"_count", allocate) - before.sum(duration+"_count", allocate); calls != 1 {
		t.Errorf("Allocate calls for pod %s: got %v, want 1", status.Name, calls)
	}
	h.allocate = time.Duration((after.sum(duration+"_sum", allocate) - before.sum(duration+"_sum", allocate)) * float64(time.Second))
	h.list = reopenStream(ctx, t, n, d)
	callsBefore := m.checkedCalls(t)
	for range 5 { // threads that each collection leaked would add up
		d.nextScrape(ctx, t)
		h.maxThreads = max(h.maxThreads, threadCount(t, d))
	}
	// At most one more call, of a listing.
	if calls := m.checkedCalls(t).Since(callsBefore).GPUTotal(hungGPU); calls > 1 {
		t.Errorf("more calls about the hung GPU: got %d, want at most 1", calls)
	}
	if s := d.nextScrape(ctx, t); stuck(s) != nil {
		t.Errorf("scrape later in the hang: %v", stuck(s))
	}
	watch.stop(t)
	h.slowest = watch.longest
	removePod(ctx, t, n, pod)
	for gpu := range nvmltest.NoGPU + 1 {
		h.pendingCalls += int(m.checkedCalls(t).InFlight(gpu))
	}
	return h
}

// reopenStream deletes podgauge's socket and returns the time until the kubelet logged a device list from a new stream.
func reopenStream(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) time.Duration {
	t.Helper()
	before := currentRegistrations(ctx, t, d)
	begin := time.Now()
	removePluginSocket(t, d)
	var at time.Time
	await(ctx, t, "the kubelet has a new device list", func(context.Context) (err error) {
		at, err = firstListAfter(n, begin)
		return err
	})
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	// Scrapes share collections: the first scrapes may be from before.
	await(ctx, t, "the new registration is counted", func(ctx context.Context) error {
		if now, err := registrationCount(ctx, d); err != nil || now != before+1 {
			return fmt.Errorf("registrations: got %v, want %v, %w", now, before+1, err)
		}
		return nil
	})
	return at.Sub(begin)
}

// checkReadingsGone returns an error if a scrape contains readings of the GPU: during a hang no reading is current.
func checkReadingsGone(s metricsScrape, id string) error {
	for _, family := range []string{"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius"} {
		if found := findSamples(s.series[family], seriesLabels{"uuid": id}); len(found) > 0 {
			return fmt.Errorf("%s: got %v, want no series", family, found)
		}
	}
	return nil
}

// waitForRecovery waits until all GPUs are healthy and allocatable, and no call is in progress. event names the measurement.
func waitForRecovery(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, event string) {
	t.Helper()
	begin := time.Now()
	d.scrapeUntil(ctx, t, "all GPUs are exported as healthy", func(s metricsScrape) error {
		wrong := []error{s.checkOwners(uuids(defaultGPUs), nil)}
		for _, id := range uuids(defaultGPUs) {
			gpu := seriesLabels{"uuid": id}
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_up", gpu), s.wantValue(0, "nvidia_gpu_stalled", gpu), s.wantValue(1, "nvidia_gpu_healthy", gpu))
		}
		return errors.Join(wrong...)
	})
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	measureDurations(t, event+" → all GPUs healthy and allocatable", 10*time.Second, time.Since(begin))
	await(ctx, t, "no call is in progress", func(context.Context) error {
		calls := m.checkedCalls(t)
		for gpu := range nvmltest.MaxGPUs {
			if calls.InFlight(gpu) > 0 {
				return fmt.Errorf("a call about GPU %d is in progress", gpu)
			}
		}
		return nil
	})
}
