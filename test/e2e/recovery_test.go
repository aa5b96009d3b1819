package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

const (
	// maxKubeletLag limits the delay of a GPU's health in the pod's status.
	maxKubeletLag = 2 * time.Second
	// minRecoveryTime is the minimum time of recovery: three passed checks take two seconds.
	minRecoveryTime = 2 * time.Second
)

// TestRecovery checks the recovery of allocated GPUs with Xid 79, after a reset while podgauge runs and after a reboot of the node.
func TestRecovery(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	simulateBoot(ctx, t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	resetWhileRunning(ctx, t, n, m, d)
	rebootNode(ctx, t, n, m, d)
}

// simulateBoot changes the node's boot id.
func simulateBoot(ctx context.Context, t *testing.T, n *node.RealNode) {
	t.Helper()
	// Each boot mounts its own file over the file of the previous boot.
	const script = `
id=$(cat /proc/sys/kernel/random/uuid)
echo "$id" >"/run/boot-$id"
mount --bind "/run/boot-$id" /proc/sys/kernel/random/boot_id
`
	if _, err := n.Shell(ctx, script); err != nil {
		t.Fatal(err)
	}
}

// resetWhileRunning resets a GPU while podgauge and the GPU's pod run.
func resetWhileRunning(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	pod := podWithGPUs("reset", 1)
	before, _ := runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, gpuID, mainContainer(pod))
	took := failGPU(ctx, t, n, d, m, pod, gpuID, without(uuids(defaultGPUs), gpuID))
	measureDurations(t, "Xid 79 → Unhealthy in the pod's allocatedResourcesStatus", maxKubeletLag, took.status...)

	states := watchHealth(ctx, t, d, gpuID)
	begin := time.Now()
	m.resetGPU(t, indexOf(t, gpuID))
	waitUntilHealthyAgain(ctx, t, n, d, gpuID, pod, begin, "reset")
	if got, want := states(), []string{"unhealthy", "recovering", "healthy"}; !slices.Equal(got, want) {
		t.Errorf("health states after a reset: got %q, want %q", got, want)
	}
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	s := d.nextScrape(ctx, t)
	err := errors.Join(s.wantValue(1, "nvidia_gpu_health_flaps_total", seriesLabels{"uuid": gpuID}),
		s.wantValue(1, "nvidia_gpu_health_state", seriesLabels{"uuid": gpuID, "state": "healthy"}),
		s.checkOwners([]string{gpuID}, map[string]node.OwnerKey{gpuID: mainContainer(pod)}), checkSameContainer(ctx, n, pod, before))
	if err != nil {
		t.Error(err)
	}
	checkIncidentRecovered(ctx, t, d, gpuID, pod)
}

// without returns all ids except these.
func without(all []string, ids ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(ids, id) })
}

// watchHealth requests a device's health repeatedly. The returned function requests it once more and returns the states in their order.
func watchHealth(ctx context.Context, t *testing.T, d *podgaugeProcess, id string) (states func() []string) {
	t.Helper()
	var all []string
	poll := func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err == nil && (len(all) == 0 || all[len(all)-1] != s.Health) {
			all = append(all, s.Health)
		}
		return err
	}
	watch, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		_ = node.Until(watch, "the watch ends", func(ctx context.Context) error { return errors.Join(poll(ctx), errors.New("watch continues")) })
	})
	end := func() { cancel(); done.Wait() }
	t.Cleanup(end)
	return func() []string {
		t.Helper()
		end()
		if err := poll(ctx); err != nil { // the last state may be older than the state that the caller has seen
			t.Error(err)
		}
		return all
	}
}

// waitUntilHealthyAgain waits until a device is healthy in podgauge's API and then in the pod's status. event happened at begin.
func waitUntilHealthyAgain(
	ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, id string, pod node.StaticPod, begin time.Time, event string,
) {
	t.Helper()
	await(ctx, t, "podgauge reports the device as healthy", func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err != nil {
			return err
		}
		if s.Health != "healthy" || !s.Healthy || s.Reason != "" {
			return fmt.Errorf("device: got %+v, want healthy", s)
		}
		return nil
	})
	if took := time.Since(begin); took < minRecoveryTime && event != "boot" { // after a boot, one passed check suffices
		t.Errorf("healthy after %s: got %s, want at least %s", event, took, minRecoveryTime)
	}
	measureDurations(t, event+" → healthy", 15*time.Second, time.Since(begin)) // listings are every 10 s
	measureDurations(t, "healthy → Healthy in the pod's allocatedResourcesStatus", maxKubeletLag,
		await(ctx, t, "the device is Healthy in the pod's status", hasDeviceHealth(n, pod, id, "Healthy")))
}

