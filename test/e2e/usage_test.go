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
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/expect"
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

func (u processUsage) plus(v processUsage) processUsage {
	return processUsage{
		memory: u.memory + v.memory, sm: u.sm + v.sm, controller: u.controller + v.controller,
		enc: u.enc + v.enc, decoder: u.decoder + v.decoder, processes: u.processes + v.processes,
	}
}

// The prefixes of families of processes.
const (
	containerPrefix    = "nvidia_gpu_container_"
	unattributedPrefix = "nvidia_gpu_unattributed_"
)

// sharedGPU is the usage of GPU 0, which containers share.
type sharedGPU struct {
	usage        map[node.OwnerKey]processUsage
	unattributed processUsage
}

// check returns an error unless a scrape has exactly this usage, by container and unattributed, and its sum as used memory.
func (g sharedGPU) check(s metricsScrape) error {
	gpu := seriesLabels{"uuid": uuid(0), "mig_uuid": ""}
	wrong, sum := []error{}, g.unattributed.memory
	for family, want := range g.unattributed.families() {
		wrong = append(wrong, s.wantCount(len(g.usage), containerPrefix+family, gpu), s.wantValue(want, unattributedPrefix+family, gpu))
	}
	for owner, u := range g.usage {
		sum += u.memory
		with := ownerLabels(owner)
		for family, want := range u.families() {
			wrong = append(wrong, s.wantValue(want, containerPrefix+family, with))
		}
	}
	return errors.Join(append(wrong, s.wantValue(sum, "nvidia_gpu_memory_used_bytes", gpu), s.checkNoOwnerExceptInfo())...)
}

// withUnattributed returns the GPU after the usage of the containers of these owners became unattributed.
func (g sharedGPU) withUnattributed(owners func(node.OwnerKey) bool) sharedGPU {
	changed := sharedGPU{usage: maps.Clone(g.usage), unattributed: g.unattributed}
	for owner, u := range g.usage {
		if owners(owner) {
			changed.usage[owner] = processUsage{}
			changed.unattributed = changed.unattributed.plus(u)
		}
	}
	return changed
}

// families returns the sorted families of a scrape with one of these prefixes.
func (s metricsScrape) families(prefixes ...string) []string {
	found := []string{}
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			found = append(found, name)
		}
	}
	return found
}

