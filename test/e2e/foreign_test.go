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

// nic is a resource of another vendor's plugin.
const nic = "nics.test/fast"

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
	ageKubelet(t, n)
	offerDevices(ctx, t, n, "nics.sock", nic, device("eth-a", 0), device("eth-b", 0, 1), device("eth-c"))
	d := newMachine(t, n, "gpus 2").start(t, n)
	offers(ctx, t, n, resources{gpu: uuids(2), nic: {"eth-a", "eth-b", "eth-c"}})
	d.scrapeUntil(ctx, t, "nothing is held", agrees(ctx, n))

	pinned, loose := asks("pinned", nic, 2), asks("loose", nic, 1)
	pinned.Containers[0].Limits["cpu"], pinned.Containers[0].Limits["memory"] = 1, 64<<20
	run(ctx, t, n, pinned)
	run(ctx, t, n, loose)
	gets(ctx, t, n, pinned)
	gets(ctx, t, n, loose)
	begin := time.Now()
	s := d.scrapeUntil(ctx, t, "what is held is shown", agrees(ctx, n))
	figureOf(t, "another plugin's devices, exclusive processors and reserved memory are shown as the kubelet says, after", 2*time.Second, time.Since(begin))
	if err := holdsProcessor(ctx, t, n, s, pinned, loose); err != nil {
		t.Error(err)
	}
	figure(t, "processors", fmt.Sprintf("%.0f that can be given away, %.0f exclusive, %.0f shared; a pod without runs on %q",
		s.sum("podgauge_allocatable_cpus", nil), s.sum("podgauge_container_exclusive_cpus", nil), s.sum("podgauge_shared_cpus", nil),
		processors(ctx, t, n, loose)))

	// The other plugin does not come back, and what its devices are held by is in the kubelet's checkpoint.
	if err := n.StopKubelet(ctx, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	startKubelet(ctx, t, n)
	offers(ctx, t, n, resources{gpu: uuids(2)})
	gets(ctx, t, n, pinned)
	begin = time.Now()
	s = d.scrapeUntil(ctx, t, "what is held is shown after a restart", agrees(ctx, n))
	figureOf(t, "after a kubelet's restart, by which a plugin was lost, all of that is shown as the kubelet says, after", 15*time.Second, time.Since(begin))
	if found := find(s.series["podgauge_resource_allocation_info"], labels{"resource": nic}); len(found) != 3 {
		t.Errorf("held are %v", found)
	}
	remove(ctx, t, n, pinned)
	remove(ctx, t, n, loose)
	begin = time.Now()
	s = d.scrapeUntil(ctx, t, "all is let go of", agrees(ctx, n))
	figureOf(t, "their end is shown after", 2*time.Second, time.Since(begin))
	if found := s.series["podgauge_container_exclusive_cpus"]; len(found) > 0 {
		t.Errorf("exclusive are %v", found)
	}
	if said := warnings(t, d); len(said) > 0 {
		t.Errorf("podgauge warns: %q", said)
	}
}

// holdsProcessor says where a scrape is wrong about processors, going by what the kernel lets the containers use and not by the kubelet's word.
func holdsProcessor(ctx context.Context, t *testing.T, n *node.Node, s scrape, pinned, loose node.Pod) error {
	t.Helper()
	wrong := []error{s.is(1, "podgauge_container_exclusive_cpus", labelsOf(holder(pinned)))}
	with := labelsOf(holder(pinned))
	with["cpus"] = strings.Join(processors(ctx, t, n, pinned), ",")
	wrong = append(wrong, s.is(1, "podgauge_container_exclusive_cpus_info", with))
	for _, cpu := range processors(ctx, t, n, loose) {
		if cpu == with["cpus"] {
			wrong = append(wrong, fmt.Errorf("processor %s is exclusive, and another pod runs on it", cpu))
		}
	}
	if got := s.sum("podgauge_allocatable_cpus", nil) - s.sum("podgauge_container_exclusive_cpus", nil); got != s.sum("podgauge_shared_cpus", nil) {
		wrong = append(wrong, fmt.Errorf("of the processors %v are left, and %v shared", got, s.sum("podgauge_shared_cpus", nil)))
	}
	return errors.Join(wrong...)
}

