package e2e

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/helpers/deviceplugin"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// TestAllocation checks the path from the device list and a pod's allocation to labels in Prometheus, with a kubelet that is not backdated.
func TestAllocation(t *testing.T) {
	n := newNode(t, node.Options{})
	makeNodes(t, n)
	d := newMachine(t, n).start(t, n, "--pass-device-specs")
	d.waitUntilListening(t)
	var kubeletStart time.Time
	took := measureRegistration(t, n, func() {
		startKubelet(t, n)
		kubeletStart = time.Now()
	}, uuids(defaultGPUs)...)
	measureDurations(t, "kubelet socket → registered", time.Second, took)
	prometheus := startPrometheus(t, n)

	pod, _, gpuID := runPodWithGPU(t, n, "train")
	owners := map[string]node.OwnerKey{gpuID: mainContainer(pod)}
	if err := d.nextScrape(t).checkOwners([]string{gpuID}, owners); err != nil {
		t.Errorf("first scrape after the pod's allocation: %v", err)
	}
	checkVisibleDevices(t, n, pod, gpuID)
	checkDeviceNodes(t, n, pod, fmt.Sprintf("nvidia%d", indexOf(t, gpuID)), "nvidiactl")
	awaitWithin(t, 90*time.Second, "the other GPUs are exported as idle", func(ctx context.Context) error {
		s, err := d.scrape(ctx)
		if err != nil {
			return err
		}
		// Before that, their owner is unknown, and no series may have a wrong owner.
		if err := s.checkNoWrongOwner(owners); err != nil {
			return node.StopRetrying(err)
		}
		return s.checkOwners(uuids(defaultGPUs), owners)
	})
	measureDurations(t, "kubelet and podgauge started → idle GPUs exported", 65*time.Second, time.Since(kubeletStart))
	checkPrometheus(t, prometheus, owners)
}

// makeNodes creates the driver's device nodes.
func makeNodes(t *testing.T, n *node.RealNode) {
	t.Helper()
	script := "mknod /dev/nvidiactl c 195 255\n"
	for i := range defaultGPUs {
		script += fmt.Sprintf("mknod /dev/nvidia%d c 195 %d\n", i, i)
	}
	_, err := n.Shell(t.Context(), script)
	must(t, err)
}

// checkDeviceNodes checks that a running container has exactly these device nodes of the driver, sorted.
func checkDeviceNodes(t *testing.T, n *node.RealNode, pod node.StaticPod, want ...string) {
	t.Helper()
	dev := fmt.Sprintf("/proc/%d/root/dev", mainPID(t, n, pod))
	got := []string{}
	for _, pattern := range []string{"nvidia*[0-9l]", "nvidia-caps/*"} {
		found, err := filepath.Glob(filepath.Join(dev, pattern))
		must(t, err)
		for _, path := range found {
			name, err := filepath.Rel(dev, path)
			must(t, err)
			got = append(got, name)
		}
	}
	slices.Sort(got)
	expect.EqualSlices(t, got, want, "device nodes of pod", pod.Name)
}

// checkPrometheus waits until Prometheus has the expected owners and checks that no other labels exist. Prometheus drops empty labels.
func checkPrometheus(t *testing.T, p *node.PrometheusServer, owners map[string]node.OwnerKey) {
	t.Helper()
	await(t, "Prometheus has the expected owners", func(ctx context.Context) error {
		wrong := []error{}
		for _, family := range ownerFamilies {
			samples, err := p.Query(ctx, family)
			if err != nil {
				return err
			}
			if len(samples) != defaultGPUs {
				wrong = append(wrong, fmt.Errorf("number of series %s: got %d, want %d", family, len(samples), defaultGPUs))
			}
			for _, sample := range samples {
				for name, want := range ownerLabels(owners[string(sample.Metric["uuid"])]) {
					if got := string(sample.Metric[model.LabelName(name)]); got != want {
						wrong = append(wrong, fmt.Errorf("label %s: got %v, want %q", name, sample.Metric, want))
					}
				}
			}
		}
		return errors.Join(wrong...)
	})
	for _, never := range []string{
		`{exported_pod!=""}`, `{exported_namespace!=""}`, `{exported_container!=""}`, `{__name__=~"nvidia_gpu_.*",pod="podgauge"}`,
	} {
		if found, err := p.Query(t.Context(), never); err != nil || len(found) > 0 {
			t.Errorf("query %s: got %v, %v, want no series", never, found, err)
		}
	}
}

