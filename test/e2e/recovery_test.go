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
	// maxKubeletLag is how long the kubelet's word on a pod's GPU may lag behind what is true of it.
	maxKubeletLag = 2 * time.Second
	// minRecoveryTime is the least time that a GPU is recovering: three good checks take two seconds.
	minRecoveryTime = 2 * time.Second
)

// TestRecovery has GPUs fall off the bus under pods, and come back: by a reset beneath podgauge, and by a boot of the node, which starts
// podgauge anew.
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

// simulateBoot has the node say that it was booted just now.
func simulateBoot(ctx context.Context, t *testing.T, n *node.RealNode) {
	t.Helper()
	// Each boot has a file of its own, which is laid over the one of the boot before.
	const script = `
id=$(cat /proc/sys/kernel/random/uuid)
echo "$id" >"/run/boot-$id"
mount --bind "/run/boot-$id" /proc/sys/kernel/random/boot_id
`
	if _, err := n.Shell(ctx, script); err != nil {
		t.Fatal(err)
	}
}

// resetWhileRunning has a GPU be reset while podgauge and its pod run on.
func resetWhileRunning(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	pod := podWithGPUs("reset", 1)
	before, _ := runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, held, mainContainer(pod))
	took := failGPU(ctx, t, n, d, m, pod, held, without(uuids(defaultGPUs), held))
	measureDurations(t, "a GPU fell off the bus: Unhealthy in the pod's allocatedResourcesStatus after", maxKubeletLag, took.status...)

	steps := watchHealth(ctx, t, d, held)
	begin := time.Now()
	m.resetGPU(t, indexOf(t, held))
	waitUntilHealthyAgain(ctx, t, n, d, held, pod, begin, "a reset")
	if all := steps(); !slices.Equal(all, []string{"unhealthy", "recovering", "healthy"}) {
		t.Errorf("after a reset its health was %q in turn", all)
	}
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	s := d.nextScrape(ctx, t)
	err := errors.Join(s.wantValue(1, "nvidia_gpu_health_flaps_total", seriesLabels{"uuid": held}), s.wantValue(1, "nvidia_gpu_health_state", seriesLabels{"uuid": held, "state": "healthy"}),
		s.checkOwners([]string{held}, map[string]node.OwnerKey{held: mainContainer(pod)}), checkSameContainer(ctx, n, pod, before))
	if err != nil {
		t.Error(err)
	}
	checkIncidentRecovered(ctx, t, d, held, pod)
}

// without is all ids but these.
func without(all []string, ids ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(id string) bool { return slices.Contains(ids, id) })
}

// watchHealth asks over and over how a device is, until the returned func is called, which asks once more and returns the words for it in their
// order.
func watchHealth(ctx context.Context, t *testing.T, d *podgaugeProcess, id string) (steps func() []string) {
	t.Helper()
	var all []string
	ask := func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err == nil && (len(all) == 0 || all[len(all)-1] != s.Health) {
			all = append(all, s.Health)
		}
		return err
	}
	watch, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() {
		_ = node.Until(watch, "the watch ends", func(ctx context.Context) error { return errors.Join(ask(ctx), errors.New("it goes on")) })
	})
	end := func() { cancel(); done.Wait() }
	t.Cleanup(end)
	return func() []string {
		t.Helper()
		end()
		if err := ask(ctx); err != nil { // what was seen last may be older than what the caller saw
			t.Error(err)
		}
		return all
	}
}

// waitUntilHealthyAgain waits until podgauge calls a device well and the kubelet says so of the pod, which follows.
func waitUntilHealthyAgain(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess, id string, pod node.StaticPod, begin time.Time, what string) {
	t.Helper()
	await(ctx, t, "podgauge calls it well", func(ctx context.Context) error {
		s, err := d.device(ctx, id)
		if err != nil {
			return err
		}
		if s.Health != "healthy" || !s.Healthy || s.Reason != "" {
			return fmt.Errorf("it says %+v", s)
		}
		return nil
	})
	if took := time.Since(begin); took < minRecoveryTime {
		t.Errorf("%s after %s it is called well: it cannot have proven that", took, what)
	}
	measureDurations(t, "well after "+what, 15*time.Second, time.Since(begin)) // a GPU that was lost is listed again within ten
	measureDurations(t, "… and Healthy in the pod's allocatedResourcesStatus after", maxKubeletLag, await(ctx, t, "the pod's status says so", podDeviceHas(n, pod, id, "Healthy")))
}

