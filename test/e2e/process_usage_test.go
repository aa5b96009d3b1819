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

// processUsage is what a container, or nobody, uses of a GPU. Ratios are in quarters, whose sums are exact.
type processUsage struct {
	memory                       float64
	sm, controller, enc, decoder float64
	processes                    float64
}

func (u processUsage) families() map[string]float64 {
	return map[string]float64{
		"memory_used_bytes": u.memory, "sm_utilization_ratio": u.sm, "memory_controller_utilization_ratio": u.controller,
		"encoder_utilization_ratio": u.enc, "decoder_utilization_ratio": u.decoder, "processes": u.processes,
	}
}

// The beginnings of the names of families that are about processes.
const (
	containerPrefix    = "nvidia_gpu_container_"
	unattributedPrefix = "nvidia_gpu_unattributed_"
)

// checkUsage says where a scrape is wrong about what containers use of a GPU, and about what is left; all together is the GPU's memory in use.
func checkUsage(s metricsScrape, id string, usage map[node.OwnerKey]processUsage, unattributed processUsage) error {
	wrong := []error{}
	for family := range unattributed.families() {
		if found := findSamples(s.series[containerPrefix+family], seriesLabels{"uuid": id}); len(found) != len(usage) {
			wrong = append(wrong, fmt.Errorf("%s is there %d times, not %d", family, len(found), len(usage)))
		}
	}
	for h, u := range usage {
		with := ownerLabels(h)
		with["uuid"], with["mig_uuid"] = id, ""
		for family, want := range u.families() {
			wrong = append(wrong, s.wantValue(want, containerPrefix+family, with))
		}
	}
	sum := unattributed.memory
	for _, u := range usage {
		sum += u.memory
	}
	with := ownerLabels(node.OwnerKey{})
	with["uuid"], with["mig_uuid"] = id, ""
	wrong = append(wrong, s.wantValue(sum, "nvidia_gpu_memory_used_bytes", with))
	for family, want := range unattributed.families() {
		wrong = append(wrong, s.wantValue(want, unattributedPrefix+family, with))
	}
	return errors.Join(wrong...)
}

// checkNoUsage says where a scrape is wrong about a GPU without a process: of none there is no utilisation.
func checkNoUsage(s metricsScrape, id string) error {
	wrong := []error{s.wantValue(0, unattributedPrefix+"memory_used_bytes", seriesLabels{"uuid": id}), s.wantValue(0, unattributedPrefix+"processes", seriesLabels{"uuid": id})}
	if found := familiesWithPrefix(s, containerPrefix, unattributedPrefix); len(found) != 2 {
		wrong = append(wrong, fmt.Errorf("nobody uses %s, and there are %q", id, found))
	}
	return errors.Join(wrong...)
}

// familiesWithPrefix of a scrape that begin with one of these.
func familiesWithPrefix(s metricsScrape, beginnings ...string) []string {
	found := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		if slices.ContainsFunc(beginnings, func(b string) bool { return strings.HasPrefix(name, b) }) {
			found = append(found, name)
		}
	}
	return found
}

// sharedGPUPods is what the shared GPU's tests have: pods on it, and who uses how much.
type sharedGPUPods struct {
	firstPod, secondPod node.StaticPod // right has two containers that hold a replica each, and one that holds none
	usage               map[node.OwnerKey]processUsage
	unattributed        processUsage
}

// GPU memory in use by no process is the driver's own.
const driverReservedBytes = 512 * mebibyte

