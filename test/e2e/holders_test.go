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
	ageKubelet(t, n)
	m := newMachine(t, n)
	d := m.start(t, n)
	allocatable(ctx, t, n, uuids(gpus)...)
	t.Run("short life", func(t *testing.T) { shortLife(ctx, t, n, d) })
	t.Run("end", func(t *testing.T) { podEnds(ctx, t, n, d) })
	t.Run("two containers", func(t *testing.T) { twoContainers(ctx, t, n, d) })
	d.stop(t)
	allocatable(ctx, t, n)
	t.Run("energy", func(t *testing.T) { energy(ctx, t, n) })
}

// shortLife has a pod live two seconds while nobody scrapes.
func shortLife(ctx context.Context, t *testing.T, n *node.Node, d *daemon) {
	brief := holds("brief", 1)
	brief.RestartPolicy = "Never"
	brief.Containers[0].Args = []string{"sleep", "2s"}
	begin := time.Now()
	run(ctx, t, n, brief)
	held := one(ctx, t, n, brief)
	ended(ctx, t, n, brief)
	lived := time.Since(begin)
	await(ctx, t, "it is 15 s later", since(begin, 15*time.Second))
	s, err := d.scrape(ctx)
	if err != nil {
		t.Fatal(err)
	}
	with := labelsOf(holder(brief))
	with["uuid"], with["mig_uuid"] = held, ""
	seen, err := s.value(history, with)
	if err != nil {
		t.Fatalf("15 s after a pod that lived for 2 s: %v", err)
	}
	if at := instant(seen); at.Before(begin) || at.After(begin.Add(lived)) {
		t.Errorf("the pod lived for %s, and was last seen %s after its beginning", lived, at.Sub(begin))
	}
	figure(t, "a pod that lived for 2 s, between scrapes, was last seen", seconds(instant(seen).Sub(begin))+" after its manifest was written")
	if err := s.tells(uuids(gpus), nil); err != nil {
		t.Errorf("after its end: %v", err)
	}
	if err := n.Delete(brief); err != nil {
		t.Fatal(err)
	}
}

