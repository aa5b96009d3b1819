package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestOwners checks the attribution of short-lived pods, ended pods, pods with two containers, and energy.
func TestOwners(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	t.Run("short-lived pod", func(t *testing.T) { shortLivedPod(ctx, t, n, d) })
	t.Run("end", func(t *testing.T) { podEnds(ctx, t, n, d) })
	t.Run("two containers", func(t *testing.T) { twoContainerPod(ctx, t, n, d) })
	d.stop(t)
	waitForAllocatable(ctx, t, n)
	t.Run("energy", func(t *testing.T) { energyAttribution(ctx, t, n) })
}

// shortLivedPod checks the last-seen time of a pod that ran for 2 s between two scrapes.
func shortLivedPod(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	brief := podWithGPUs("brief", 1)
	brief.RestartPolicy = "Never"
	brief.Containers[0].Args = []string{"sleep", "2s"}
	begin := time.Now()
	runPod(ctx, t, n, brief)
	gpuID := allocatedGPU(ctx, t, n, brief)
	waitForPodEnd(ctx, t, n, brief)
	lived := time.Since(begin)
	await(ctx, t, "15 s have passed", waitSince(begin, 15*time.Second))
	s, err := d.scrape(ctx)
	if err != nil {
		t.Fatal(err)
	}
	with := ownerLabels(mainContainer(brief))
	with["uuid"], with["mig_uuid"] = gpuID, ""
	seen, err := s.value(familyLastSeen, with)
	if err != nil {
		t.Fatalf("last-seen time of a pod that ran for 2 s: %v", err)
	}
	if at := unixTime(seen); at.Before(begin) || at.After(begin.Add(lived)) {
		t.Errorf("last-seen time: got %s after the pod's creation, want at most %s", at.Sub(begin), lived)
	}
	printMeasurement(t, "last-seen time of a pod that ran for 2 s between scrapes", formatSeconds(unixTime(seen).Sub(begin))+" after its creation")
	if err := s.checkOwners(uuids(defaultGPUs), nil); err != nil {
		t.Errorf("after the pod's end: %v", err)
	}
	if err := n.DeletePod(brief); err != nil {
		t.Fatal(err)
	}
}

// podEnds checks that GPUs are idle after their pods exited or were deleted.
func podEnds(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	for _, exits := range []bool{true, false} {
		pod := podWithGPUs(fmt.Sprintf("exits-%t", exits), 1)
		if exits {
			pod.RestartPolicy = "Never"
			pod.Containers[0].Args = []string{"sleep", "3s"}
		}
		runPod(ctx, t, n, pod)
		owners := map[string]node.OwnerKey{allocatedGPU(ctx, t, n, pod): mainContainer(pod)}
		if err := d.nextScrape(ctx, t).checkOwners(uuids(defaultGPUs), owners); err != nil {
			t.Errorf("while the pod runs: %v", err)
		}
		if exits {
			waitForPodEnd(ctx, t, n, pod)
		} else {
			removePod(ctx, t, n, pod)
		}
		s := d.nextScrape(ctx, t)
		if err := s.checkOwners(uuids(defaultGPUs), nil); err != nil {
			t.Errorf("next scrape after the pod's end (exits: %t): %v", exits, err)
		}
		if found := findSamples(s.series[familyLastSeen], seriesLabels{"pod": pod.FullName()}); len(found) != 1 {
			t.Errorf("last-seen times of the pod: got %v, want one", found)
		}
		if exits {
			if err := n.DeletePod(pod); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// twoContainerPod checks a pod with one GPU for its first container and two for the second.
func twoContainerPod(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	pod := podWithGPUs("pair", 1)
	pod.Containers = append(pod.Containers, node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 2}})
	runPod(ctx, t, n, pod)
	owners := map[string]node.OwnerKey{}
	for container, ids := range waitForAllocation(ctx, t, n, pod) {
		for _, id := range ids {
			owner := mainContainer(pod)
			owner.Container = container
			owners[id] = owner
		}
	}
	if err := d.nextScrape(ctx, t).checkOwners(uuids(defaultGPUs), owners); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, pod)
	await(ctx, t, "the pod's GPUs are idle", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		return s.checkOwners(uuids(defaultGPUs), nil)
	})
}