// runSharedGPUPods has the pods run, and the driver tell what their processes use.
func runSharedGPUPods(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine) sharedGPUPods {
	t.Helper()
	s := sharedGPUPods{firstPod: podWithResource("left", gpuResource, 1), secondPod: podWithResource("right", gpuResource, 1), usage: map[node.OwnerKey]processUsage{}}
	s.firstPod.Containers[0].Args = []string{"family", "1"}
	s.secondPod.Containers = append(s.secondPod.Containers, node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 1}}, node.StaticContainer{Name: "helper"})
	for _, pod := range []node.StaticPod{s.firstPod, s.secondPod} {
		runPod(ctx, t, n, pod)
		waitForAllocation(ctx, t, n, pod)
	}
	s.usage[mainContainer(s.firstPod)] = processUsage{memory: 3072 * mebibyte, sm: .5, controller: .25, enc: .25, processes: 2}
	s.usage[mainContainer(s.secondPod)] = processUsage{memory: 4096 * mebibyte, sm: .25, decoder: .5, processes: 1}
	s.usage[secondContainer(s.secondPod)] = processUsage{memory: 256 * mebibyte, processes: 1}
	s.unattributed = processUsage{memory: driverReservedBytes + (1024+64)*mebibyte, sm: .25, processes: 2}
	stray, err := n.Exec("stray", []string{"sleep", "infinity"})
	if err != nil {
		t.Fatal(err)
	}
	lefts := waitForProcesses(ctx, t, n, s.firstPod, "main", 2)
	m.setLines(t, fmt.Sprintf("gpu 0 memory_used %d", (3072+4096+256+1024+64)*mebibyte+driverReservedBytes),
		processLine(lefts[0], 1024, "sm 25 mem 25 enc 25 dec 0"),
		processLine(lefts[1], 2048, "sm 25 mem 0 enc 0 dec 0"),
		processLine(waitForProcesses(ctx, t, n, s.secondPod, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"),
		processLine(waitForProcesses(ctx, t, n, s.secondPod, "second", 1)[0], 256, ""),
		processLine(waitForProcesses(ctx, t, n, s.secondPod, "helper", 1)[0], 64, "type graphics"),
		processLine(pidInside(t, stray.PID), 1024, "sm 25 mem 0 enc 0 dec 0"))
	return s
}

func secondContainer(pod node.StaticPod) node.OwnerKey {
	h := mainContainer(pod)
	h.Container = "second"
	return h
}

// processLine is the line of one that uses GPU 0.
func processLine(pid, mebibytes int, more string) string {
	return strings.TrimSpace(fmt.Sprintf("gpu 0 process %d %d %s", pid, mebibytes*mebibyte, more))
}

// waitForProcesses waits until a container has so many, and returns what they are called in the node.
func waitForProcesses(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, container string, want int) []int {
	t.Helper()
	var pids []int
	await(ctx, t, fmt.Sprintf("container %s of pod %s has %d processes", container, pod.Name, want), func(ctx context.Context) (err error) {
		if pids, err = n.ContainerPIDs(ctx, pod, container); err != nil || len(pids) != want {
			return fmt.Errorf("it has %v: %w", pids, err)
		}
		return nil
	})
	for i, pid := range pids {
		pids[i] = pidInside(t, pid)
	}
	return pids
}

// TestShares has two pods on one GPU, each with processes of its own, and processes on it that are nobody's.
func TestShares(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	config := newConfigMap(t, n, timeSlicingConfig(4))
	m := newMachine(t, n, "gpus 1")
	args := []string{"--config-file=" + config.path(), "--pod-logs-dir=" + n.PodLogs()}
	d := m.start(t, n, args...)
	waitForResources(ctx, t, n, idsByResource{gpuResource: replicaIDs(uuid(0), 4)})
	if err := checkNoUsage(d.nextScrape(ctx, t), uuid(0)); err != nil {
		t.Error(err)
	}
	all := runSharedGPUPods(ctx, t, n, m)
	s := d.nextScrape(ctx, t)
	if err := checkUsage(s, uuid(0), all.usage, all.unattributed); err != nil {
		t.Error(err)
	}
	printMeasurement(t, "memory of a shared GPU", fmt.Sprintf("%.0f + %.0f + %.0f MiB of three containers, and %.0f MiB of nobody, are its %.0f MiB",
		all.usage[mainContainer(all.firstPod)].memory/mebibyte, all.usage[mainContainer(all.secondPod)].memory/mebibyte, all.usage[secondContainer(all.secondPod)].memory/mebibyte,
		all.unattributed.memory/mebibyte, s.sum("nvidia_gpu_memory_used_bytes", seriesLabels{"uuid": uuid(0)})/mebibyte))
	containerRestart(ctx, t, n, m, d, all)
	removePod(ctx, t, n, all.firstPod)
	removePod(ctx, t, n, all.secondPod)
	checkKubeletNotRestarted(t, n)
}

// containerRestart has a container be killed and started anew: it has another id, and its process another number.
func containerRestart(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, all sharedGPUPods) {
	t.Helper()
	before, err := n.Pod(ctx, all.secondPod)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := n.ContainerPID(ctx, all.secondPod, "main")
	if err != nil {
		t.Fatal(err)
	}
	gone := pidInside(t, pid)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, "the container runs again", func(ctx context.Context) error {
		now, err := n.Pod(ctx, all.secondPod)
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
	uses, rest := maps.Clone(all.usage), all.unattributed
	uses[mainContainer(all.secondPod)] = processUsage{}
	rest.memory += all.usage[mainContainer(all.secondPod)].memory
	rest.sm, rest.decoder, rest.processes = rest.sm+.25, .5, rest.processes+1
	if err := checkUsage(d.nextScrape(ctx, t), uuid(0), uses, rest); err != nil {
		t.Errorf("a process has ended that the driver still tells of: %v", err)
	}
	m.clear(t, fmt.Sprintf("gpu 0 process %d", gone))
	begin := time.Now()
	m.setLines(t, processLine(waitForProcesses(ctx, t, n, all.secondPod, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"))
	d.scrapeUntil(ctx, t, "the new process is its container's", func(s metricsScrape) error { return checkUsage(s, uuid(0), all.usage, all.unattributed) })
	measureDurations(t, "a container was started anew and uses the GPU: its share is known after", 2*time.Second, time.Since(begin))
}
