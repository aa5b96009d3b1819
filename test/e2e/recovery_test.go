package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// minRecoveryTime is the minimum time of recovery: three passed checks take two seconds.
const minRecoveryTime = 2 * time.Second

// TestRecovery checks the recovery of allocated GPUs with Xid 79, after a reset while podgauge runs and after a reboot of the node.
func TestRecovery(t *testing.T) {
	n := startNode(t, node.Options{})
	simulateBoot(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	resetWhileRunning(t, n, m, d)
	rebootNode(t, n, m, d)
}

// simulateBoot changes the node's boot id.
func simulateBoot(t *testing.T, n *node.RealNode) {
	t.Helper()
	// Each boot mounts its own file over the file of the previous boot.
	const script = `
id=$(cat /proc/sys/kernel/random/uuid)
echo "$id" >"/run/boot-$id"
mount --bind "/run/boot-$id" /proc/sys/kernel/random/boot_id
`
	_, err := n.Shell(t.Context(), script)
	must(t, err)
}

// resetWhileRunning resets a GPU while podgauge and the GPU's pod run.
func resetWhileRunning(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	pod, before, gpuID := runPodWithGPU(t, n, "reset")
	d.waitForOwner(t, gpuID, mainContainer(pod))
	failGPU(t, n, d, m, pod, gpuID)

	states := []string{}
	record := func(ctx context.Context) error {
		s, err := d.device(ctx, gpuID)
		if err == nil && (len(states) == 0 || states[len(states)-1] != s.Health) {
			states = append(states, s.Health)
		}
		return err
	}
	must(t, record(t.Context())) // the watch may begin after the reset
	health := startWatch(t, 20*time.Millisecond, record)
	begin := time.Now()
	must(t, m.Reset(indexOf(t, gpuID)))
	waitUntilHealthyAgain(t, n, d, gpuID, pod, begin, "reset")
	if took := time.Since(begin); took < minRecoveryTime {
		t.Errorf("healthy after a reset: got %s, want at least %s", took, minRecoveryTime)
	}
	health.stop(t)
	must(t, record(t.Context()))
	expect.EqualSlices(t, states, []string{"unhealthy", "recovering", "healthy"},
		"health states after a reset")
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	s := d.nextScrape(t)
	expect.NoError(t, errors.Join(s.wantValue(1, "nvidia_gpu_health_flaps_total", seriesLabels{"uuid": gpuID}),
		s.wantValue(1, "nvidia_gpu_health_state", seriesLabels{"uuid": gpuID, "state": "healthy"}),
		s.checkOwners([]string{gpuID}, map[string]node.OwnerKey{gpuID: mainContainer(pod)}), checkSameContainer(t.Context(), n, pod, before)))
	checkIncidentRecovered(t, d, gpuID, pod)
}

// failGPU fails a GPU of a pod with Xid 79, and measures until the kubelet, the metrics and the pod's status report the GPU as unhealthy.
func failGPU(t *testing.T, n *node.RealNode, d *podgaugeProcess, m *simulatedMachine, pod node.StaticPod, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	begin := time.Now()
	var measuring sync.WaitGroup
	errs := make(chan error, 2)
	var exported, inStatus time.Duration
	measure := func(took *time.Duration, condition string, try func(context.Context) error) {
		measuring.Go(func() {
			errs <- node.Until(ctx, condition, try)
			*took = time.Since(begin)
		})
	}
	must(t, m.Event(indexOf(t, id), "xid 79"))
	must(t, m.Set(fmt.Sprintf("gpu %d lost", indexOf(t, id))))
	measure(&exported, "nvidia_gpu_healthy is 0", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		return s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": id})
	})
	unhealthy := node.DeviceHealth{Resource: gpuResource, ID: id, Health: "Unhealthy"}
	measure(&inStatus, "the device is Unhealthy in the pod's status", hasDeviceHealth(n, pod, unhealthy))
	measuring.Wait()
	must(t, errors.Join(<-errs, <-errs))
	measureDurations(t, "Xid 79 → Unhealthy in the kubelet's log", 100*time.Millisecond, firstListAfter(t, n, begin).Sub(begin))
	measureDurations(t, "Xid 79 → nvidia_gpu_healthy 0, scraped every 20 ms", time.Second, exported)
	measureDurations(t, "Xid 79 → Unhealthy in the pod's allocatedResourcesStatus", 2*time.Second, inStatus)
}