// energyAttribution allocates the only GPU to two pods in turn, and checks that each joule of its counter is attributed to the right owner.
func energyAttribution(ctx context.Context, t *testing.T, n *node.RealNode) {
	const start = 5000 // counter at podgauge's start, in joules
	m := newMachine(t, n, "gpus 1")
	counter := start
	addEnergy := func(joules int) {
		counter += joules
		m.setLines(t, fmt.Sprintf("gpu 0 energy %d", counter*1000))
	}
	addEnergy(0)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuid(0))
	scrapeEnergy := func(when string, owner node.OwnerKey) int {
		t.Helper()
		s := d.nextScrape(ctx, t)
		joules, err := s.value("nvidia_gpu_energy_joules_total", seriesLabels{"uuid": uuid(0)})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		owners := map[string]node.OwnerKey{}
		if owner != (node.OwnerKey{}) {
			owners[uuid(0)] = owner
		}
		if err := s.checkOwners(uuids(1), owners); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		return int(joules)
	}
	check := func(when string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: energy: got %d J, want %d J", when, got, want)
		}
	}
	noOwner := node.OwnerKey{}
	check("before the first pod", scrapeEnergy("before the first pod", noOwner), 0)
	pods := []node.StaticPod{podWithGPUs("first", 1), podWithGPUs("second", 1)}
	energy := map[string]int{"first": 400, "second": 90}
	idle, sum := 0, 0
	for _, pod := range pods {
		addEnergy(7) // idle energy, without a scrape before the pod's start
		idle += 7
		runPod(ctx, t, n, pod)
		allocatedGPU(ctx, t, n, pod)
		check("start of pod "+pod.Name, scrapeEnergy("allocated", mainContainer(pod)), 0)
		addEnergy(energy[pod.Name] - 50)
		check("during pod "+pod.Name, scrapeEnergy("allocated", mainContainer(pod)), energy[pod.Name]-50)
		addEnergy(50)
		got := scrapeEnergy("allocated", mainContainer(pod))
		check("before the end of pod "+pod.Name, got, energy[pod.Name])
		sum += got
		removePod(ctx, t, n, pod)
		check("after pod "+pod.Name, scrapeEnergy("idle", noOwner), idle)
		addEnergy(3)
		idle += 3
		check("idle after pod "+pod.Name, scrapeEnergy("idle", noOwner), idle)
	}
	sum += idle
	if sum != counter-start {
		t.Errorf("sum of energy: got %d J, want the GPU's %d J", sum, counter-start)
	}
	printMeasurement(t, "energy of pod A, pod B and idle time",
		fmt.Sprintf("%d J + %d J + %d J = %d J of the GPU's counter", energy["first"], energy["second"], idle, counter-start))
	energyBetweenScrapes(ctx, t, n, m, d)
}

// energyBetweenScrapes runs two pods in turn without a scrape in between. The second must not have energy from before its start.
func energyBetweenScrapes(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	m.setLines(t, fmt.Sprintf("epoch %d", time.Now().Unix()), "gpu 0 energy 9000000+200000/s")
	third, fourth := podWithGPUs("third", 1), podWithGPUs("fourth", 1)
	runPod(ctx, t, n, third)
	allocatedGPU(ctx, t, n, third)
	d.nextScrape(ctx, t)
	removePod(ctx, t, n, third)
	await(ctx, t, "the GPU has been idle for 3 s", waitSince(time.Now(), 3*time.Second))
	begin := time.Now()
	runPod(ctx, t, n, fourth)
	allocatedGPU(ctx, t, n, fourth)
	s := d.nextScrape(ctx, t)
	joules, err := s.value("nvidia_gpu_energy_joules_total", ownerLabels(mainContainer(fourth)))
	if err != nil {
		t.Fatal(err)
	}
	limit := 200 * s.collection.begin.Sub(begin).Seconds()
	printMeasurement(t, "energy of a pod at its first scrape, GPU of 200 W after 3 s of idle time",
		fmt.Sprintf("%.0f J; limit %.0f J, as the pod was created %s before", joules, limit, formatSeconds(s.collection.begin.Sub(begin))))
	if joules < 0 || joules > limit+200*0.05 {
		t.Errorf("energy of a pod created %s before: got %v J, want at most %v J", s.collection.begin.Sub(begin), joules, limit+200*0.05)
	}
	removePod(ctx, t, n, fourth)
}