// TestSharedDevices checks the metrics beside another device plugin that lists replicas, such as NVIDIA's with time-slicing.
func TestSharedDevices(t *testing.T) {
	const shared = "nvidia.com/gpu.shared"
	n := startNode(t, node.Options{})
	replicas := replicaIDs(uuid(3), 2)
	servePlugin(t, n, "shared.sock", shared, deviceplugin.Healthy(replicas...)...)
	waitForResources(t, n, idsByResource{shared: replicas})
	d := newMachine(t, n).start(t, n, "--device-plugin=false")
	d.waitUntilListening(t)

	left, right := podWithResource("left", shared, 1), podWithResource("right", shared, 1)
	runPod(t, n, left)
	runPod(t, n, right)
	owners := waitForOwners(t, n, left, right)
	s := d.nextScrape(t)
	wrong := []error{
		s.wantValue(1, "nvidia_gpu_allocated", seriesLabels{"uuid": uuid(3)}), s.wantValue(0, "nvidia_gpu_allocated", seriesLabels{"uuid": uuid(4)}),
		s.checkNoOwnerExceptInfo(),
	}
	for id, owner := range owners {
		labels := ownerLabels(owner)
		labels["uuid"], labels["device_id"], labels["resource"], labels["mig_uuid"] = uuid(3), id, shared, ""
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_allocation_info", labels))
	}
	expect.NoError(t, errors.Join(wrong...))
	if sockets := d.sockets(t); len(sockets) > 0 {
		t.Errorf("sockets without a device plugin: got %q, want none", sockets)
	}
}

// TestOwners checks the owners of short-lived pods, ended pods, and pods with two containers. TestChurn checks their energy.
func TestOwners(t *testing.T) {
	n := startNode(t, node.Options{})
	d := newMachine(t, n).start(t, n)
	waitForAllocatable(t, n, uuids(defaultGPUs)...)

	// A pod that ran for 2 s between two scrapes.
	brief := podWithGPUs("brief", 1)
	brief.RestartPolicy = "Never"
	brief.Containers[0].Args = []string{"sleep", "2s"}
	begin := time.Now()
	runPod(t, n, brief)
	gpuID := waitForDevices(t, n, brief)[0]
	waitForPodEnd(t, n, brief)
	lived := time.Since(begin)
	waitUntil(t, begin.Add(15*time.Second))
	s, err := d.scrape(t.Context())
	must(t, err)
	with := ownerLabels(mainContainer(brief))
	with["uuid"], with["mig_uuid"] = gpuID, ""
	seen, err := s.value(familyLastSeen, with)
	must(t, err)
	if at := unixTime(seen); at.Before(begin) || at.After(begin.Add(lived)) {
		t.Errorf("last-seen time: got %s after the pod's creation, want at most %s", at.Sub(begin), lived)
	}
	printMeasurement(t, "last-seen time of a pod that ran for 2 s between scrapes", formatSeconds(unixTime(seen).Sub(begin))+" after its creation")
	expect.NoError(t, s.checkOwners(uuids(defaultGPUs), nil), "after the pod's end")
	must(t, n.DeletePod(brief))

	// A pod with one GPU for its first container and two for the second.
	pair := podWithGPUs("pair", 1)
	pair.Containers = append(pair.Containers, node.StaticContainer{Name: "second", Limits: map[string]int{gpuResource: 2}})
	runPod(t, n, pair)
	owners := waitForOwners(t, n, pair)
	expect.NoError(t, d.nextScrape(t).checkOwners(uuids(defaultGPUs), owners))
	removePod(t, n, pair)
	s = d.nextScrape(t)
	expect.NoError(t, s.checkOwners(uuids(defaultGPUs), nil))
	expect.NoError(t, s.wantCount(len(owners), familyLastSeen, seriesLabels{"pod": pair.FullName()}))
}

// TestPreferredPair checks allocations with pairs of GPUs connected by NVLink, and one GPU without a link. A pod with two GPUs gets a pair.
// A pod with one GPU gets the GPU without a link, also if a GPU falls off the bus without an Xid: calls about no GPU then fail as well.
func TestPreferredPair(t *testing.T) {
	n := startNode(t, node.Options{})
	pairs := [][2]int{{0, 5}, {1, 4}, {2, 6}} // across the CPU sockets, so that only the links favor the pairs
	const unlinked = 3
	lines := []string{"gpus 7", "gpu * link 0-17 none"}
	for _, pair := range pairs {
		lines = append(lines, fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[0], pair[1]), fmt.Sprintf("gpu %d link 0-3 gpu %d", pair[1], pair[0]))
	}
	m := newMachine(t, n, lines...)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(7)...)
	waitForLinks(t, m)
	checkAllocations(t, n, []int{unlinked}, []int{0, 5}, []int{1} /* only pairs are left */, []int{4}, []int{2, 6})

	// If a GPU of a pair is lost, the other GPU is preferred for a pod with one GPU.
	begin := time.Now()
	must(t, m.Set("gpu 4 lost"))
	others := without(uuids(7), uuid(4))
	waitForAllocatable(t, n, others...)
	measureDurations(t, "GPU lost without an Xid → not allocatable", 5*time.Second, time.Since(begin))
	checkAllocations(t, n, []int{0, 5}, []int{1})
	d.stop(t)
	waitForAllocatable(t, n)
	d = m.start(t, n)
	waitForAllocatable(t, n, others...)
	waitForLinks(t, m)
	checkAllocations(t, n, []int{0, 5}, []int{1}, []int{2, 6})
	s := d.nextScrape(t)
	expect.NoError(t, errors.Join(s.checkOwners(others, nil), checkRejections(s, 0)))
	if lines := d.logLines(t, "level=ERROR"); len(lines) > 0 {
		t.Errorf("podgauge's errors: got %q, want none", lines)
	}
	must(t, m.Clear("gpu 4 lost"))
	measureDurations(t, "GPU lost at podgauge's start is back → allocatable", 15*time.Second, waitForAllocatable(t, n, uuids(7)...))
}