// checkIncidentRecovered waits until the one incident of a device that fell off the bus tells that this is over.
func checkIncidentRecovered(ctx context.Context, t *testing.T, d *podgaugeProcess, id string, pod node.StaticPod) {
	t.Helper()
	d.waitForIncident(ctx, t, id, "xid_79", func(i apiIncident) error {
		if err := i.affectsOnly(mainContainer(pod)); err != nil {
			return err
		}
		if !i.MarkedUnhealthy || !i.RecoveredAt.After(i.Last) {
			return fmt.Errorf("of its end is told %+v", i)
		}
		return nil
	})
}

// rebootNode has the node be booted when two GPUs have fallen off the bus. Of the idle one the counter of energy goes on, which would tell of a
// reset by itself: for that GPU the boot alone speaks.
func rebootNode(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	pod := podWithGPUs("boot", 1)
	runPod(ctx, t, n, pod)
	held := allocatedGPU(ctx, t, n, pod)
	waitForOwner(ctx, t, d, held, mainContainer(pod))
	holders, err := n.Owners(ctx, gpuResource)
	if err != nil {
		t.Fatal(err)
	}
	idle := without(uuids(defaultGPUs), slices.Collect(maps.Keys(holders))...)[0]
	m.addEvent(t, indexOf(t, idle), "xid 79")
	waitForAllocatable(ctx, t, n, without(uuids(defaultGPUs), idle)...)
	took := failGPU(ctx, t, n, d, m, pod, held, without(uuids(defaultGPUs), idle, held))
	measureDurations(t, "a GPU fell off the bus: Unhealthy in the pod's allocatedResourcesStatus after", maxKubeletLag, took.status...)

	d.stop(t)
	waitForAllocatable(ctx, t, n)
	simulateBoot(ctx, t, n)
	m.resetGPU(t, indexOf(t, held))
	begin := time.Now()
	d = m.start(t, n)
	d.waitUntilListening(ctx, t)
	steps := watchHealth(ctx, t, d, held)
	waitUntilHealthyAgain(ctx, t, n, d, held, pod, begin, "a boot")
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	// A kubelet that is told of an unhealthy GPU in its first list turns away the pods that hold it: until it has proven itself it is not told at all.
	if all := steps(); !slices.Equal(all, []string{"healthy"}) {
		t.Errorf("after a boot its health was %q in turn", all)
	}
	for _, id := range []string{held, idle} {
		if said := d.logLines(t, "health restored", id, "xid_79"); len(said) != 1 {
			t.Errorf("that it was not well before the boot is said %d times: %q", len(said), said)
		}
	}
	checkIncidentRecovered(ctx, t, d, held, pod)
}

// TestUnhealthyStays has a GPU report that it fell off the bus, and answer on as if nothing were. As long as nothing shows that it was reset,
// nobody gets it: not when podgauge is killed, nor when the kubelet is.
func TestUnhealthyStays(t *testing.T) {
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
	held := allocatedGPU(ctx, t, n, pod)
	others := without(uuids(defaultGPUs), held)
	m.addEvent(t, indexOf(t, held), "xid 79")
	waitForAllocatable(ctx, t, n, others...)
	await(ctx, t, "the fault is stored", func(context.Context) error { return m.checkStored(held) }) // the kubelet is told before
	asked := watchAllocatable(ctx, t, n, held)
	unwell := func(s metricsScrape) error {
		return errors.Join(s.wantValue(0, "nvidia_gpu_healthy", seriesLabels{"uuid": held}), s.wantValue(1, "nvidia_gpu_unhealthy_info", seriesLabels{"uuid": held, "reason": "xid_79"}))
	}
	scraped := 0
	for _, end := range []struct {
		what string
		do   func()
	}{
		{"podgauge was killed", func() { restartPodgauge(ctx, t, n, m, &d, syscall.SIGKILL, others) }},
		{"podgauge was killed once more", func() { restartPodgauge(ctx, t, n, m, &d, syscall.SIGKILL, others) }},
		{"podgauge was ended", func() { restartPodgauge(ctx, t, n, m, &d, syscall.SIGTERM, others) }},
		{"the kubelet was ended", func() { restartKubelet(ctx, t, n, syscall.SIGTERM, others) }},
		{"the kubelet was killed", func() { restartKubelet(ctx, t, n, syscall.SIGKILL, others) }},
	} {
		end.do()
		begin := time.Now()
		if err := unwell(firstHealthScrape(ctx, t, d, held)); err != nil {
			t.Errorf("the first scrape that tells, after %s: %v", end.what, err)
		}
		watch := watchScrapes(ctx, t, d, 100*time.Millisecond, unwell)
		await(ctx, t, "the pod's status says so", podDeviceHas(n, pod, held, "Unhealthy"))
		await(ctx, t, "it has been checked often enough to be trusted", waitSince(begin, minRecoveryTime+time.Second))
		scraped += watch.stop(t)
	}
	printMeasurement(t, "a GPU with Xid 79 that answers, over three restarts of podgauge and two of the kubelet",
		fmt.Sprintf("unhealthy in all of %d scrapes; not among the kubelet's in all of %d answers", scraped, asked()))
	d.stop(t)
	waitForAllocatable(ctx, t, n)
	corruptState(ctx, t, n, m, held)
}

