package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestHolders is who held what, and when, where it is easily missed.
func TestHolders(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuids(defaultGPUs)...)
	t.Run("short life", func(t *testing.T) { shortLivedPod(ctx, t, n, d) })
	t.Run("end", func(t *testing.T) { podEnds(ctx, t, n, d) })
	t.Run("two containers", func(t *testing.T) { twoContainerPod(ctx, t, n, d) })
	d.stop(t)
	waitForAllocatable(ctx, t, n)
	t.Run("energy", func(t *testing.T) { energyAttribution(ctx, t, n) })
}

// shortLivedPod has a pod live two seconds while nobody scrapes.
func shortLivedPod(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	brief := podWithGPUs("brief", 1)
	brief.RestartPolicy = "Never"
	brief.Containers[0].Args = []string{"sleep", "2s"}
	begin := time.Now()
	runPod(ctx, t, n, brief)
	held := allocatedGPU(ctx, t, n, brief)
	waitForPodEnd(ctx, t, n, brief)
	lived := time.Since(begin)
	await(ctx, t, "it is 15 s later", waitSince(begin, 15*time.Second))
	s, err := d.scrape(ctx)
	if err != nil {
		t.Fatal(err)
	}
	with := ownerLabels(mainContainer(brief))
	with["uuid"], with["mig_uuid"] = held, ""
	seen, err := s.value(familyLastSeen, with)
	if err != nil {
		t.Fatalf("15 s after a pod that lived for 2 s: %v", err)
	}
	if at := unixTime(seen); at.Before(begin) || at.After(begin.Add(lived)) {
		t.Errorf("the pod lived for %s, and was last seen %s after its beginning", lived, at.Sub(begin))
	}
	printMeasurement(t, "a pod that lived for 2 s, between scrapes, was last seen", formatSeconds(unixTime(seen).Sub(begin))+" after its manifest was written")
	if err := s.checkOwners(uuids(defaultGPUs), nil); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if err := n.DeletePod(brief); err != nil {
		t.Fatal(err)
	}
}

// podEnds has pods end by themselves and by deletion.
func podEnds(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	for _, byItself := range []bool{true, false} {
		pod := podWithGPUs(fmt.Sprintf("ends-%t", byItself), 1)
		if byItself {
			pod.RestartPolicy = "Never"
			pod.Containers[0].Args = []string{"sleep", "3s"}
		}
		runPod(ctx, t, n, pod)
		holding := map[string]node.OwnerKey{allocatedGPU(ctx, t, n, pod): mainContainer(pod)}
		if err := d.nextScrape(ctx, t).checkOwners(uuids(defaultGPUs), holding); err != nil {
			t.Errorf("while the pod runs: %v", err)
		}
		if byItself {
			waitForPodEnd(ctx, t, n, pod)
		} else {
			removePod(ctx, t, n, pod)
		}
		s := d.nextScrape(ctx, t)
		if err := s.checkOwners(uuids(defaultGPUs), nil); err != nil {
			t.Errorf("the next scrape after the pod's end (by itself: %t): %v", byItself, err)
		}
		if found := findSamples(s.series[familyLastSeen], seriesLabels{"pod": pod.FullName()}); len(found) != 1 {
			t.Errorf("it was last seen %v", found)
		}
		if byItself {
			if err := n.DeletePod(pod); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// twoContainerPod of one pod hold one GPU and two.
func twoContainerPod(ctx context.Context, t *testing.T, n *node.RealNode, d *podgaugeProcess) {
	pod := podWithGPUs("pair", 1)
	pod.Containers = append(pod.Containers, node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 2}})
	runPod(ctx, t, n, pod)
	holding := map[string]node.OwnerKey{}
	for container, ids := range waitForAllocation(ctx, t, n, pod) {
		for _, id := range ids {
			h := mainContainer(pod)
			h.Container = container
			holding[id] = h
		}
	}
	if err := d.nextScrape(ctx, t).checkOwners(uuids(defaultGPUs), holding); err != nil {
		t.Error(err)
	}
	removePod(ctx, t, n, pod)
	await(ctx, t, "its GPUs are idle", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		return s.checkOwners(uuids(defaultGPUs), nil)
	})
}