// waitForLinks waits until podgauge has read all links.
func waitForLinks(t *testing.T, m *simulatedMachine) {
	t.Helper()
	await(t, "podgauge has read the links", func(context.Context) error {
		if m.checkedCalls(t).Count("nvmlDeviceGetTopologyCommonAncestor", 5) == 0 { // the last call is for GPUs 5 and 6
			return errors.New("nvmlDeviceGetTopologyCommonAncestor of GPU 5: got no call")
		}
		return nil
	})
}

// checkAllocations runs pods one after another, checks that each gets exactly the GPUs with these indices, and removes the pods.
func checkAllocations(t *testing.T, n *node.RealNode, want ...[]int) {
	t.Helper()
	pods := []node.StaticPod{}
	for i, gpus := range want {
		pod := podWithGPUs(fmt.Sprintf("pod-%d", i), len(gpus))
		runPod(t, n, pod)
		pods = append(pods, pod)
		got := []int{}
		for _, id := range waitForDevices(t, n, pod) {
			got = append(got, indexOf(t, id))
		}
		expect.EqualSlices(t, got, gpus, "GPUs of pod", i)
	}
	for _, pod := range pods {
		removePod(t, n, pod)
	}
}

// TestTopologyManager checks that the kubelet allocates CPUs and GPUs of a container on one NUMA node, or rejects the pod. The node
// simulates two NUMA nodes for the kubelet and podgauge.
func TestTopologyManager(t *testing.T) {
	skipWithoutNUMA(t)
	n := newNode(t, node.Options{KubeletConfig: map[string]any{
		"topologyManagerPolicy": "single-numa-node", "cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
	}})
	m := newMachine(t, n, "gpus 4")
	simulateNUMA(t, n, map[int]int{0: 0, 1: 0, 2: 1, 3: 1})
	startKubelet(t, n)
	d := m.start(t, n)
	waitForAllocatable(t, n, uuids(4)...)

	// CPU 0 is reserved for the system, and the only CPU on the NUMA node of GPUs 0 and 1.
	aligned := podWithGPUs("aligned", 1)
	aligned.Containers[0].Limits["cpu"], aligned.Containers[0].Limits["memory"] = 1, 64<<20
	runPod(t, n, aligned)
	expect.Equal(t, indexOf(t, waitForDevices(t, n, aligned)[0]), 2, "GPU of a pod with a CPU of NUMA node 1")
	if cpus := allowedCPUs(t, n, aligned); slices.Contains(cpus, "0") || len(cpus) != 1 {
		t.Errorf("CPUs of the pod: got %q, want one other than 0", cpus)
	}
	unaligned := podWithGPUs("unaligned", 3)
	runRejectedPod(t, n, unaligned, "TopologyAffinityError", "Topology locality")
	pair := podWithGPUs("pair", 2)
	runPod(t, n, pair)
	if ids := waitForDevices(t, n, pair); !slices.Equal(ids, uuids(2)) {
		t.Errorf("GPUs of a pod with two GPUs: got %q, want %q of one NUMA node", ids, uuids(2))
	}
	removePod(t, n, pair)
	// Three GPUs are unallocated, as many as the pod requests.
	runRejectedPod(t, n, unaligned, "TopologyAffinityError", "Topology locality")

	s := d.nextScrape(t)
	wrong := []error{s.checkNoWrongOwner(map[string]node.OwnerKey{uuid(2): mainContainer(aligned)}), checkRejections(s, 0)}
	for i := range 4 {
		wrong = append(wrong, s.wantValue(1, "nvidia_gpu_info", seriesLabels{"uuid": uuid(i), "numa_node": fmt.Sprint(i / 2)}))
	}
	expect.NoError(t, errors.Join(wrong...))
}