const healthFile = "health.json"

// checkStored reports whether podgauge has stored that a GPU failed with Xid 79.
func (m *simulatedMachine) checkStored(id string) error {
	stored, err := os.ReadFile(filepath.Join(m.stateRoot, healthFile))
	if err == nil && (!strings.Contains(string(stored), id) || !strings.Contains(string(stored), "xid_79")) {
		err = fmt.Errorf("%s has not %s: %s", healthFile, id, stored)
	}
	return err
}

// corruptState has podgauge find that its memory is no memory: that is set aside, and no GPU is given away before it was checked, nor condemned.
func corruptState(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, held string) {
	const garbage = "\x00{no memory\n"
	if err := m.checkStored(held); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(m.stateRoot, healthFile)
	if err := os.WriteFile(file, []byte(garbage), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	d := m.start(t, n)
	took := awaitWithin(ctx, t, 2*waitTimeout, "all GPUs are allocatable", hasAllocatable(n, uuids(defaultGPUs)...))
	if took < minRecoveryTime {
		t.Errorf("%s after podgauge's start GPUs are given away of which nobody knew anything", took)
	}
	measureDurations(t, "all GPUs are allocatable after the start of a podgauge whose memory was garbage", 30*time.Second, time.Since(begin))
	if said := d.logLines(t, "level=WARN", "health.json", "before publication"); len(said) != 1 {
		t.Errorf("of that it says %q", said)
	}
	if aside, err := os.ReadFile(file + ".bad"); err != nil || string(aside) != garbage {
		t.Errorf("set aside is %q, %v", aside, err)
	}
}

// firstHealthScrape is the first scrape that says whether a GPU can be used.
func firstHealthScrape(ctx context.Context, t *testing.T, d *podgaugeProcess, id string) metricsScrape {
	t.Helper()
	return d.scrapeUntil(ctx, t, "it is said how the GPU is", func(s metricsScrape) error {
		_, err := s.value("nvidia_gpu_healthy", seriesLabels{"uuid": id})
		return err
	})
}

// watchAllocatable asks the kubelet over and over for what it would give away, until the returned func is called, which returns how often it
// has answered. The test fails when that includes the GPU.
func watchAllocatable(ctx context.Context, t *testing.T, n *node.RealNode, id string) (asked func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	count := 0
	given := make(chan error, 1)
	go func() {
		given <- node.Until(ctx, "the kubelet would give it away", func(ctx context.Context) error {
			ids, err := n.Allocatable(ctx, gpuResource)
			if err != nil {
				return err
			}
			count++
			if !slices.Contains(ids, id) {
				return fmt.Errorf("it would give away %q", ids)
			}
			return nil
		})
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-given; err == nil {
			t.Errorf("the kubelet would have given %s away", id)
		}
	})
	t.Cleanup(stop)
	return func() int { stop(); return count }
}

// restartPodgauge ends podgauge and starts it anew.
func restartPodgauge(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d **podgaugeProcess, signal syscall.Signal, want []string) {
	t.Helper()
	if _, err := (*d).Stop(ctx, signal); err != nil {
		t.Fatal(err)
	}
	waitForAllocatable(ctx, t, n)
	*d = m.start(t, n)
	waitForAllocatable(ctx, t, n, want...)
}

// restartKubelet ends the kubelet and starts it anew.
func restartKubelet(ctx context.Context, t *testing.T, n *node.RealNode, signal syscall.Signal, want []string) {
	t.Helper()
	if err := n.StopKubelet(ctx, signal); err != nil {
		t.Fatal(err)
	}
	startKubelet(ctx, t, n)
	waitForAllocatable(ctx, t, n, want...)
}
