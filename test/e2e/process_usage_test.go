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

const mebibyte = 1 << 20

// processUsage is the usage of a GPU by a container, or the unattributed usage. Ratios are multiples of 1/4, so that sums are exact.
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

// The prefixes of families of processes.
const (
	containerPrefix    = "nvidia_gpu_container_"
	unattributedPrefix = "nvidia_gpu_unattributed_"
)

// checkUsage returns an error unless a scrape has exactly this usage of a GPU, by container and unattributed, and its sum as used memory.
func checkUsage(s metricsScrape, id string, usage map[node.OwnerKey]processUsage, unattributed processUsage) error {
	wrong := []error{}
	for family := range unattributed.families() {
		if found := findSamples(s.series[containerPrefix+family], seriesLabels{"uuid": id}); len(found) != len(usage) {
			wrong = append(wrong, fmt.Errorf("number of series %s: got %d, want %d", family, len(found), len(usage)))
		}
	}
	for owner, u := range usage {
		with := ownerLabels(owner)
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

// checkNoUsage returns an error unless a scrape has the series of a GPU without processes: memory and processes, but no utilization.
func checkNoUsage(s metricsScrape, id string) error {
	with := seriesLabels{"uuid": id}
	wrong := []error{s.wantValue(0, unattributedPrefix+"memory_used_bytes", with), s.wantValue(0, unattributedPrefix+"processes", with)}
	if found := familiesWithPrefix(s, containerPrefix, unattributedPrefix); len(found) != 2 {
		wrong = append(wrong, fmt.Errorf("families of processes without processes on %s: got %q, want 2", id, found))
	}
	return errors.Join(wrong...)
}

// familiesWithPrefix returns the sorted families of a scrape with one of these prefixes.
func familiesWithPrefix(s metricsScrape, prefixes ...string) []string {
	found := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			found = append(found, name)
		}
	}
	return found
}

// sharedGPUPods contains the pods on a shared GPU and the usage of their containers.
type sharedGPUPods struct {
	firstPod, secondPod node.StaticPod // secondPod has two containers with a replica each, and one without
	usage               map[node.OwnerKey]processUsage
	unattributed        processUsage
}

// driverReservedBytes is the used GPU memory that does not belong to a process.
const driverReservedBytes = 512 * mebibyte

// runSharedGPUPods runs the pods and a process outside of containers, and adds the usage of all processes to the scenario.
func runSharedGPUPods(ctx context.Context, t *testing.T, n *node.RealNode, m *simulatedMachine) sharedGPUPods {
	t.Helper()
	s := sharedGPUPods{firstPod: podWithResource("left", gpuResource, 1), secondPod: podWithResource("right", gpuResource, 1)}
	s.usage = map[node.OwnerKey]processUsage{}
	s.firstPod.Containers[0].Args = []string{"family", "1"}
	s.secondPod.Containers = append(s.secondPod.Containers,
		node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 1}}, node.StaticContainer{Name: "helper"})
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
	pids := waitForProcesses(ctx, t, n, s.firstPod, "main", 2)
	m.setLines(t, fmt.Sprintf("gpu 0 memory_used %d", (3072+4096+256+1024+64)*mebibyte+driverReservedBytes),
		processLine(pids[0], 1024, "sm 25 mem 25 enc 25 dec 0"),
		processLine(pids[1], 2048, "sm 25 mem 0 enc 0 dec 0"),
		processLine(waitForProcesses(ctx, t, n, s.secondPod, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"),
		processLine(waitForProcesses(ctx, t, n, s.secondPod, "second", 1)[0], 256, ""),
		processLine(waitForProcesses(ctx, t, n, s.secondPod, "helper", 1)[0], 64, "type graphics"),
		processLine(pidInside(t, stray.PID), 1024, "sm 25 mem 0 enc 0 dec 0"))
	return s
}

func secondContainer(pod node.StaticPod) node.OwnerKey {
	owner := mainContainer(pod)
	owner.Container = "second"
	return owner
}

func processLine(pid, mebibytes int, more string) string {
	return strings.TrimSpace(fmt.Sprintf("gpu 0 process %d %d %s", pid, mebibytes*mebibyte, more))
}

// waitForProcesses waits until a container has this number of processes, and returns their ids in the node's pid namespace.
func waitForProcesses(ctx context.Context, t *testing.T, n *node.RealNode, pod node.StaticPod, container string, want int) []int {
	t.Helper()
	var pids []int
	await(ctx, t, fmt.Sprintf("container %s of pod %s has %d processes", container, pod.Name, want), func(ctx context.Context) (err error) {
		if pids, err = n.ContainerPIDs(ctx, pod, container); err != nil || len(pids) != want {
			return fmt.Errorf("processes: got %v, %w", pids, err)
		}
		return nil
	})
	for i, pid := range pids {
		pids[i] = pidInside(t, pid)
	}
	return pids
}

// TestShares checks the usage of two pods that share a GPU, and the unattributed usage of other processes.
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
	s := d.scrapeUntil(ctx, t, "the processes are attributed", func(s metricsScrape) error {
		return checkUsage(s, uuid(0), all.usage, all.unattributed)
	})
	memory := func(owner node.OwnerKey) float64 { return all.usage[owner].memory / mebibyte }
	printMeasurement(t, "memory of a shared GPU", fmt.Sprintf("%.0f + %.0f + %.0f MiB of three containers + %.0f MiB unattributed = %.0f MiB",
		memory(mainContainer(all.firstPod)), memory(mainContainer(all.secondPod)), memory(secondContainer(all.secondPod)),
		all.unattributed.memory/mebibyte, s.sum("nvidia_gpu_memory_used_bytes", seriesLabels{"uuid": uuid(0)})/mebibyte))
	containerRestart(ctx, t, n, m, d, all)
	removePod(ctx, t, n, all.firstPod)
	removePod(ctx, t, n, all.secondPod)
	checkKubeletNotRestarted(t, n)
}

// containerRestart kills a container. After the restart, the container and its process have new ids.
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
		return fmt.Errorf("container statuses: got %+v", now.Containers)
	})
	// The driver still reports the ended process, whose owner can no longer be determined.
	usage, rest := maps.Clone(all.usage), all.unattributed
	usage[mainContainer(all.secondPod)] = processUsage{}
	rest.memory += all.usage[mainContainer(all.secondPod)].memory
	rest.sm, rest.decoder, rest.processes = rest.sm+.25, .5, rest.processes+1
	if err := checkUsage(d.nextScrape(ctx, t), uuid(0), usage, rest); err != nil {
		t.Errorf("usage while the driver reports an ended process: %v", err)
	}
	m.clear(t, fmt.Sprintf("gpu 0 process %d", gone))
	begin := time.Now()
	m.setLines(t, processLine(waitForProcesses(ctx, t, n, all.secondPod, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"))
	d.scrapeUntil(ctx, t, "the new process is attributed", func(s metricsScrape) error { return checkUsage(s, uuid(0), all.usage, all.unattributed) })
	measureDurations(t, "new process of a restarted container → attributed", 7*time.Second, time.Since(begin)) // read every 5 s
}