// waitUntilHealthyAgain waits until a device is healthy in podgauge's API and then in the pod's status. event happened at begin.
func waitUntilHealthyAgain(
	t *testing.T, n *node.RealNode, d *podgaugeProcess, id string, pod node.StaticPod, begin time.Time, event string,
) {
	t.Helper()
	await(t, "podgauge reports the device as healthy", func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err == nil && (s.Health != "healthy" || !s.Healthy || s.Reason != "") {
			err = fmt.Errorf("device: got %+v, want healthy", s)
		}
		return err
	})
	measureDurations(t, event+" → healthy", 15*time.Second, time.Since(begin)) // listings are every 10 s
	healthy := node.DeviceHealth{Resource: gpuResource, ID: id, Health: "Healthy"}
	measureDurations(t, "healthy → Healthy in the pod's allocatedResourcesStatus", 2*time.Second,
		await(t, "the device is Healthy in the pod's status", hasDeviceHealth(n, pod, healthy)))
}

// checkIncidentRecovered waits until a device's only incident of Xid 79 has a time of recovery.
func checkIncidentRecovered(t *testing.T, d *podgaugeProcess, id string, pod node.StaticPod) {
	t.Helper()
	d.waitForIncident(t, id, "xid_79", func(i apiIncident) error {
		if !i.MarkedUnhealthy || !i.RecoveredAt.After(i.Last) {
			return fmt.Errorf("incident: got %+v, want a recovery", i)
		}
		return i.affectsOnly(mainContainer(pod))
	})
}

// rebootNode reboots the node after two GPUs had Xid 79. For the idle GPU, the boot is the only evidence: its energy counter continues.
func rebootNode(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	pod, _, gpuID := runPodWithGPU(t, n, "boot")
	d.waitForOwner(t, gpuID, mainContainer(pod))
	owners, err := n.Owners(t.Context(), gpuResource)
	must(t, err)
	idle := slices.DeleteFunc(uuids(defaultGPUs), func(id string) bool { return owners[id] != node.OwnerKey{} })[0]
	must(t, m.Event(indexOf(t, idle), "xid 79"))
	waitForAllocatable(t, n, without(uuids(defaultGPUs), idle)...)
	failGPU(t, n, d, m, pod, gpuID)

	d.stop(t)
	waitForAllocatable(t, n)
	simulateBoot(t, n)
	must(t, m.Reset(indexOf(t, gpuID)))
	begin := time.Now()
	d = m.start(t, n)
	d.waitUntilListening(t)
	// The kubelet rejects pods whose GPU is unhealthy in the first device list, so podgauge waits with the list until the GPU has recovered.
	recovered := startWatch(t, 20*time.Millisecond, func(ctx context.Context) error {
		if s, err := d.device(ctx, gpuID); err == nil && s.Health != "healthy" { // an error: not listed yet
			return fmt.Errorf("device after a boot: got %+v, want healthy", s)
		}
		return nil
	})
	waitUntilHealthyAgain(t, n, d, gpuID, pod, begin, "boot")
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	recovered.stop(t)
	for _, id := range []string{gpuID, idle} {
		expect.NoError(t, d.hasLogLine("health restored", id, "xid_79"))
	}
	checkIncidentRecovered(t, d, gpuID, pod)
}