// podEnds has pods end by themselves and by deletion.
func podEnds(ctx context.Context, t *testing.T, n *node.Node, d *daemon) {
	for _, byItself := range []bool{true, false} {
		pod := holds(fmt.Sprintf("ends-%t", byItself), 1)
		if byItself {
			pod.RestartPolicy = "Never"
			pod.Containers[0].Args = []string{"sleep", "3s"}
		}
		run(ctx, t, n, pod)
		holding := map[string]node.Holder{one(ctx, t, n, pod): holder(pod)}
		if err := d.next(ctx, t).tells(uuids(gpus), holding); err != nil {
			t.Errorf("while the pod runs: %v", err)
		}
		if byItself {
			ended(ctx, t, n, pod)
		} else {
			remove(ctx, t, n, pod)
		}
		s := d.next(ctx, t)
		if err := s.tells(uuids(gpus), nil); err != nil {
			t.Errorf("the next scrape after the pod's end (by itself: %t): %v", byItself, err)
		}
		if found := find(s.series[history], labels{"pod": pod.FullName()}); len(found) != 1 {
			t.Errorf("it was last seen %v", found)
		}
		if byItself {
			if err := n.Delete(pod); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// twoContainers of one pod hold one GPU and two.
func twoContainers(ctx context.Context, t *testing.T, n *node.Node, d *daemon) {
	pod := holds("pair", 1)
	pod.Containers = append(pod.Containers, node.Container{Name: "second", Limits: map[string]int{gpu: 2}})
	run(ctx, t, n, pod)
	holding := map[string]node.Holder{}
	for container, ids := range listed(ctx, t, n, pod) {
		for _, id := range ids {
			h := holder(pod)
			h.Container = container
			holding[id] = h
		}
	}
	if err := d.next(ctx, t).tells(uuids(gpus), holding); err != nil {
		t.Error(err)
	}
	remove(ctx, t, n, pod)
	await(ctx, t, "its GPUs are idle", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		return s.tells(uuids(gpus), nil)
	})
}

// energy has two pods hold the only GPU one after the other. The GPU's counter rises only when the test says so, by whole joules: whatever is
// booked on the wrong account shows.
func energy(ctx context.Context, t *testing.T, n *node.Node) {
	const start = 5000 // what was burned before anyone looked
	m := newMachine(t, n, "gpus 1")
	counter := start
	burn := func(joules int) {
		counter += joules
		m.set(t, fmt.Sprintf("gpu 0 energy %d", counter*1000))
	}
	burn(0)
	d := m.start(t, n)
	allocatable(ctx, t, n, uuid(0))
	account := func(what string, h node.Holder) int {
		t.Helper()
		s := d.next(ctx, t)
		joules, err := s.value("nvidia_gpu_energy_joules_total", labels{"uuid": uuid(0)})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		held := map[string]node.Holder{}
		if h != (node.Holder{}) {
			held[uuid(0)] = h
		}
		if err := s.tells(uuids(1), held); err != nil {
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
	nobody := node.Holder{}
	check("before the first pod", account("before the first pod", nobody), 0)
	pods := []node.Pod{holds("first", 1), holds("second", 1)}
	burned := map[string]int{"first": 400, "second": 90}
	idle, sum := 0, 0
	for _, pod := range pods {
		burn(7) // idle, and nobody scrapes before the next pod comes
		idle += 7
		run(ctx, t, n, pod)
		one(ctx, t, n, pod)
		check(pod.Name+" has just come", account("hold", holder(pod)), 0)
		burn(burned[pod.Name] - 50)
		check(pod.Name+" works", account("hold", holder(pod)), burned[pod.Name]-50)
		burn(50)
		got := account("hold", holder(pod))
		check(pod.Name+" has worked", got, burned[pod.Name])
		sum += got
		remove(ctx, t, n, pod)
		check("after "+pod.Name, account("idle", nobody), idle)
		burn(3)
		idle += 3
		check("some time after "+pod.Name, account("idle", nobody), idle)
	}
	sum += idle
	if sum != counter-start {
		t.Errorf("the accounts add up to %d J; the GPU has burned %d J", sum, counter-start)
	}
	figure(t, "energy of two pods one after the other, and of the idle time around them",
		fmt.Sprintf("%d J + %d J + %d J = %d J of the GPU's counter", burned["first"], burned["second"], idle, counter-start))
	between(ctx, t, n, m, d)
}

// between has the GPU burn on by itself, 200 J a second, and one pod follow the other without a scrape between them: the second is not to pay
// for anything before its own beginning.
func between(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon) {
	m.set(t, fmt.Sprintf("epoch %d", time.Now().Unix()), "gpu 0 energy 9000000+200000/s")
	third, fourth := holds("third", 1), holds("fourth", 1)
	run(ctx, t, n, third)
	one(ctx, t, n, third)
	d.next(ctx, t)
	remove(ctx, t, n, third)
	await(ctx, t, "the GPU has burned on for 3 s", since(time.Now(), 3*time.Second))
	begin := time.Now()
	run(ctx, t, n, fourth)
	one(ctx, t, n, fourth)
	s := d.next(ctx, t)
	joules, err := s.value("nvidia_gpu_energy_joules_total", labelsOf(holder(fourth)))
	if err != nil {
		t.Fatal(err)
	}
	most := 200 * s.flight.begin.Sub(begin).Seconds()
	figure(t, "booked on a pod at its first scrape, on a GPU that burns 200 J/s and had burned for 3 s before it came",
		fmt.Sprintf("%.0f J; the pod's manifest was written %s before, which makes %.0f J", joules, seconds(s.flight.begin.Sub(begin)), most))
	if joules < 0 || joules > most+200*0.05 {
		t.Errorf("%v J are booked on a pod that has been there for %s", joules, s.flight.begin.Sub(begin))
	}
	remove(ctx, t, n, fourth)
}
