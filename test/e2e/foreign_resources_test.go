package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// nicResource is a resource of another vendor's plugin.
const nicResource = "nics.test/fast"

// TestForeignResources compares the metrics of another plugin's devices, exclusive CPUs and reserved memory with the kubelet's report.
func TestForeignResources(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{KubeletConfig: map[string]any{
		"cpuManagerPolicy": "static", "reservedSystemCPUs": "0",
		"memoryManagerPolicy": "Static", "systemReserved": map[string]any{"memory": "100Mi"},
		"reservedMemory": []any{map[string]any{"numaNode": 0, "limits": map[string]any{"memory": "100Mi"}}},
	}})
	startKubelet(ctx, t, n)
	backdateKubelet(t, n)
	servePluginDevices(ctx, t, n, "nics.sock", nicResource, healthyDevice("eth-a", 0), healthyDevice("eth-b", 0, 1), healthyDevice("eth-c"))
	d := newMachine(t, n, "gpus 2").start(t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2), nicResource: {"eth-a", "eth-b", "eth-c"}})
	d.scrapeUntil(ctx, t, "metrics without allocations match the kubelet's", matchesKubelet(ctx, n))

	pinned, unpinned := podWithResource("pinned", nicResource, 2), podWithResource("unpinned", nicResource, 1)
	pinned.Containers[0].Limits["cpu"], pinned.Containers[0].Limits["memory"] = 1, 64<<20
	runPod(ctx, t, n, pinned)
	runPod(ctx, t, n, unpinned)
	waitForDevices(ctx, t, n, pinned)
	waitForDevices(ctx, t, n, unpinned)
	begin := time.Now()
	s := d.scrapeUntil(ctx, t, "metrics of the allocations match the kubelet's", matchesKubelet(ctx, n))
	measureDurations(t, "allocations of other devices, CPUs and memory → exported", 2*time.Second, time.Since(begin))
	if err := checkExclusiveCPUs(ctx, t, n, s, pinned, unpinned); err != nil {
		t.Error(err)
	}
	printMeasurement(t, "CPUs", fmt.Sprintf("%.0f allocatable, %.0f exclusive, %.0f shared; CPUs of a pod without exclusive CPUs: %q",
		s.sum("podgauge_allocatable_cpus", nil), s.sum("podgauge_container_exclusive_cpus", nil), s.sum("podgauge_shared_cpus", nil),
		allowedCPUs(ctx, t, n, unpinned)))

	// The other plugin does not register again, so the owners of its devices are only in the kubelet's checkpoint.
	if err := n.StopKubelet(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	startKubelet(ctx, t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2)})
	waitForDevices(ctx, t, n, pinned)
	begin = time.Now()
	s = d.scrapeUntil(ctx, t, "metrics after a kubelet restart match the kubelet's", matchesKubelet(ctx, n))
	measureDurations(t, "kubelet restart, other plugin not registered → its allocations exported", 15*time.Second, time.Since(begin))
	if found := findSamples(s.series["podgauge_resource_allocation_info"], seriesLabels{"resource": nicResource}); len(found) != 3 {
		t.Errorf("allocations of %s: got %v, want 3", nicResource, found)
	}
	removePod(ctx, t, n, pinned)
	removePod(ctx, t, n, unpinned)
	begin = time.Now()
	s = d.scrapeUntil(ctx, t, "metrics after the pods' end match the kubelet's", matchesKubelet(ctx, n))
	measureDurations(t, "end of these allocations → exported", 2*time.Second, time.Since(begin))
	if found := s.series["podgauge_container_exclusive_cpus"]; len(found) > 0 {
		t.Errorf("exclusive CPUs after the pods' end: got %v, want none", found)
	}
	if lines := logWarnings(t, d); len(lines) > 0 {
		t.Errorf("podgauge's warnings: got %q, want none", lines)
	}
}

// checkExclusiveCPUs checks a scrape's CPU metrics against the CPUs that the kernel allows the containers, not against the kubelet's report.
func checkExclusiveCPUs(ctx context.Context, t *testing.T, n *node.RealNode, s metricsScrape, pinned, shared node.StaticPod) error {
	t.Helper()
	wrong := []error{s.wantValue(1, "podgauge_container_exclusive_cpus", ownerLabels(mainContainer(pinned)))}
	with := ownerLabels(mainContainer(pinned))
	with["cpus"] = strings.Join(allowedCPUs(ctx, t, n, pinned), ",")
	wrong = append(wrong, s.wantValue(1, "podgauge_container_exclusive_cpus_info", with))
	for _, cpu := range allowedCPUs(ctx, t, n, shared) {
		if cpu == with["cpus"] {
			wrong = append(wrong, fmt.Errorf("exclusive CPU %s is allowed for another pod", cpu))
		}
	}
	if got := s.sum("podgauge_allocatable_cpus", nil) - s.sum("podgauge_container_exclusive_cpus", nil); got != s.sum("podgauge_shared_cpus", nil) {
		wrong = append(wrong, fmt.Errorf("allocatable minus exclusive CPUs: got %v, want %v shared CPUs", got, s.sum("podgauge_shared_cpus", nil)))
	}
	return errors.Join(wrong...)
}

