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
	// maxPendingCalls limits the NVML calls that did not return: about each GPU, of the listing, and the wait for events.
	maxPendingCalls = defaultGPUs + 2
	// hungGPU is the GPU whose calls hang, or the GPU of the call that hangs with the driver's lock.
	hungGPU = 5
	// hangTimeout is the value of --unhealthy-after in the test of the driver's lock; the default is 30 s.
	hangTimeout = 20 * time.Second
	// podDuringFault is the name of a pod that is created during a hang or a storm of Xids.
	podDuringFault = "during-fault"
)

// TestHangs checks podgauge and the kubelet while NVML calls hang: calls about one GPU, and all calls.
func TestHangs(t *testing.T) {
	n := startNode(t, node.Options{})
	t.Run("one GPU", func(t *testing.T) { singleGPUHangs(t, n) })
	t.Run("driver lock", func(t *testing.T) { driverHangs(t, n) })
}

// singleGPUHangs makes calls about one GPU hang until the GPU is unhealthy.
func singleGPUHangs(t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	others := without(uuids(defaultGPUs), uuid(hungGPU))
	defer m.Clear("hang")
	threads := threadCount(t, d)
	must(t, m.Set(fmt.Sprintf("hang * gpu %d", hungGPU)))
	hangBegin := time.Now()
	measureDuringHang(t, n, m, d, "a GPU hangs", threads, []string{uuid(hungGPU)})
	// A new value proves that the other GPUs are still read.
	must(t, m.Set("gpu * temperature 61"))
	s := d.nextScrape(t)
	for _, id := range others {
		expect(t, s.wantValue(61, "nvidia_gpu_temperature_celsius", seriesLabels{"uuid": id, "sensor": "gpu"}))
	}
	checkEventOfOtherGPU(t, n, m, hangBegin)
	awaitWithin(t, time.Minute, "the hung GPU is not allocatable", hasAllocatable(n, others...))
	measureDurations(t, "a GPU hangs → not allocatable", 35*time.Second, time.Since(hangBegin))
	waitForHangIncidents(t, d, uuid(hungGPU))
	must(t, m.Clear("hang"))
	waitForHangEnd(t, n, m, d, "end of the GPU's hang", uuid(hungGPU))
}

// driverHangs makes one call hang with the lock that real drivers have, so that all other calls hang as well.
func driverHangs(t *testing.T, n *node.RealNode) {
	m := newMachine(t, n)
	d := m.start(t, n, "--unhealthy-after="+hangTimeout.String())
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	defer m.Clear("lock")
	defer m.Clear("hang")
	threads := threadCount(t, d)
	must(t, m.Set("lock driver", fmt.Sprintf("hang * gpu %d", hungGPU)))
	hangBegin := time.Now()
	measureDuringHang(t, n, m, d, "driver hangs", threads, uuids(defaultGPUs))
	waitForAllocatable(t, n) // none
	took := time.Since(hangBegin)
	if took < hangTimeout {
		t.Errorf("GPUs not allocatable after %s, want at least %s", took, hangTimeout)
	}
	measureDurations(t, "driver hangs, --unhealthy-after=20s → no GPU allocatable", hangTimeout+5*time.Second, took)
	waitForHangIncidents(t, d, uuids(defaultGPUs)...)
	must(t, errors.Join(m.Clear("hang"), m.Clear("lock")))
	waitForHangEnd(t, n, m, d, "end of the driver's hang", uuids(defaultGPUs)...)
}

// measureDuringHang measures scrapes, a new pod, a new ListAndWatch stream, calls and threads while calls about these GPUs hang.
func measureDuringHang(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, hang string, threadsBefore int, hung []string) {
	t.Helper()
	stuck := func(s metricsScrape) error {
		wrong := []error{}
		for _, id := range hung {
			gpu := seriesLabels{"uuid": id}
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_stalled", gpu))
			for _, family := range []string{"nvidia_gpu_power_watts", "nvidia_gpu_energy_joules_total", "nvidia_gpu_temperature_celsius"} {
				wrong = append(wrong, s.wantCount(0, family, gpu)) // no reading is current
			}
		}
		return errors.Join(wrong...)
	}
	scrapes := watchScrapeDurations(t, d)
	before := d.scrapeUntil(t, "the hang is exported", stuck)
	pod := podWithGPUs(podDuringFault, 1)
	_, took := runPod(t, n, pod)
	measureDurations(t, hang+": new pod created → running", 5*time.Second, took)
	after := d.nextScrape(t)
	allocate := seriesLabels{"method": "Allocate"}
	const duration = "podgauge_plugin_request_duration_seconds_sum"
	measureDurations(t, hang+": Allocate, by "+duration, 50*time.Millisecond,
		time.Duration((after.sum(duration, allocate)-before.sum(duration, allocate))*float64(time.Second)))
	measureDurations(t, hang+": own socket deleted → device list on a new stream", time.Second, reopenStream(t, n, d))
	callsBefore, threads := m.checkedCalls(t), 0
	for range 5 { // threads that each collection leaked would add up
		expect(t, stuck(d.nextScrape(t)))
		threads = max(threads, threadCount(t, d))
	}
	calls := m.checkedCalls(t)
	if more := calls.Since(callsBefore).GPUTotal(hungGPU); more > 1 { // of a listing
		t.Errorf("%s: more calls about the hung GPU: got %d, want at most 1", hang, more)
	}
	scrapes.stop(t)
	measureDurations(t, hang+": slowest scrape", maxScrapeDuration, scrapes.longest)
	removePod(t, n, pod)
	pending := 0
	for gpu := range nvmltest.NoGPU + 1 {
		pending += int(calls.InFlight(gpu))
	}
	printMeasurement(t, hang+": pending calls; additional threads", fmt.Sprintf("%d; %d", pending, threads-threadsBefore))
	if pending > maxPendingCalls || threads-threadsBefore > maxPendingCalls+maxRuntimeThreads {
		t.Errorf("%s: got %d pending calls and %d additional threads, want at most %d and %d",
			hang, pending, threads-threadsBefore, maxPendingCalls, maxPendingCalls+maxRuntimeThreads)
	}
}