// TestShares checks the usage of two pods that share a GPU, and the unattributed usage of other processes. podgauge runs in pods with
// different access to the node: in the node's pid namespace each source of container names suffices; in other pid namespaces only the
// families of processes are missing.
func TestShares(t *testing.T) {
	n := startNode(t, node.Options{})
	config := newConfigMap(t, n, timeSlicingConfig(4))
	m := newMachine(t, n, "gpus 1")
	logs, noLogs := "--pod-logs-dir="+n.PodLogs(), "--pod-logs-dir=/nowhere"
	const links, podsAPI = "/var/log/containers", "/var/lib/kubelet/pods-api"
	deploy := func(t *testing.T, pod node.StaticPod, logs string, paths ...string) *deployedPodgauge {
		d := m.deploy(t, n, pod, paths, "--config-file="+config.path(), logs)
		waitForAllocatable(t, n, replicaIDs(uuid(0), 4)...)
		return d
	}
	d := deploy(t, node.StaticPod{Name: "all", HostPID: true}, logs, links, podsAPI)
	s := d.nextScrape(t)
	expect.NoError(t, errors.Join(s.wantValue(0, unattributedPrefix+"memory_used_bytes", nil), s.wantValue(0, unattributedPrefix+"processes", nil)))
	if found := s.families(containerPrefix, unattributedPrefix); len(found) != 2 {
		t.Errorf("families of processes without processes: got %q, want 2", found)
	}
	left, right, gpu := runSharedGPUPods(t, n, m)
	d.scrapeUntil(t, "the processes are attributed", gpu.check) // read every 5 s
	containerRestart(t, n, m, d.podgaugeProcess, right, gpu)
	full := d.nextScrape(t) // includes means between two samples
	d.removePod(t)

	// A log folder identifies only the pod. In a pod with several containers, usage is unattributed.
	podsOnly := gpu.withUnattributed(func(owner node.OwnerKey) bool { return owner.Pod == right.FullName() })
	for _, source := range []struct {
		name, logs string
		paths      []string
		want       sharedGPU
	}{
		{"links", noLogs, []string{links}, gpu},
		{"pods-api", noLogs, []string{podsAPI}, gpu},
		{"folders", logs, nil, podsOnly},
	} {
		if source.name == "pods-api" && n.KubeletVersion < "v1.37" {
			continue
		}
		t.Run("names by "+source.name, func(t *testing.T) {
			d := deploy(t, node.StaticPod{Name: source.name, HostPID: true}, source.logs, source.paths...)
			expect.NoError(t, source.want.check(d.nextScrape(t)))
			d.removePod(t)
		})
	}
	for _, pod := range []node.StaticPod{{Name: "without"}, {Name: "shared", ShareProcesses: true}} {
		t.Run("pid namespace "+pod.Name, func(t *testing.T) {
			d := deploy(t, pod, logs, links, podsAPI)
			d.scrapeUntil(t, "all other families are exported", func(s metricsScrape) error { return checkFamiliesWithoutProcesses(s, full) })
			expect.NoError(t, d.hasLogLine("processes not visible", "hostPID"))
			d.removePod(t)
		})
	}
	removePod(t, n, left)
	removePod(t, n, right)
	checkKubeletNotRestarted(t, n)
}

// checkFamiliesWithoutProcesses returns an error unless a scrape has the families of a full scrape, except for the families of processes.
func checkFamiliesWithoutProcesses(s, full metricsScrape) error {
	if found := s.families(containerPrefix, unattributedPrefix); len(found) > 0 {
		return fmt.Errorf("families of processes: got %q, want none", found)
	}
	wrong := []error{}
	for _, name := range without(full.families("nvidia_gpu_"), full.families(containerPrefix, unattributedPrefix)...) {
		wrong = append(wrong, s.wantCount(len(full.series[name]), name, nil))
	}
	return errors.Join(wrong...)
}

// deployedPodgauge is podgauge in a pod, as with a DaemonSet. It has access only to the host paths and namespaces of its pod.
type deployedPodgauge struct {
	*podgaugeProcess // Process is nil
	pod              node.StaticPod
}