// matchesKubelet returns a check that compares a scrape with the kubelet's report of all resources. The check requests a report at most
// five times a second, as the test and podgauge have a common rate limit.
func matchesKubelet(ctx context.Context, n *node.RealNode) func(s metricsScrape) error {
	var want map[string]map[string]float64
	var requestedAt time.Time
	return func(s metricsScrape) error {
		if time.Since(requestedAt) > 200*time.Millisecond {
			var err error
			if want, err = kubeletResources(ctx, n); err != nil {
				return err
			}
			requestedAt = time.Now()
		}
		wrong := []error{}
		for _, family := range resourceFamilies {
			got := map[string]float64{}
			for _, sample := range s.series[family] {
				got[formatLabels(sample.Labels)] = sample.Value
			}
			if !maps.Equal(got, want[family]) {
				wrong = append(wrong, fmt.Errorf("%s: got %v, want %v", family, got, want[family]))
			}
		}
		return errors.Join(wrong...)
	}
}

var resourceFamilies = []string{
	"podgauge_resource_allocatable_devices", "podgauge_resource_device_info", "podgauge_resource_allocation_info", "podgauge_allocatable_cpus",
	"podgauge_shared_cpus", "podgauge_container_exclusive_cpus", "podgauge_allocatable_memory_bytes", "podgauge_container_reserved_memory_bytes",
}

// formatLabels formats labels in the order of their names.
func formatLabels(l seriesLabels) string {
	text := []string{}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		text = append(text, name+"="+strconv.Quote(l[name]))
	}
	return strings.Join(text, ",")
}

// kubeletResources returns the kubelet's report as values by family and labels.
func kubeletResources(ctx context.Context, n *node.RealNode) (map[string]map[string]float64, error) {
	allocatable, err := n.AllocatableResources(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := n.ListPodResources(ctx)
	if err != nil {
		return nil, err
	}
	t := kubeletSeries{}
	t.addDevices("podgauge_resource_device_info", allocatable.Devices, seriesLabels{})
	for _, l := range t.rows["podgauge_resource_device_info"] {
		t.add("podgauge_resource_allocatable_devices", 1, seriesLabels{"resource": l["resource"], "numa_node": l["numa_node"]})
	}
	t.addMemory("podgauge_allocatable_memory_bytes", allocatable.Memory, seriesLabels{})
	exclusive := map[int64]bool{}
	for _, pod := range pods {
		for _, c := range pod.Containers {
			owner := ownerLabels(node.OwnerKey{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name})
			t.addDevices("podgauge_resource_allocation_info", c.Devices, owner)
			t.addMemory("podgauge_container_reserved_memory_bytes", c.Memory, owner)
			for _, cpu := range c.CpuIds {
				exclusive[cpu] = true
				t.add("podgauge_container_exclusive_cpus", 1, owner)
			}
		}
	}
	for _, cpu := range allocatable.CpuIds {
		t.add("podgauge_allocatable_cpus", 1, seriesLabels{})
		shared := 1.0
		if exclusive[cpu] {
			shared = 0
		}
		t.add("podgauge_shared_cpus", shared, seriesLabels{})
	}
	return t.sums, nil
}

// kubeletSeries sums values by family and labels.
type kubeletSeries struct {
	sums map[string]map[string]float64
	rows map[string][]seriesLabels
}

func (t *kubeletSeries) add(family string, value float64, l seriesLabels) {
	if t.sums == nil {
		t.sums, t.rows = map[string]map[string]float64{}, map[string][]seriesLabels{}
	}
	if t.sums[family] == nil {
		t.sums[family] = map[string]float64{}
	}
	t.sums[family][formatLabels(l)] += value
	t.rows[family] = append(t.rows[family], l)
}

// addDevices adds one series for each id. The kubelet repeats an id for each of its NUMA nodes, in any order.
func (t *kubeletSeries) addDevices(family string, all []*podresources.ContainerDevices, owner seriesLabels) {
	nodes := map[[2]string][]int64{}
	for _, d := range all {
		for _, id := range d.DeviceIds {
			key := [2]string{d.ResourceName, id}
			nodes[key] = append(nodes[key], numaNodesOf(d.Topology)...)
		}
	}
	for key, ids := range nodes {
		l := maps.Clone(owner)
		l["resource"], l["device_id"], l["numa_node"] = key[0], key[1], joinNodes(ids)
		t.add(family, 1, l)
	}
}

func (t *kubeletSeries) addMemory(family string, all []*podresources.ContainerMemory, owner seriesLabels) {
	for _, m := range all {
		l := maps.Clone(owner)
		l["type"], l["numa_node"] = m.MemoryType, joinNodes(numaNodesOf(m.Topology))
		t.add(family, float64(m.Size), l)
	}
}

func numaNodesOf(t *podresources.TopologyInfo) []int64 {
	nodes := []int64{}
	for _, n := range t.GetNodes() {
		nodes = append(nodes, n.ID)
	}
	return nodes
}

func joinNodes(nodes []int64) string {
	slices.SortFunc(nodes, cmp.Compare[int64])
	text := []string{}
	for _, n := range slices.Compact(nodes) {
		text = append(text, strconv.FormatInt(n, 10))
	}
	return strings.Join(text, ",")
}

// logWarnings returns the warnings and errors of podgauge's log.
func logWarnings(t *testing.T, d *podgaugeProcess) []string {
	t.Helper()
	return append(d.logLines(t, "level=WARN"), d.logLines(t, "level=ERROR")...)
}