// TestUnhealthyPersists checks that a GPU with Xid 79 is unhealthy until there is evidence of a reset, although its calls succeed. Restarts
// of podgauge or the kubelet do not make the GPU allocatable.
func TestUnhealthyPersists(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	pod, _, gpuID := runPodWithGPU(t, n, "train")
	others := without(uuids(defaultGPUs), gpuID)
	must(t, m.Event(indexOf(t, gpuID), "xid 79"))
	waitForAllocatable(t, n, others...)
	stateFile := filepath.Join(m.stateRoot, "state.json")
	await(t, "the fault is stored", func(context.Context) error { // after the device list is sent
		stored, err := os.ReadFile(stateFile)
		if err == nil && (!strings.Contains(string(stored), gpuID) || !strings.Contains(string(stored), "xid_79")) {
			err = fmt.Errorf("state: got no xid_79 of %s: %s", gpuID, stored)
		}
		return err
	})
	allocatable := watchNotAllocatable(t, n, gpuID)
	unhealthy := func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": gpuID}),
			s.wantValue(1, "nvidia_gpu_unhealthy_info", seriesLabels{"uuid": gpuID, "reason": "xid_79"}))
	}
	scraped := 0
	for _, restart := range []struct {
		program string
		signal  syscall.Signal
	}{
		{"podgauge", syscall.SIGKILL},
		{"podgauge", syscall.SIGKILL},
		{"podgauge", syscall.SIGTERM},
		{"kubelet", syscall.SIGTERM},
		{"kubelet", syscall.SIGKILL},
	} {
		if restart.program == "kubelet" {
			stopKubelet(t, n, restart.signal)
			startKubelet(t, n)
		} else {
			_, err := d.Stop(t.Context(), restart.signal)
			must(t, err)
			waitForAllocatable(t, n)
			d = m.start(t, n)
		}
		waitForAllocatable(t, n, others...)
		begin := time.Now()
		if err := unhealthy(d.firstHealthScrape(t, gpuID)); err != nil {
			t.Errorf("first scrape with the GPU's health after %s of %s: %v", restart.signal, restart.program, err)
		}
		scrapes := watchScrapes(t, d, 100*time.Millisecond, unhealthy)
		await(t, "the device is Unhealthy in the pod's status",
			hasDeviceHealth(n, pod, node.DeviceHealth{Resource: gpuResource, ID: gpuID, Health: "Unhealthy"}))
		waitUntil(t, begin.Add(minRecoveryTime+time.Second)) // checks that would suffice for a recovery
		scraped += scrapes.stop(t)
	}
	printMeasurement(t, "responding GPU with Xid 79, three restarts of podgauge and two of the kubelet",
		fmt.Sprintf("unhealthy in %d of %d scrapes; not allocatable in %d kubelet responses", scraped, scraped, allocatable.stop(t)))
	d.stop(t)
	waitForAllocatable(t, n)
	corruptState(t, n, m, stateFile)
}

// firstHealthScrape returns the first scrape with the GPU's health.
func (d *podgaugeProcess) firstHealthScrape(t *testing.T, id string) metricsScrape {
	t.Helper()
	return d.scrapeUntil(t, "the GPU's health is exported", func(s metricsScrape) error {
		return s.wantCount(1, "nvidia_gpu_healthy", seriesLabels{"uuid": id})
	})
}

// corruptState starts podgauge with a corrupt state file. Podgauge must rename the file and check all GPUs before it lists them.
func corruptState(t *testing.T, n *node.RealNode, m *simulatedMachine, file string) {
	const garbage = "\x00{not JSON\n"
	must(t, os.WriteFile(file, []byte(garbage), 0o600))
	d := m.start(t, n)
	took := awaitWithin(t, 2*waitTimeout, "all GPUs are allocatable", hasAllocatable(n, uuids(defaultGPUs)...))
	if took < minRecoveryTime {
		t.Errorf("unchecked GPUs allocatable after %s, want at least %s", took, minRecoveryTime)
	}
	measureDurations(t, "start with a corrupt state file → all GPUs allocatable", 30*time.Second, took)
	expect.NoError(t, d.hasLogLine("level=WARN", filepath.Base(file), "before publication"))
	if renamed, err := os.ReadFile(file + ".bad"); err != nil || string(renamed) != garbage {
		t.Errorf("renamed file: got %q, %v, want %q", renamed, err, garbage)
	}
}

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
		expect.NoError(t, s.wantValue(61, "nvidia_gpu_temperature_celsius", seriesLabels{"uuid": id, "sensor": "gpu"}))
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
		expect.NoError(t, stuck(d.nextScrape(t)))
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