// deploy runs podgauge in a pod with the name and namespaces of the argument, and waits until podgauge serves HTTP. The pod mounts these
// paths of the node, and the kubelet's folders of the device-plugin and pod-resources sockets.
func (m *simulatedMachine) deploy(t *testing.T, n *node.RealNode, pod node.StaticPod, paths []string, args ...string) *deployedPodgauge {
	t.Helper()
	command := commandLine(t, m.withStateDir(args)...)
	pod.HostNetwork, pod.Grace = true, 5*time.Second
	pod.HostPaths = slices.Concat([]string{
		"/lib", "/lib64", filepath.Dir(command[0]), m.libraryDir, // podgauge and its libraries: the image contains only testcmd
		filepath.Dir(m.scenarioFile), "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources",
	}, paths)
	env := map[string]string{"LD_LIBRARY_PATH": m.libraryDir}
	for _, variable := range m.environ() {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	pod.Containers = []node.StaticContainer{{Name: "podgauge", Command: command, Env: env}}
	runPod(t, n, pod)
	log := func() (string, error) { return containerLog(n, pod, "podgauge") }
	d := &deployedPodgauge{podgaugeProcess: newPodgaugeProcess(n, log), pod: pod}
	d.waitUntilListening(t)
	return d
}

// removePod removes podgauge's pod and checks that podgauge removed its sockets.
func (d *deployedPodgauge) removePod(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	must(t, d.n.RemovePod(ctx, d.pod))
	if left := d.sockets(t); len(left) > 0 {
		t.Errorf("podgauge's sockets after its exit: got %q, want none", left)
	}
}

// runSharedGPUPods runs a pod with a replica, a pod with two containers with a replica each and one without, and a process outside of
// containers. It adds the usage of all processes to the scenario.
func runSharedGPUPods(t *testing.T, n *node.RealNode, m *simulatedMachine) (left, right node.StaticPod, gpu sharedGPU) {
	t.Helper()
	left, right = podWithGPUs("left", 1), podWithGPUs("right", 1)
	left.Containers[0].Args = []string{"family", "1"}
	right.Containers = append(right.Containers, node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 1}}, node.StaticContainer{Name: "helper"})
	runPod(t, n, left)
	runPod(t, n, right)
	waitForOwners(t, n, left, right)
	stray, err := n.Exec("stray", []string{"sleep", "infinity"})
	must(t, err)
	const driverReserved = 512 // MiB that do not belong to a process
	pids := waitForProcesses(t, n, left, "main", 2)
	must(t, m.Set(fmt.Sprintf("gpu 0 memory_used %d", (3072+4096+256+1024+64+driverReserved)*mebibyte),
		processLine(pids[0], 1024, "sm 25 mem 25 enc 25 dec 0"),
		processLine(pids[1], 2048, "sm 25 mem 0 enc 0 dec 0"),
		processLine(waitForProcesses(t, n, right, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50"),
		processLine(waitForProcesses(t, n, right, "second", 1)[0], 256, ""),
		processLine(waitForProcesses(t, n, right, "helper", 1)[0], 64, "type graphics"),
		processLine(pidInside(t, n, stray.PID), 1024, "sm 25 mem 0 enc 0 dec 0")))
	second := mainContainer(right)
	second.Container = "second"
	gpu.usage = map[node.OwnerKey]processUsage{
		mainContainer(left):  {memory: 3072 * mebibyte, sm: .5, controller: .25, enc: .25, processes: 2},
		mainContainer(right): {memory: 4096 * mebibyte, sm: .25, decoder: .5, processes: 1},
		second:               {memory: 256 * mebibyte, processes: 1},
	}
	gpu.unattributed = processUsage{memory: (driverReserved + 1024 + 64) * mebibyte, sm: .25, processes: 2}
	return left, right, gpu
}

func processLine(pid, mebibytes int, more string) string {
	return strings.TrimSpace(fmt.Sprintf("gpu 0 process %d %d %s", pid, mebibytes*mebibyte, more))
}

// waitForProcesses waits until a container has this number of processes, and returns their ids in the node's pid namespace.
func waitForProcesses(t *testing.T, n *node.RealNode, pod node.StaticPod, container string, want int) []int {
	t.Helper()
	var pids []int
	await(t, fmt.Sprintf("container %s of pod %s has %d processes", container, pod.Name, want), func(ctx context.Context) (err error) {
		if pids, err = n.ContainerPIDs(ctx, pod, container); err != nil || len(pids) != want {
			return fmt.Errorf("processes: got %v, %w", pids, err)
		}
		return nil
	})
	for i, pid := range pids {
		pids[i] = pidInside(t, n, pid)
	}
	return pids
}

// containerRestart kills a container of the pod. After the restart, the container and its process have new ids.
func containerRestart(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, pod node.StaticPod, gpu sharedGPU) {
	t.Helper()
	pid := mainPID(t, n, pod)
	gone := pidInside(t, n, pid)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	await(t, "the container runs again", func(ctx context.Context) error {
		now, err := n.ContainerPID(ctx, pod, "main")
		if err == nil && now == pid {
			err = errors.New("the old process still runs")
		}
		return err
	})
	// The driver still reports the ended process, whose owner can no longer be determined.
	ended := gpu.withUnattributed(func(owner node.OwnerKey) bool { return owner == mainContainer(pod) })
	d.scrapeUntil(t, "the driver reports an ended process", ended.check)
	must(t, m.Clear(fmt.Sprintf("gpu 0 process %d", gone)))
	begin := time.Now()
	must(t, m.Set(processLine(waitForProcesses(t, n, pod, "main", 1)[0], 4096, "sm 25 mem 0 enc 0 dec 50")))
	d.scrapeUntil(t, "the new process is attributed", gpu.check)
	measureDurations(t, "new process of a restarted container → attributed", 7*time.Second, time.Since(begin)) // read every 5 s
}

// replicaIDs returns the ids of a GPU's replicas.
func replicaIDs(id string, n int) []string {
	all := []string{}
	for i := range n {
		all = append(all, fmt.Sprintf("%s::%d", id, i))
	}
	return all
}

// configMapFile is a file of a ConfigMap as the kubelet mounts it: a link through ..data, which is replaced by a rename.
type configMapFile struct {
	dir     string
	version int
}

func newConfigMap(t *testing.T, n *node.RealNode, content string) *configMapFile {
	t.Helper()
	dir, err := os.MkdirTemp(n.Logs, "config-")
	must(t, err)
	c := &configMapFile{dir: dir}
	must(t, os.Symlink("..data/config.yaml", c.path()))
	c.write(t, content)
	return c
}

func (c *configMapFile) path() string { return filepath.Join(c.dir, "config.yaml") }

// write replaces the content as the kubelet does.
// https://github.com/kubernetes/kubernetes/blob/master/pkg/volume/util/atomic_writer.go
func (c *configMapFile) write(t *testing.T, content string) {
	t.Helper()
	c.version++
	version, fresh := fmt.Sprintf("..version-%d", c.version), filepath.Join(c.dir, "..data_tmp")
	must(t, os.Mkdir(filepath.Join(c.dir, version), 0o755))
	must(t, os.WriteFile(filepath.Join(c.dir, version, "config.yaml"), []byte(content), 0o644))
	must(t, os.Symlink(version, fresh))
	must(t, os.Rename(fresh, filepath.Join(c.dir, "..data")))
	must(t, os.RemoveAll(filepath.Join(c.dir, fmt.Sprintf("..version-%d", c.version-1))))
}

// timeSlicingConfig returns a config with this number of replicas of each GPU, and more lines of timeSlicing.
func timeSlicingConfig(replicas int, more ...string) string {
	text := "version: v1\nsharing:\n  timeSlicing:\n"
	for _, line := range more {
		text += "    " + line + "\n"
	}
	return text + fmt.Sprintf("    resources:\n    - {name: %s, replicas: %d}\n", gpuResource, replicas)
}

// TestTimeSlicing checks pods that share GPUs, with each policy, and changes of the config.
func TestTimeSlicing(t *testing.T) {
	n := startNode(t, node.Options{})
	t.Run("replicas", func(t *testing.T) { replicasOfOneGPU(t, n) })
	t.Run("distinct", func(t *testing.T) { distinctPolicy(t, n) })
	t.Run("changes", func(t *testing.T) { configChanges(t, n) })
}

// replicasOfOneGPU checks four pods that share a GPU, and the rejection of pods that request too many replicas.
func replicasOfOneGPU(t *testing.T, n *node.RealNode) {
	config := newConfigMap(t, n, timeSlicingConfig(4, "failRequestsGreaterThanOne: true"))
	d := newMachine(t, n, "gpus 1").start(t, n, "--config-file="+config.path())
	waitForAllocatable(t, n, replicaIDs(uuid(0), 4)...)
	runRejectedPod(t, n, podWithGPUs("greedy", 2), "UnexpectedAdmissionError", "is shared: a container can request one such device, not 2", uuid(0)+"::")
	d.scrapeUntil(t, "the rejection is counted", func(s metricsScrape) error { return checkRejection(s, "too_many") })
	expect.NoError(t, d.hasLogLine("container rejected", uuid(0)+"::", "not 2"))
	pods := runPodsWithReplicas(t, n, 4)
	expect.NoError(t, checkSharedGPU(d.nextScrape(t), waitForOwners(t, n, pods...)))
	runRejectedPod(t, n, podWithGPUs("fifth", 1), "UnexpectedAdmissionError", "Requested: 1, Available: 0")
	for _, pod := range pods {
		removePod(t, n, pod)
	}
	d.scrapeUntil(t, "the GPU is idle", func(s metricsScrape) error { return checkSharedGPU(s, nil) })
	d.stop(t)
	waitForAllocatable(t, n)
}

// checkRejection returns an error unless one rejection is counted, with this reason.
func checkRejection(s metricsScrape, reason string) error {
	return errors.Join(checkRejections(s, 1), s.wantValue(1, "podgauge_plugin_rejections_total", seriesLabels{"resource": gpuResource, "reason": reason}))
}

// checkRejections returns an error unless this number of rejections is counted.
func checkRejections(s metricsScrape, want float64) error {
	if got := s.sum("podgauge_plugin_rejections_total", nil); got != want {
		return fmt.Errorf("rejections: got %v, want %v", got, want)
	}
	return nil
}

// runPodsWithReplicas runs pods with a replica each, which must differ.
func runPodsWithReplicas(t *testing.T, n *node.RealNode, count int) (pods []node.StaticPod) {
	t.Helper()
	for i := range count {
		pod := podWithGPUs(fmt.Sprintf("replica-%d", i), 1)
		runPod(t, n, pod)
		gpu, _, _ := strings.Cut(waitForDevices(t, n, pod)[0], "::")
		checkVisibleDevices(t, n, pod, gpu)
		pods = append(pods, pod)
	}
	if owners := waitForOwners(t, n, pods...); len(owners) != count {
		t.Errorf("owners of replicas: got %v, want %d", owners, count)
	}
	return pods
}

// checkSharedGPU returns an error unless a scrape has these owners of replicas of GPU 0, and the GPU's own series have no owner.
func checkSharedGPU(s metricsScrape, owners map[string]node.OwnerKey) error {
	gpu := seriesLabels{"uuid": uuid(0)}
	wrong := []error{
		s.checkNoOwnerExceptInfo(), s.wantValue(float64(min(1, len(owners))), "nvidia_gpu_allocated", gpu),
		s.wantCount(len(owners), "nvidia_gpu_allocation_info", nil),
	}
	for _, family := range ownerFamilies {
		wrong = append(wrong, s.wantCount(1, family, gpu))
	}
	for replica, owner := range owners {
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", allocationLabels(replica, owner)))
	}
	return errors.Join(wrong...)
}

// allocationLabels returns the labels of the allocation of a GPU or replica.
func allocationLabels(id string, owner node.OwnerKey) seriesLabels {
	labels := ownerLabels(owner)
	labels["uuid"], _, _ = strings.Cut(id, "::")
	labels["device_id"], labels["resource"], labels["mig_uuid"] = id, gpuResource, ""
	return labels
}

// distinctPolicy checks --shared-devices-allocation-policy=distinct: a request for two replicas is rejected with one GPU, and gets
// replicas of two GPUs after a second GPU was added.
func distinctPolicy(t *testing.T, n *node.RealNode) {
	config := newConfigMap(t, n, timeSlicingConfig(3))
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--config-file="+config.path(), "--shared-devices-allocation-policy=distinct")
	waitForAllocatable(t, n, replicaIDs(uuid(0), 3)...)
	pair := podWithGPUs("pair", 2)
	runRejectedPod(t, n, pair, "UnexpectedAdmissionError", "is of the same GPU as", uuid(0)+"::")
	d.scrapeUntil(t, "the rejection is counted", func(s metricsScrape) error { return checkRejection(s, "same_gpu") })
	must(t, m.Set("gpus 2"))
	took := waitForAllocatable(t, n, slices.Concat(replicaIDs(uuid(0), 3), replicaIDs(uuid(1), 3))...)
	measureDurations(t, "new GPU → allocatable", 15*time.Second, took)
	runPod(t, n, pair)
	checkVisibleDevices(t, n, pair, strings.Join(uuids(2), ","))
	removePod(t, n, pair)
	d.stop(t)
	waitForAllocatable(t, n)
}

// configChanges configures replicas of an allocated GPU, and then one GPU without replicas. podgauge is not restarted.
func configChanges(t *testing.T, n *node.RealNode) {
	config := newConfigMap(t, n, "version: v1\n")
	d := newMachine(t, n, "gpus 2").start(t, n, "--config-file="+config.path())
	waitForAllocatable(t, n, uuids(2)...)
	old, before, gpuID := runPodWithGPU(t, n, "old")
	check := func(s metricsScrape) error {
		return s.checkOwners(uuids(2), map[string]node.OwnerKey{gpuID: mainContainer(old)})
	}
	d.scrapeUntil(t, "the owner is exported", check)
	registered := d.waitForRegistrations(t, 1)
	scrapes := watchScrapes(t, d, 200*time.Millisecond, check)

	begin := time.Now()
	config.write(t, timeSlicingConfig(2))
	// The device list keeps the allocated GPU with its health: the kubelet reports an unlisted device as healthy.
	replicas := slices.Concat(replicaIDs(uuid(0), 2), replicaIDs(uuid(1), 2))
	waitForAllocatable(t, n, slices.Sorted(slices.Values(append([]string{gpuID}, replicas...)))...)
	measureDurations(t, "new replicas while a pod has the GPU → allocatable", 3*time.Second, time.Since(begin))
	scrapes.stop(t)
	expect.Equal(t, d.waitForRegistrations(t, 1), registered, "registrations")
	pods := runPodsWithReplicas(t, n, 4)
	owners := waitForOwners(t, n, append(pods, old)...)
	s := d.nextScrape(t)
	for id, owner := range owners {
		expect.NoError(t, s.wantValue(1, "nvidia_gpu_allocation_info", allocationLabels(id, owner)))
	}
	expect.NoError(t, checkSameContainer(t.Context(), n, old, before))

	// The kubelet still has the old device list. A pod created now may be rejected, but must not get the whole GPU.
	removePod(t, n, old)
	late := podWithGPUs("late", 1)
	if status := runPodToAnyEnd(t, n, late); status.Phase != "Failed" {
		t.Errorf("devices of a pod beside four pods with all replicas: got %q, want none", waitForDevices(t, n, late))
	}
	must(t, n.DeletePod(late))
	waitForAllocatable(t, n, replicas...)

	// Allocated replicas stay on the device list. The whole GPU is allocatable only after the end of its replicas' allocations.
	removePod(t, n, pods[0])
	owners = waitForOwners(t, n, pods[1:]...)
	waitForAllocatable(t, n, replicas...)
	config.write(t, "version: v1\npodgauge:\n  select:\n    include: [1]\n")
	must(t, d.Signal(syscall.SIGHUP))
	took := waitForAllocatable(t, n, slices.Sorted(maps.Keys(owners))...)
	measureDurations(t, "SIGHUP → new config at the kubelet", 500*time.Millisecond, took)
	left := []string{uuid(1)}
	for _, pod := range pods[1:] {
		if id := waitForDevices(t, n, pod)[0]; strings.HasPrefix(id, uuid(1)) {
			removePod(t, n, pod)
		} else {
			left = append(left, id)
		}
	}
	waitForAllocatable(t, n, slices.Sorted(slices.Values(left))...)
	checkKubeletNotRestarted(t, n)
}