// checkIncidentRecovered waits until a device's only incident of Xid 79 has a time of recovery.
func checkIncidentRecovered(ctx context.Context, t *testing.T, d *podgaugeProcess, id string, pod node.StaticPod) {
	t.Helper()
	d.waitForIncident(ctx, t, id, "xid_79", func(i apiIncident) error {
		if err := i.affectsOnly(mainContainer(pod)); err != nil {
			return err
		}
		if !i.MarkedUnhealthy || !i.RecoveredAt.After(i.Last) {
			return fmt.Errorf("incident: got %+v, want a recovery", i)
		}
		return nil
	})
}

// rebootNode reboots the node after two GPUs had Xid 79. For the idle GPU, the boot is the only evidence: its energy counter continues.
func rebootNode(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	pod := podWithGPUs("boot", 1)
	runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, gpuID, mainContainer(pod))
	owners, err := n.Owners(ctx, gpuResource)
	if err != nil {
		t.Fatal(err)
	}
	idle := without(uuids(defaultGPUs), slices.Collect(maps.Keys(owners))...)[0]
	m.addEvent(t, indexOf(t, idle), "xid 79")
	waitForAllocatable(ctx, t, n, without(uuids(defaultGPUs), idle)...)
	took := failGPU(ctx, t, n, d, m, pod, gpuID, without(uuids(defaultGPUs), idle, gpuID))
	measureDurations(t, "Xid 79 → Unhealthy in the pod's allocatedResourcesStatus", maxKubeletLag, took.status...)

	d.stop(t)
	waitForAllocatable(ctx, t, n)
	simulateBoot(ctx, t, n)
	m.resetGPU(t, indexOf(t, gpuID))
	begin := time.Now()
	d = m.start(t, n)
	d.waitUntilListening(ctx, t)
	states := watchHealth(ctx, t, d, gpuID)
	waitUntilHealthyAgain(ctx, t, n, d, gpuID, pod, begin, "boot")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	// The kubelet rejects pods whose GPU is unhealthy in the first device list, so podgauge waits with the list until the GPU has recovered.
	if got, want := states(), []string{"healthy"}; !slices.Equal(got, want) {
		t.Errorf("health states after a boot: got %q, want %q", got, want)
	}
	for _, id := range []string{gpuID, idle} {
		if lines := d.logLines(t, "health restored", id, "xid_79"); len(lines) != 1 {
			t.Errorf("log lines about the health before the boot: got %q, want one", lines)
		}
	}
	checkIncidentRecovered(ctx, t, d, gpuID, pod)
}

// TestUnhealthyPersists checks that a GPU with Xid 79 is unhealthy until there is evidence of a reset, although its calls succeed. Restarts
// of podgauge or the kubelet do not make the GPU allocatable.
func TestUnhealthyPersists(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	pod := podWithGPUs("train", 1)
	runPod(ctx, t, n, pod)
	gpuID := allocatedGPU(ctx, t, n, pod)
	others := without(uuids(defaultGPUs), gpuID)
	m.addEvent(t, indexOf(t, gpuID), "xid 79")
	waitForAllocatable(ctx, t, n, others...)
	await(ctx, t, "the fault is stored", func(context.Context) error { return m.checkStored(gpuID) }) // after the device list is sent
	responses := watchAllocatable(ctx, t, n, gpuID)
	unhealthy := func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": gpuID}),
			s.wantValue(1, "nvidia_gpu_unhealthy_info", seriesLabels{"uuid": gpuID, "reason": "xid_79"}))
	}
	scraped := 0
	for _, restart := range []struct {
		name string
		run  func()
	}{
		{"podgauge was killed", func() { restartPodgauge(ctx, t, n, m, &d, syscall.SIGKILL, others) }},
		{"podgauge was killed again", func() { restartPodgauge(ctx, t, n, m, &d, syscall.SIGKILL, others) }},
		{"podgauge was stopped", func() { restartPodgauge(ctx, t, n, m, &d, syscall.SIGTERM, others) }},
		{"the kubelet was stopped", func() { restartKubelet(ctx, t, n, syscall.SIGTERM, others) }},
		{"the kubelet was killed", func() { restartKubelet(ctx, t, n, syscall.SIGKILL, others) }},
	} {
		restart.run()
		begin := time.Now()
		if err := unhealthy(firstHealthScrape(ctx, t, d, gpuID)); err != nil {
			t.Errorf("first scrape with the GPU's health after %s: %v", restart.name, err)
		}
		watch := watchScrapes(ctx, t, d, 100*time.Millisecond, unhealthy)
		await(ctx, t, "the device is Unhealthy in the pod's status", hasDeviceHealth(n, pod, gpuID, "Unhealthy"))
		await(ctx, t, "the GPU has been checked often enough for a recovery", waitSince(begin, minRecoveryTime+time.Second))
		scraped += watch.stop(t)
	}
	printMeasurement(t, "responding GPU with Xid 79, three restarts of podgauge and two of the kubelet",
		fmt.Sprintf("unhealthy in %d of %d scrapes; not allocatable in %d kubelet responses", scraped, scraped, responses()))
	d.stop(t)
	waitForAllocatable(ctx, t, n)
	corruptState(ctx, t, n, m, gpuID)
}

