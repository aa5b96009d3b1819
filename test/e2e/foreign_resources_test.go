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

// TestForeignResources has another plugin's devices, exclusive processors and reserved memory on a node, and podgauge show all of it as the
// kubelet says it.
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
	d.scrapeUntil(ctx, t, "nothing is held", matchesKubelet(ctx, n))

	pinned, loose := podWithResource("pinned", nicResource, 2), podWithResource("loose", nicResource, 1)
	pinned.Containers[0].Limits["cpu"], pinned.Containers[0].Limits["memory"] = 1, 64<<20
	runPod(ctx, t, n, pinned)
	runPod(ctx, t, n, loose)
	waitForDevices(ctx, t, n, pinned)
	waitForDevices(ctx, t, n, loose)
	begin := time.Now()
	s := d.scrapeUntil(ctx, t, "what is held is shown", matchesKubelet(ctx, n))
	measureDurations(t, "another plugin's devices, exclusive processors and reserved memory are shown as the kubelet says, after", 2*time.Second, time.Since(begin))
	if err := checkExclusiveCPUs(ctx, t, n, s, pinned, loose); err != nil {
		t.Error(err)
	}
	printMeasurement(t, "processors", fmt.Sprintf("%.0f that can be given away, %.0f exclusive, %.0f shared; a pod without runs on %q",
		s.sum("podgauge_allocatable_cpus", nil), s.sum("podgauge_container_exclusive_cpus", nil), s.sum("podgauge_shared_cpus", nil),
		allowedCPUs(ctx, t, n, loose)))

	// The other plugin does not come back, and what its devices are held by is in the kubelet's checkpoint.
	if err := n.StopKubelet(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	startKubelet(ctx, t, n)
	waitForResources(ctx, t, n, idsByResource{gpuResource: uuids(2)})
	waitForDevices(ctx, t, n, pinned)
	begin = time.Now()
	s = d.scrapeUntil(ctx, t, "what is held is shown after a restart", matchesKubelet(ctx, n))
	measureDurations(t, "after a kubelet's restart, by which a plugin was lost, all of that is shown as the kubelet says, after", 15*time.Second, time.Since(begin))
	if found := findSamples(s.series["podgauge_resource_allocation_info"], seriesLabels{"resource": nicResource}); len(found) != 3 {
		t.Errorf("held are %v", found)
	}
	removePod(ctx, t, n, pinned)
	removePod(ctx, t, n, loose)
	begin = time.Now()
	s = d.scrapeUntil(ctx, t, "all is let go of", matchesKubelet(ctx, n))
	measureDurations(t, "their end is shown after", 2*time.Second, time.Since(begin))
	if found := s.series["podgauge_container_exclusive_cpus"]; len(found) > 0 {
		t.Errorf("exclusive are %v", found)
	}
	if said := logWarnings(t, d); len(said) > 0 {
		t.Errorf("podgauge warns: %q", said)
	}
}

// checkExclusiveCPUs says where a scrape is wrong about processors, going by what the kernel lets the containers use and not by the kubelet's word.
func checkExclusiveCPUs(ctx context.Context, t *testing.T, n *node.RealNode, s metricsScrape, pinned, loose node.StaticPod) error {
	t.Helper()
	wrong := []error{s.wantValue(1, "podgauge_container_exclusive_cpus", ownerLabels(mainContainer(pinned)))}
	with := ownerLabels(mainContainer(pinned))
	with["cpus"] = strings.Join(allowedCPUs(ctx, t, n, pinned), ",")
	wrong = append(wrong, s.wantValue(1, "podgauge_container_exclusive_cpus_info", with))
	for _, cpu := range allowedCPUs(ctx, t, n, loose) {
		if cpu == with["cpus"] {
			wrong = append(wrong, fmt.Errorf("processor %s is exclusive, and another pod runs on it", cpu))
		}
	}
	if got := s.sum("podgauge_allocatable_cpus", nil) - s.sum("podgauge_container_exclusive_cpus", nil); got != s.sum("podgauge_shared_cpus", nil) {
		wrong = append(wrong, fmt.Errorf("of the processors %v are left, and %v shared", got, s.sum("podgauge_shared_cpus", nil)))
	}
	return errors.Join(wrong...)
}