// energyAttribution has two pods hold the only GPU one after the other. The GPU's counter rises only when the test says so, by whole joules: whatever is
// booked on the wrong account shows.
func energyAttribution(ctx context.Context, t *testing.T, n *node.RealNode) {
	const start = 5000 // what was burned before anyone looked
	m := newMachine(t, n, "gpus 1")
	counter := start
	burn := func(joules int) {
		counter += joules
		m.setLines(t, fmt.Sprintf("gpu 0 energy %d", counter*1000))
	}
	burn(0)
	d := m.start(t, n)
	waitForAllocatable(ctx, t, n, uuid(0))
	account := func(what string, h node.OwnerKey) int {
		t.Helper()
		s := d.nextScrape(ctx, t)
		joules, err := s.value("nvidia_gpu_energy_joules_total", seriesLabels{"uuid": uuid(0)})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		held := map[string]node.OwnerKey{}
		if h != (node.OwnerKey{}) {
			held[uuid(0)] = h
		}
		if err := s.checkOwners(uuids(1), held); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return int(joules)
	}
	check := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d J are booked, not %d", what, got, want)
		}
	}
	nobody := node.OwnerKey{}
	check("before the first pod", account("before the first pod", nobody), 0)
	pods := []node.StaticPod{podWithGPUs("first", 1), podWithGPUs("second", 1)}
	burned := map[string]int{"first": 400, "second": 90}
	idle, sum := 0, 0
	for _, pod := range pods {
		burn(7) // idle, and nobody scrapes before the next pod comes
		idle += 7
		runPod(ctx, t, n, pod)
		allocatedGPU(ctx, t, n, pod)
		check(pod.Name+" has just come", account("hold", mainContainer(pod)), 0)
		burn(burned[pod.Name] - 50)
		check(pod.Name+" works", account("hold", mainContainer(pod)), burned[pod.Name]-50)
		burn(50)
		got := account("hold", mainContainer(pod))
		check(pod.Name+" has worked", got, burned[pod.Name])
		sum += got
		removePod(ctx, t, n, pod)
		check("after "+pod.Name, account("idle", nobody), idle)
		burn(3)
		idle += 3
		check("some time after "+pod.Name, account("idle", nobody), idle)
	}
	sum += idle
	if sum != counter-start {
		t.Errorf("the accounts add up to %d J; the GPU has burned %d J", sum, counter-start)
	}
	printMeasurement(t, "energy of two pods one after the other, and of the idle time around them",
		fmt.Sprintf("%d J + %d J + %d J = %d J of the GPU's counter", burned["first"], burned["second"], idle, counter-start))
	energyBetweenScrapes(ctx, t, n, m, d)
}

// energyBetweenScrapes has the GPU burn on by itself, 200 J a second, and one pod follow the other without a scrape between them: the second is not to pay
// for anything before its own beginning.
func energyBetweenScrapes(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess) {
	m.setLines(t, fmt.Sprintf("epoch %d", time.Now().Unix()), "gpu 0 energy 9000000+200000/s")
	third, fourth := podWithGPUs("third", 1), podWithGPUs("fourth", 1)
	runPod(ctx, t, n, third)
	allocatedGPU(ctx, t, n, third)
	d.nextScrape(ctx, t)
	removePod(ctx, t, n, third)
	await(ctx, t, "the GPU has burned on for 3 s", waitSince(time.Now(), 3*time.Second))
	begin := time.Now()
	runPod(ctx, t, n, fourth)
	allocatedGPU(ctx, t, n, fourth)
	s := d.nextScrape(ctx, t)
	joules, err := s.value("nvidia_gpu_energy_joules_total", ownerLabels(mainContainer(fourth)))
	if err != nil {
		t.Fatal(err)
	}
	most := 200 * s.collection.begin.Sub(begin).Seconds()
	printMeasurement(t, "booked on a pod at its first scrape, on a GPU that burns 200 J/s and had burned for 3 s before it came",
		fmt.Sprintf("%.0f J; the pod's manifest was written %s before, which makes %.0f J", joules, formatSeconds(s.collection.begin.Sub(begin)), most))
	if joules < 0 || joules > most+200*0.05 {
		t.Errorf("%v J are booked on a pod that has been there for %s", joules, s.collection.begin.Sub(begin))
	}
	removePod(ctx, t, n, fourth)
}
