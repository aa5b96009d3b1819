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
	health := startWatch(t, 20*time.Millisecond, record)
	begin := time.Now()
	must(t, m.Reset(indexOf(t, gpuID)))
	waitUntilHealthyAgain(t, n, d, gpuID, pod, begin, "reset")
	if took := time.Since(begin); took < minRecoveryTime {
		t.Errorf("healthy after a reset: got %s, want at least %s", took, minRecoveryTime)
	}
	health.stop(t)
	must(t, record(t.Context()))
	if want := []string{"unhealthy", "recovering", "healthy"}; !slices.Equal(states, want) {
		t.Errorf("health states after a reset: got %q, want %q", states, want)
	}
	waitForAllocatable(t, n, uuids(defaultGPUs)...)
	s := d.nextScrape(t)
	expect(t, errors.Join(s.wantValue(1, "nvidia_gpu_health_flaps_total", seriesLabels{"uuid": gpuID}),
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
		expect(t, d.hasLogLine("health restored", id, "xid_79"))
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
	expect(t, d.hasLogLine("level=WARN", filepath.Base(file), "before publication"))
	if renamed, err := os.ReadFile(file + ".bad"); err != nil || string(renamed) != garbage {
		t.Errorf("renamed file: got %q, %v, want %q", renamed, err, garbage)
	}
}
