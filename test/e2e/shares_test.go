package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// mebibyte is what the shares of memory are made of.
const mebibyte = 1 << 20

// use is what a container, or nobody, uses of a GPU. Ratios are in quarters, whose sums are exact.
type use struct {
	memory                       float64
	sm, controller, enc, decoder float64
	processes                    float64
}

func (u use) families() map[string]float64 {
	return map[string]float64{
		"memory_used_bytes": u.memory, "sm_utilization_ratio": u.sm, "memory_controller_utilization_ratio": u.controller,
		"encoder_utilization_ratio": u.enc, "decoder_utilization_ratio": u.decoder, "processes": u.processes,
	}
}

// The beginnings of the names of families that are about processes.
const (
	ofContainers = "nvidia_gpu_container_"
	ofNobody     = "nvidia_gpu_unattributed_"
)

// splits says where a scrape is wrong about what containers use of a GPU, and about what is left; all together is the GPU's memory in use.
func splits(s scrape, id string, uses map[node.Holder]use, rest use) error {
	wrong := []error{}
	for family := range rest.families() {
		if found := find(s.series[ofContainers+family], labels{"uuid": id}); len(found) != len(uses) {
			wrong = append(wrong, fmt.Errorf("%s is there %d times, not %d", family, len(found), len(uses)))
		}
	}
	for h, u := range uses {
		with := labelsOf(h)
		with["uuid"], with["mig_uuid"] = id, ""
		for family, want := range u.families() {
			wrong = append(wrong, s.is(want, ofContainers+family, with))
		}
	}
	sum := rest.memory
	for _, u := range uses {
		sum += u.memory
	}
	with := labelsOf(node.Holder{})
	with["uuid"], with["mig_uuid"] = id, ""
	wrong = append(wrong, s.is(sum, "nvidia_gpu_memory_used_bytes", with))
	for family, want := range rest.families() {
		wrong = append(wrong, s.is(want, ofNobody+family, with))
	}
	return errors.Join(wrong...)
}

// unused says where a scrape is wrong about a GPU without a process: of none there is no utilisation.
func unused(s scrape, id string) error {
	wrong := []error{s.is(0, ofNobody+"memory_used_bytes", labels{"uuid": id}), s.is(0, ofNobody+"processes", labels{"uuid": id})}
	if found := families(s, ofContainers, ofNobody); len(found) != 2 {
		wrong = append(wrong, fmt.Errorf("nobody uses %s, and there are %q", id, found))
	}
	return errors.Join(wrong...)
}

// families of a scrape that begin with one of these.
func families(s scrape, beginnings ...string) []string {
	found := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		if slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(name, b) }) {
			found = append(found, name)
		}
	}
	return found
}

// sharing is what the shared GPU's tests have: pods on it, and who uses how much.
type sharing struct {
	left, right node.Pod // right has two containers that hold a replica each, and one that holds none
	uses        map[node.Holder]use
	rest        use
}

// GPU memory in use by no process is the driver's own.
const driversOwn = 512 * mebibyte