// matchesKubelet says where a scrape differs from what the kubelet answers about all resources. It is asked five times a second at most: podgauge and
// the test have one limit together.
func matchesKubelet(ctx context.Context, n *node.RealNode) func(s metricsScrape) error {
	var truth map[string]map[string]float64
	var asked time.Time
	return func(s metricsScrape) error {
		if time.Since(asked) > 200*time.Millisecond {
			var err error
			if truth, err = kubeletResources(ctx, n); err != nil {
				return err
			}
			asked = time.Now()
		}
		wrong := []error{}
		for _, family := range resourceFamilies {
			got := map[string]float64{}
			for _, sample := range s.series[family] {
				got[formatLabels(sample.Labels)] = sample.Value
			}
			if !maps.Equal(got, truth[family]) {
				wrong = append(wrong, fmt.Errorf("%s is %v, and the kubelet says %v", family, got, truth[family]))
			}
		}
		return errors.Join(wrong...)
	}
}

var resourceFamilies = []string{
	"podgauge_resource_allocatable_devices", "podgauge_resource_device_info", "podgauge_resource_allocation_info", "podgauge_allocatable_cpus",
	"podgauge_shared_cpus", "podgauge_container_exclusive_cpus", "podgauge_allocatable_memory_bytes", "podgauge_container_reserved_memory_bytes",
}

// formatLabels are labels in one order.
func formatLabels(l seriesLabels) string {
	text := []string{}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		text = append(text, name+"="+strconv.Quote(l[name]))
	}
	return strings.Join(text, ",")
}

// kubeletResources is what the kubelet says, as series: by family and labels.
func kubeletResources(ctx context.Context, n *node.RealNode) (map[string]map[string]float64, error) {
	can, err := n.AllocatableResources(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := n.ListPodResources(ctx)
	if err != nil {
		return nil, err
	}
	t := kubeletSeries{}
	t.addDevices("podgauge_resource_device_info", can.Devices, seriesLabels{})
	for _, l := range t.rows["podgauge_resource_device_info"] {
		t.add("podgauge_resource_allocatable_devices", 1, seriesLabels{"resource": l["resource"], "numa_node": l["numa_node"]})
	}
	t.addMemory("podgauge_allocatable_memory_bytes", can.Memory, seriesLabels{})
	exclusive := map[int64]bool{}
	for _, pod := range pods {
		for _, c := range pod.Containers {
			of := ownerLabels(node.OwnerKey{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name})
			t.addDevices("podgauge_resource_allocation_info", c.Devices, of)
			t.addMemory("podgauge_container_reserved_memory_bytes", c.Memory, of)
			for _, cpu := range c.CpuIds {
				exclusive[cpu] = true
				t.add("podgauge_container_exclusive_cpus", 1, of)
			}
		}
	}
	for _, cpu := range can.CpuIds {
		t.add("podgauge_allocatable_cpus", 1, seriesLabels{})
		shared := 1.0
		if exclusive[cpu] {
			shared = 0
		}
		t.add("podgauge_shared_cpus", shared, seriesLabels{})
	}
	return t.sums, nil
}

// kubeletSeries adds series up.
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

// addDevices puts one series for each id: the kubelet names an id once for each of its NUMA nodes, in any order.
func (t *kubeletSeries) addDevices(family string, all []*podresources.ContainerDevices, of seriesLabels) {
	nodes := map[[2]string][]int64{}
	for _, d := range all {
		for _, id := range d.DeviceIds {
			at := [2]string{d.ResourceName, id}
			nodes[at] = append(nodes[at], numaNodesOf(d.Topology)...)
		}
	}
	for at, found := range nodes {
		l := maps.Clone(of)
		l["resource"], l["device_id"], l["numa_node"] = at[0], at[1], joinNodes(found)
		t.add(family, 1, l)
	}
}

func (t *kubeletSeries) addMemory(family string, all []*podresources.ContainerMemory, of seriesLabels) {
	for _, m := range all {
		l := maps.Clone(of)
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

// logWarnings are what podgauge's log has above what it tells of its normal life.
func logWarnings(t *testing.T, d *podgaugeProcess) []string {
	t.Helper()
	return append(d.logLines(t, "level=WARN"), d.logLines(t, "level=ERROR")...)
}