// watchScrapeDurations scrapes podgauge five times a second and checks the durations.
func watchScrapeDurations(t *testing.T, d *podgaugeProcess) *watch {
	t.Helper()
	return watchScrapes(t, d, 200*time.Millisecond, func(s metricsScrape) error {
		if s.duration > maxScrapeDuration*node.Tolerance() {
			return fmt.Errorf("scrape duration: got %s", s.duration)
		}
		return nil
	})
}

// reopenStream deletes podgauge's socket and returns the time until the kubelet logged a device list from a new stream.
func reopenStream(t *testing.T, n *node.RealNode, d *podgaugeProcess) time.Duration {
	t.Helper()
	before := d.waitForRegistrations(t, 1)
	begin := time.Now()
	d.removeSocket(t)
	took := firstListAfter(t, n, begin).Sub(begin)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	d.waitForRegistrations(t, before+1)
	return took
}

// checkEventOfOtherGPU fails and resets another GPU during the hang. The hang has lasted for 16 s, so the listing, made every 10 s, hangs
// as well, and podgauge detected that 5 s later: podgauge must still receive events.
func checkEventOfOtherGPU(t *testing.T, n *node.RealNode, m *simulatedMachine, hangBegin time.Time) {
	t.Helper()
	const failedGPU = 2
	waitUntil(t, hangBegin.Add(16*time.Second))
	begin := time.Now()
	must(t, m.Event(failedGPU, "xid 79"))
	at := firstListAfter(t, n, begin)
	waitForAllocatable(t, n, without(uuids(defaultGPUs), uuid(failedGPU))...)
	measureDurations(t, "Xid 79 of another GPU during a hang → Unhealthy in the kubelet's log", 100*time.Millisecond, at.Sub(begin))
	// A reset counts as evidence only after a check that follows the Xid. A real reset takes seconds.
	waitUntil(t, begin.Add(2*time.Second))
	must(t, m.Set(fmt.Sprintf("gpu %d energy 0", failedGPU)))
	await(t, "the GPU is healthy again", func(ctx context.Context) error {
		ids, err := n.Allocatable(ctx, gpuResource)
		if !slices.Contains(ids, uuid(failedGPU)) {
			return fmt.Errorf("allocatable GPUs: got %q, %w", ids, err)
		}
		return nil
	})
}

// waitForHangIncidents waits until exactly these GPUs are not_responding. Only the pod that ran during the hang may be affected.
func waitForHangIncidents(t *testing.T, d *podgaugeProcess, ids ...string) {
	t.Helper()
	otherContainer := func(c apiAffectedContainer) bool { return c.owner() != mainContainer(podWithGPUs(podDuringFault, 1)) }
	for _, id := range ids {
		d.waitForIncident(t, id, "not_responding", func(i apiIncident) error {
			if !i.MarkedUnhealthy || !i.RecoveredAt.IsZero() || slices.ContainsFunc(i.Containers, otherContainer) || i.OwnerUnnamed || i.ContainersUnknown {
				return fmt.Errorf("incident: got %+v, want one that marked the device unhealthy", i)
			}
			return nil
		})
		if s, err := d.device(t.Context(), id); err != nil || s.Healthy || s.Health != "unhealthy" || s.Reason != "not_responding" {
			t.Errorf("state of a hung GPU: got %+v, %v, want unhealthy, not_responding", s, err)
		}
	}
	if all, err := d.incidents(t.Context(), "reason", "not_responding"); err != nil || len(all) != len(ids) {
		t.Errorf("incidents not_responding: got %+v, %v, want %d", all, err, len(ids))
	}
}

// waitForHangEnd waits until all GPUs are healthy and allocatable, no call is in progress, and the hung GPUs' incidents have recovered.
func waitForHangEnd(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, event string, hung ...string) {
	t.Helper()
	begin := time.Now()
	d.scrapeUntil(t, "all GPUs are exported as healthy", func(s metricsScrape) error {
		wrong := []error{s.checkOwners(uuids(defaultGPUs), nil)}
		for _, id := range uuids(defaultGPUs) {
			gpu := seriesLabels{"uuid": id}
			wrong = append(wrong, s.wantValue(1, "nvidia_gpu_up", gpu), s.wantValue(0, "nvidia_gpu_stalled", gpu), s.wantValue(1, "nvidia_gpu_healthy", gpu))
		}
		return errors.Join(wrong...)
	})
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	measureDurations(t, event+" → all GPUs healthy and allocatable", 10*time.Second, time.Since(begin))
	await(t, "no call is in progress", func(context.Context) error {
		calls := m.checkedCalls(t)
		for gpu := range nvmltest.MaxGPUs {
			if calls.InFlight(gpu) > 0 {
				return fmt.Errorf("a call about GPU %d is in progress", gpu)
			}
		}
		return nil
	})
	for _, id := range hung {
		d.waitForIncident(t, id, "not_responding", func(i apiIncident) error {
			if !i.RecoveredAt.After(i.Last) {
				return fmt.Errorf("incident: got %+v, want a recovery", i)
			}
			return nil
		})
	}
}