// shared has the pods run, and the driver tell what their processes use.
func shared(ctx context.Context, t *testing.T, n *node.Node, m *machine) sharing {
	t.Helper()
	s := sharing{left: asks("left", gpu, 1), right: asks("right", gpu, 1), uses: map[node.Holder]use{}}
	s.left.Containers[0].Args = []string{"family", "1"}
	s.right.Containers = append(s.right.Containers, node.Container{Name: "second", Limits: map[string]int{gpu: 1}}, node.Container{Name: "helper"})
	for _, pod := range []node.Pod{s.left, s.right} {
		run(ctx, t, n, pod)
		listed(ctx, t, n, pod)
	}
	s.uses[holder(s.left)] = use{memory: 3072 * mebibyte, sm: .5, controller: .25, enc: .25, processes: 2}
	s.uses[holder(s.right)] = use{memory: 4096 * mebibyte, sm: .25, decoder: .5, processes: 1}
	s.uses[second(s.right)] = use{memory: 256 * mebibyte, processes: 1}
	s.rest = use{memory: driversOwn + (1024+64)*mebibyte, sm: .25, processes: 2}
	stray, err := n.Exec("stray", []string{"sleep", "infinity"})
	if err != nil {
		t.Fatal(err)
	}
	lefts := processes(ctx, t, n, s.left, "main", 2)
	m.set(t, fmt.Sprintf("gpu 0 memory_used %d", (3072+4096+256+1024+64)*mebibyte+driversOwn),
		process(lefts[0], 1024, "sm 25 mem 25 enc 25 dec 0"),
		process(lefts[1], 2048, "sm 25 mem 0 enc 0 dec 0"),
		process(processes(ctx, t, n, s.right, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"),
		process(processes(ctx, t, n, s.right, "second", 1)[0], 256, ""),
		process(processes(ctx, t, n, s.right, "helper", 1)[0], 64, "type graphics"),
		process(numbered(t, n, stray.PID), 1024, "sm 25 mem 0 enc 0 dec 0"))
	return s
}

func second(pod node.Pod) node.Holder {
	h := holder(pod)
	h.Container = "second"
	return h
}

// process is the line of one that uses GPU 0.
func process(pid, mebibytes int, more string) string {
	return strings.TrimSpace(fmt.Sprintf("gpu 0 process %d %d %s", pid, mebibytes*mebibyte, more))
}

// processes waits until a container has so many, and returns what they are called in the node.
func processes(ctx context.Context, t *testing.T, n *node.Node, pod node.Pod, container string, want int) []int {
	t.Helper()
	var pids []int
	await(ctx, t, fmt.Sprintf("container %s of pod %s has %d processes", container, pod.Name, want), func(ctx context.Context) (err error) {
		if pids, err = n.ContainerPIDs(ctx, pod, container); err != nil || len(pids) != want {
			return fmt.Errorf("it has %v: %w", pids, err)
		}
		return nil
	})
	for i, pid := range pids {
		pids[i] = numbered(t, n, pid)
	}
	return pids
}

func numbered(t *testing.T, n *node.Node, pid int) int {
	t.Helper()
	id, err := n.PIDInside(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// TestShares has two pods on one GPU, each with processes of its own, and processes on it that are nobody's.
func TestShares(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	ageKubelet(t, n)
	config := newConfig(t, n, slicing(4))
	m := newMachine(t, n, "gpus 1")
	args := []string{"--config-file=" + config.path(), "--pod-logs-dir=" + n.PodLogs()}
	d := m.start(t, n, args...)
	offers(ctx, t, n, resources{gpu: replicas(uuid(0), 4)})
	if err := unused(d.next(ctx, t), uuid(0)); err != nil {
		t.Error(err)
	}
	all := shared(ctx, t, n, m)
	s := d.next(ctx, t)
	if err := splits(s, uuid(0), all.uses, all.rest); err != nil {
		t.Error(err)
	}
	figure(t, "memory of a shared GPU", fmt.Sprintf("%.0f + %.0f + %.0f MiB of three containers, and %.0f MiB of nobody, are its %.0f MiB",
		all.uses[holder(all.left)].memory/mebibyte, all.uses[holder(all.right)].memory/mebibyte, all.uses[second(all.right)].memory/mebibyte,
		all.rest.memory/mebibyte, s.sum("nvidia_gpu_memory_used_bytes", labels{"uuid": uuid(0)})/mebibyte))
	restarts(ctx, t, n, m, d, all)
	remove(ctx, t, n, all.left)
	remove(ctx, t, n, all.right)
	oneKubelet(t, n)
}

// restarts has a container be killed and started anew: it has another id, and its process another number.
func restarts(ctx context.Context, t *testing.T, n *node.Node, m *machine, d *daemon, all sharing) {
	t.Helper()
	before, err := n.Pod(ctx, all.right)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := n.ContainerPID(ctx, all.right, "main")
	if err != nil {
		t.Fatal(err)
	}
	gone := numbered(t, n, pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "the container runs again", func(ctx context.Context) error {
		now, err := n.Pod(ctx, all.right)
		if err != nil {
			return err
		}
		for i, c := range now.Containers {
			if c.Name == "main" && c.State == "running" && c.ID != before.Containers[i].ID {
				return nil
			}
		}
		return fmt.Errorf("it is %+v", now.Containers)
	})
	// The driver has not noticed yet: whose the process was, nobody can tell any more.
	uses, rest := maps.Clone(all.uses), all.rest
	uses[holder(all.right)] = use{}
	rest.memory += all.uses[holder(all.right)].memory
	rest.sm, rest.decoder, rest.processes = rest.sm+.25, .5, rest.processes+1
	if err := splits(d.next(ctx, t), uuid(0), uses, rest); err != nil {
		t.Errorf("a process has ended that the driver still tells of: %v", err)
	}
	m.clear(t, fmt.Sprintf("gpu 0 process %d", gone))
	begin := time.Now()
	m.set(t, process(processes(ctx, t, n, all.right, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"))
	d.scrapeUntil(ctx, t, "the new process is its container's", func(s scrape) error { return splits(s, uuid(0), all.uses, all.rest) })
	figureOf(t, "a container was started anew and uses the GPU: its share is known after", 2*time.Second, time.Since(begin))
}