const stateFile = "state.json"

// checkStored returns an error unless podgauge has stored the GPU's Xid 79.
func (m *simulatedMachine) checkStored(id string) error {
	stored, err := os.ReadFile(filepath.Join(m.stateRoot, stateFile))
	if err == nil && (!strings.Contains(string(stored), id) || !strings.Contains(string(stored), "xid_79")) {
		err = fmt.Errorf("%s: got no xid_79 of %s: %s", stateFile, id, stored)
	}
	return err
}

// corruptState starts podgauge with a corrupt state file. Podgauge must rename the file and check all GPUs before it lists them.
func corruptState(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, gpuID string) {
	const garbage = "\x00{not JSON\n"
	if err := m.checkStored(gpuID); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.stateRoot, stateFile)
	if err := os.WriteFile(file, []byte(garbage), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	d := m.start(t, n)
	took := awaitWithin(ctx, t, 2*waitTimeout, "all GPUs are allocatable", hasAllocatable(n, uuids(defaultGPUs)...))
	if took < minRecoveryTime {
		t.Errorf("unchecked GPUs allocatable after %s, want at least %s", took, minRecoveryTime)
	}
	measureDurations(t, "start with a corrupt state file → all GPUs allocatable", 30*time.Second, time.Since(begin))
	if lines := d.logLines(t, "level=WARN", stateFile, "before publication"); len(lines) != 1 {
		t.Errorf("log lines about the corrupt file: got %q, want one", lines)
	}
	if renamed, err := os.ReadFile(file + ".bad"); err != nil || string(renamed) != garbage {
		t.Errorf("renamed file: got %q, %v, want %q", renamed, err, garbage)
	}
}

// firstHealthScrape returns the first scrape with the GPU's health.
func firstHealthScrape(ctx context.Context, t *testing.T, d *podgaugeProcess, id string) metricsScrape {
	t.Helper()
	return d.scrapeUntil(ctx, t, "the GPU's health is exported", func(s metricsScrape) error {
		_, err := s.value("nvidia_gpu_healthy", seriesLabels{"uuid": id})
		return err
	})
}

// watchAllocatable requests the allocatable GPUs repeatedly until the returned function is called, which returns the number of responses.
// The test fails if a response contains the GPU.
func watchAllocatable(ctx context.Context, t *testing.T, n *node.RealNode, id string) (responses func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	count := 0
	result := make(chan error, 1)
	go func() {
		result <- node.Until(ctx, "the GPU is allocatable", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, gpuResource)
			if err != nil {
				return err
			}
			count++
			if !slices.Contains(ids, id) {
				return fmt.Errorf("allocatable GPUs: got %q", ids)
			}
			return nil
		})
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-result; err == nil {
			t.Errorf("unhealthy GPU %s was allocatable", id)
		}
	})
	t.Cleanup(stop)
	return func() int { stop(); return count }
}

// restartPodgauge stops podgauge with a signal, starts it and waits until these GPUs are allocatable.
func restartPodgauge(
	ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d **podgaugeProcess, signal syscall.Signal, want []string,
) {
	t.Helper()
	if _, err := (*d).Stop(ctx, signal); err != nil {
		t.Fatal(err)
	}
	waitForAllocatable(ctx, t, n)
	*d = m.start(t, n)
	waitForAllocatable(ctx, t, n, want...)
}

// restartKubelet stops the kubelet with a signal, starts it and waits until these GPUs are allocatable.
func restartKubelet(ctx context.Context, t *testing.T, n *node.RealNode, signal syscall.Signal, want []string) {
	t.Helper()
	if err := n.StopKubelet(ctx, signal); err != nil {
		t.Fatal(err)
	}
	startKubelet(ctx, t, n)
	waitForAllocatable(ctx, t, n, want...)
}