// agrees says where a scrape differs from what the kubelet answers about all resources. It is asked five times a second at most: podgauge and
// the test have one limit together.
func agrees(ctx context.Context, n *node.Node) func(s scrape) error {
	var truth map[string]map[string]float64
	var asked time.Time
	return func(s scrape) error {
		if time.Since(asked) > 200*time.Millisecond {
			var err error
			if truth, err = told(ctx, n); err != nil {
				return err
			}
			asked = time.Now()
		}
		wrong := []error{}
		for _, family := range toldFamilies {
			got := map[string]float64{}
			for _, sample := range s.series[family] {
				got[written(sample.Labels)] = sample.Value
			}
			if !maps.Equal(got, truth[family]) {
				wrong = append(wrong, fmt.Errorf("%s is %v, and the kubelet says %v", family, got, truth[family]))
			}
		}
		return errors.Join(wrong...)
	}
}

var toldFamilies = []string{
	"podgauge_resource_allocatable_devices", "podgauge_resource_device_info", "podgauge_resource_allocation_info", "podgauge_allocatable_cpus",
	"podgauge_shared_cpus", "podgauge_container_exclusive_cpus", "podgauge_allocatable_memory_bytes", "podgauge_container_reserved_memory_bytes",
}

// written are labels in one order.
func written(l labels) string {
	text := []string{}
	for _, name := range slices.Sorted(maps.Keys(l)) {
		text = append(text, name+"="+strconv.Quote(l[name]))
	}
	return strings.Join(text, ",")
}

// told is what the kubelet says, as series: by family and labels.
func told(ctx context.Context, n *node.Node) (map[string]map[string]float64, error) {
	can, err := n.AllocatableResources(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := n.List(ctx)
	if err != nil {
		return nil, err
	}
	t := telling{}
	t.devices("podgauge_resource_device_info", can.Devices, labels{})
	for _, l := range t.rows["podgauge_resource_device_info"] {
		t.put("podgauge_resource_allocatable_devices", 1, labels{"resource": l["resource"], "numa_node": l["numa_node"]})
	}
	t.memory("podgauge_allocatable_memory_bytes", can.Memory, labels{})
	exclusive := map[int64]bool{}
	for _, pod := range pods {
		for _, c := range pod.Containers {
			of := labelsOf(node.Holder{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name})
			t.devices("podgauge_resource_allocation_info", c.Devices, of)
			t.memory("podgauge_container_reserved_memory_bytes", c.Memory, of)
			for _, cpu := range c.CpuIds {
				exclusive[cpu] = true
				t.put("podgauge_container_exclusive_cpus", 1, of)
			}
		}
	}
	for _, cpu := range can.CpuIds {
		t.put("podgauge_allocatable_cpus", 1, labels{})
		shared := 1.0
		if exclusive[cpu] {
			shared = 0
		}
		t.put("podgauge_shared_cpus", shared, labels{})
	}
	return t.sums, nil
}

// telling adds series up.
type telling struct {
	sums map[string]map[string]float64
	rows map[string][]labels
}

func (t *telling) put(family string, value float64, l labels) {
	if t.sums == nil {
		t.sums, t.rows = map[string]map[string]float64{}, map[string][]labels{}
	}
	if t.sums[family] == nil {
		t.sums[family] = map[string]float64{}
	}
	t.sums[family][written(l)] += value
	t.rows[family] = append(t.rows[family], l)
}

// devices puts one series for each id: the kubelet names an id once for each of its NUMA nodes, in any order.
func (t *telling) devices(family string, all []*podresources.ContainerDevices, of labels) {
	nodes := map[[2]string][]int64{}
	for _, d := range all {
		for _, id := range d.DeviceIds {
			at := [2]string{d.ResourceName, id}
			nodes[at] = append(nodes[at], nodesOf(d.Topology)...)
		}
	}
	for at, found := range nodes {
		l := maps.Clone(of)
		l["resource"], l["device_id"], l["numa_node"] = at[0], at[1], joined(found)
		t.put(family, 1, l)
	}
}

func (t *telling) memory(family string, all []*podresources.ContainerMemory, of labels) {
	for _, m := range all {
		l := maps.Clone(of)
		l["type"], l["numa_node"] = m.MemoryType, joined(nodesOf(m.Topology))
		t.put(family, float64(m.Size), l)
	}
}

func nodesOf(t *podresources.TopologyInfo) []int64 {
	nodes := []int64{}
	for _, n := range t.GetNodes() {
		nodes = append(nodes, n.ID)
	}
	return nodes
}

func joined(nodes []int64) string {
	slices.SortFunc(nodes, cmp.Compare[int64])
	text := []string{}
	for _, n := range slices.Compact(nodes) {
		text = append(text, strconv.FormatInt(n, 10))
	}
	return strings.Join(text, ",")
}

// warnings are what podgauge's log has above what it tells of its normal life.
func warnings(t *testing.T, d *daemon) []string {
	t.Helper()
	return append(d.logged(t, "level=WARN"), d.logged(t, "level=ERROR")...)
}