// simulateNUMA simulates two NUMA nodes, the first with CPU 0 and the second with the other CPUs, and assigns GPUs to NUMA nodes.
func simulateNUMA(t *testing.T, n *node.RealNode, numaNodes map[int]int) {
	t.Helper()
	script := `
mount -t tmpfs tmpfs /sys/devices/system/node
for id in 0 1; do
	mkdir -p /sys/devices/system/node/node$id/hugepages
	echo "Node $id MemTotal: 4194304 kB" >/sys/devices/system/node/node$id/meminfo
done
echo 10 20 >/sys/devices/system/node/node0/distance
echo 20 10 >/sys/devices/system/node/node1/distance
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
	if [ "${cpu##*/}" = cpu0 ]; then id=0; else id=1; fi
	ln -s "$cpu" /sys/devices/system/node/node$id/
done
mount -t tmpfs tmpfs /sys/bus/pci/devices
`
	for gpu, id := range numaNodes {
		pci := fmt.Sprintf("0000:%02x:00.0", 0x10+gpu) // the stand-in library's PCI address
		script += fmt.Sprintf("mkdir /sys/bus/pci/devices/%s\necho %d >/sys/bus/pci/devices/%s/numa_node\n", pci, id, pci)
	}
	_, err := n.Shell(t.Context(), script)
	must(t, err)
}

// TestPreStartCheck checks that a container's start is rejected until its GPU stops hanging, and until a leftover process of an ended
// container has released the GPU.
func TestPreStartCheck(t *testing.T) {
	n := startNode(t, node.Options{})
	m := newMachine(t, n, "gpus 1")
	d := m.start(t, n, "--pre-start-check")
	waitForAllocatable(t, n, uuids(1)...)
	const duration = "podgauge_plugin_request_duration_seconds_"
	check := seriesLabels{"method": "PreStartContainer"}
	first := podWithGPUs("first", 1)
	_, took := runPod(t, n, first)
	measureDurations(t, "--pre-start-check: pod created → running", 5*time.Second, took)
	d.scrapeUntil(t, "one check is counted", func(s metricsScrape) error {
		if count := s.sum(duration+"count", check); count != 1 {
			return fmt.Errorf("PreStartContainer calls: got %v, want 1", count)
		}
		return checkRejections(s, 0)
	})
	removePod(t, n, first)

	defer m.Clear("hang")
	waiting := startRejected(t, n, m, d, "waiting", "hang * gpu 0", uuid(0))
	s := d.scrapeUntil(t, "the rejection is counted", func(s metricsScrape) error {
		return s.wantCount(1, "podgauge_plugin_rejections_total", seriesLabels{"resource": gpuResource, "reason": "check_failed"})
	})
	calls := s.sum(duration+"count", check) - 1
	measureDurations(t, "--pre-start-check on a hanging GPU", 2200*time.Millisecond, time.Duration(s.sum(duration+"sum", check)/calls*float64(time.Second)))
	must(t, m.Clear("hang"))
	measureDurations(t, "end of the hang → container started by the kubelet's retry", 25*time.Second, waitForStart(t, n, waiting))
	expect.NoError(t, d.nextScrape(t).checkOwners(uuids(1), waitForOwners(t, n, waiting)))
	removePod(t, n, waiting)

	after := startRejected(t, n, m, d, "after", "gpu 0 process 4711 1073741824", uuid(0)+": in use by process 4711")
	must(t, m.Clear("gpu 0 process"))
	measureDurations(t, "end of a leftover process → container started", 25*time.Second, waitForStart(t, n, after))
}

// startRejected creates a pod with a fault of its GPU, and waits until the container's start was rejected and the pod's status contains the
// reason.
func startRejected(t *testing.T, n *node.RealNode, m *simulatedMachine, d *podgaugeProcess, name, fault, reason string) node.StaticPod {
	t.Helper()
	must(t, m.Set(fault))
	pod := podWithGPUs(name, 1)
	_, err := n.CreatePod(pod)
	must(t, err)
	await(t, "the pod's status has the reason", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if c := status.Containers; err != nil || len(c) == 0 || c[0].State != "waiting" || !strings.Contains(c[0].Message, reason) {
			return fmt.Errorf("pod status: got %+v, want waiting for %q, %w", status, reason, err)
		}
		return nil
	})
	if lines := d.logLines(t, "container rejected", "cannot start", reason); len(lines) == 0 {
		t.Errorf("log lines about the container rejected for %q: got none", reason)
	}
	return pod
}

// waitForStart waits until the container runs, and returns the time that this took.
func waitForStart(t *testing.T, n *node.RealNode, pod node.StaticPod) time.Duration {
	t.Helper()
	return await(t, "the container runs", func(ctx context.Context) error {
		status, err := n.Pod(ctx, pod)
		if err != nil || status.Containers[0].State != "running" {
			return fmt.Errorf("pod status: got %+v, %w", status, err)
		}
		return nil
	})
}
