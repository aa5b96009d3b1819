package podresources

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podWithResources returns a pod whose device, CPUs, memory and claim are derived from a number.
func podWithResources(name string, i int) *api.PodResources {
	c := newContainer("main", fmt.Sprint(i))
	addResources(c, i)
	return newPodWith(name, c)
}

// formatResources formats the resources of pods as "pod: kind …", in order.
func formatResources(r device.NodeResources) (list []string) {
	for _, d := range r.Allocated.Devices {
		list = append(list, fmt.Sprintf("%s: device %s on %v", d.Pod, d.ID, d.NUMANodes))
	}
	for _, c := range r.Allocated.CPUs {
		list = append(list, fmt.Sprintf("%s: CPUs %v", c.Pod, c.CPUs))
	}
	for _, m := range r.Allocated.Memory {
		list = append(list, fmt.Sprintf("%s: %d of %s on %v", m.Pod, m.Bytes, m.Type, m.NUMANodes))
	}
	for _, c := range r.Allocated.Claims {
		list = append(list, fmt.Sprintf("%s: %s gives %s", c.Pod, c.ClaimName, c.Device))
	}
	return list
}

// expectedResources returns the resources of podWithResources.
func expectedResources(pods ...string) (want []string) {
	lines := func(line func(pod string, i int) string) {
		for _, p := range pods {
			want = append(want, line(p, int(p[len(p)-1]-'0')))
		}
	}
	lines(func(p string, i int) string { return fmt.Sprintf("%s: device %d on [%d]", p, i, i%2) })
	lines(func(p string, i int) string {
		return fmt.Sprintf("%s: CPUs [%d %d %d %d]", p, 4*i, 4*i+1, 4*i+2, 4*i+3)
	})
	lines(func(p string, i int) string {
		return fmt.Sprintf("%s: 1073741824 of hugepages-2Mi on [%d]\n%s: 8589934592 of memory on [%d]", p, i%2, p, i%2)
	})
	lines(func(p string, i int) string { return fmt.Sprintf("%s: claim-%d gives gpu-%d", p, i, i) })
	return want
}

func wantResources(t *testing.T, name string, h device.Allocations, want []string) {
	t.Helper()
	got, lines := formatResources(h.Resources), strings.Split(strings.Join(want, "\n"), "\n")
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		t.Errorf("%s: resources: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func TestResourcesOfResponse(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		if h := c.current(); !isEmpty(h.Resources) {
			t.Errorf("resources before the first response: got %+v", h.Resources)
		}
		k.stop()
		if h := c.ListAllocations(t.Context()); h.Err == nil || !isEmpty(h.Resources) {
			t.Errorf("resources without a kubelet: got %+v, %v", h.Resources, h.Err)
		}
		k.start(kubeletAgeInTests)
		k.setPods(podWithResources("b1", 1), newPod("unallocated"), podWithResources("a0", 0))
		wantResources(t, "at first", c.ListAllocations(t.Context()), expectedResources("a0", "b1"))
		whole := newPod("whole", "7")
		whole.CpuIds, whole.Memory = []int64{9, 8}, []*api.ContainerMemory{{MemoryType: "memory", Size: 5}}
		whole.Containers[0].CpuIds = []int64{9}
		k.setPods(whole)
		h := c.ListAllocations(t.Context())
		wantResources(t, "of a pod as a whole", h, []string{"whole: device 7 on []", "whole: CPUs [8 9]", "whole: CPUs [9]", "whole: 5 of memory on []"})
		if cpus := h.Resources.Allocated.CPUs; len(cpus) != 2 || cpus[0].Container != "" || cpus[1].Container != "main" {
			t.Errorf("CPUs: got %v", cpus)
		}
		k.stop()
		h = c.ListAllocations(t.Context())
		if h.Err == nil {
			t.Error("no error")
		}
		wantResources(t, "in an outage", h, []string{"whole: device 7 on []", "whole: CPUs [8 9]", "whole: CPUs [9]", "whole: 5 of memory on []"})
	})
}

// TestResourcesOfTwoPodsWithSameName lists a pod and its replacement together. Each owner has a single row per kind: two rows would be
// duplicate series.
func TestResourcesOfTwoPodsWithSameName(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		of := func(size uint64, cdi string, cpus ...int64) *api.PodResources {
			p := newPodWith("p", addClaims(newContainer("main", "7"), "mine", "example.com/gpu-0"))
			main := p.Containers[0]
			main.CpuIds, main.Memory = cpus, []*api.ContainerMemory{{MemoryType: "memory", Size: size}}
			main.DynamicResources[0].ClaimResources[0].CdiDevices[0].Name = cdi
			return p
		}
		k.setPods(of(5, "example.com/gpu=b", 4, 1), of(6, "example.com/gpu=a", 2), of(7, "example.com/gpu=b", 1))
		h := c.ListAllocations(t.Context())
		wantResources(t, "of pods with the same name", h, []string{"p: device 7 on []", "p: CPUs [1]", "p: 5 of memory on []", "p: mine gives gpu-0"})
		if again := c.ListAllocations(t.Context()); unsafe.SliceData(h.Resources.Allocated.CPUs) != unsafe.SliceData(again.Resources.Allocated.CPUs) {
			t.Error("equal rows were replaced")
		}
	})
}

func isEmpty(r device.NodeResources) bool {
	return !r.AllocatableKnown && r.Allocatable.Devices == nil && r.Allocatable.CPUs == nil && r.Allocatable.Memory == nil && len(formatResources(r)) == 0
}

// TestRestartRetainsResources lists one pod after the other. Resources of unlisted pods remain until the pod is listed, or for a minute.
func TestRestartRetainsResources(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		k.setPods(podWithResources("a0", 0), podWithResources("b1", 1), podWithResources("c2", 2), podWithResources("d3", 3))
		before := c.ListAllocations(t.Context())
		k.setPods()
		k.restart()
		time.Sleep(2 * time.Second)
		h := c.ListAllocations(t.Context())
		wantResources(t, "while no pod is listed", h, expectedResources("a0", "b1", "c2", "d3"))
		if unsafe.SliceData(h.Resources.Allocated.CPUs) != unsafe.SliceData(before.Resources.Allocated.CPUs) {
			t.Error("retained rows were replaced")
		}
		k.setPods(newPod("a0"), podWithResources("b1", 1)) // a0 no longer has resources
		wantResources(t, "with two", c.ListAllocations(t.Context()), expectedResources("b1", "c2", "d3"))
		k.setPods(podWithResources("b1", 1), podWithResources("x2", 2)) // a device has a single owner
		both := slices.DeleteFunc(expectedResources("b1", "c2", "d3", "x2"), func(line string) bool { return strings.HasPrefix(line, "c2: device") })
		wantResources(t, "after a takeover", c.ListAllocations(t.Context()), both)
		k.setPods(podWithResources("x2", 2)) // b1 was listed on this connection, and has ended
		wantResources(t, "after an end", c.ListAllocations(t.Context()), slices.DeleteFunc(both, func(line string) bool { return strings.HasPrefix(line, "b1") }))
		time.Sleep(settleTimeout)
		wantResources(t, "a minute later", c.ListAllocations(t.Context()), expectedResources("x2"))
		k.setPods(podWithResources("d3", 3))
		wantResources(t, "later", c.ListAllocations(t.Context()), expectedResources("d3"))
	})
}

func TestAllocatableResources(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		on := func(nodes ...int64) *api.TopologyInfo {
			topology := &api.TopologyInfo{}
			for _, n := range nodes {
				topology.Nodes = append(topology.Nodes, &api.NUMANode{ID: n})
			}
			return topology
		}
		k.setAllocatable(&api.AllocatableResourcesResponse{
			Devices: []*api.ContainerDevices{
				{ResourceName: gpu, DeviceIds: []string{"b"}, Topology: on(1)},
				{ResourceName: "example.com/nic", DeviceIds: []string{"n"}},
				{ResourceName: gpu, DeviceIds: []string{"a"}, Topology: on(1)},
				{ResourceName: gpu, DeviceIds: []string{"a"}, Topology: on(0)},
			},
			CpuIds: []int64{3, 1, 2},
			Memory: []*api.ContainerMemory{{MemoryType: "memory", Size: 64 << 30, Topology: on(1)}, {MemoryType: "memory", Size: 32 << 30, Topology: on(0)}},
		})
		c.ListAllocations(t.Context())
		if c.current().Resources.AllocatableKnown {
			t.Error("allocatable resources are known before the first call")
		}
		c.fetchAllocatable(t.Context())
		first := c.current().Resources
		want := "[{{  } example.com/nic n []} {{  } nvidia.com/gpu a [0 1]} {{  } nvidia.com/gpu b [1]}] [{{  } [1 2 3]}] [{{  } memory 34359738368 [0]} {{  } memory 68719476736 [1]}]"
		a := first.Allocatable
		if got := fmt.Sprint(a.Devices, a.CPUs, a.Memory); got != want || !first.AllocatableKnown || len(formatResources(first)) > 0 {
			t.Errorf("allocatable: got\n%s\nwant\n%s", got, want)
		}
		if got := fmt.Sprint(c.allocatableCounts()); got != "map[example.com/nic:1 nvidia.com/gpu:2]" {
			t.Errorf("counts: got %s", got)
		}
		k.stop()
		c.ListAllocations(t.Context())
		if r := c.current().Resources; r.AllocatableKnown || r.Allocatable.Devices != nil || r.Allocatable.CPUs != nil || r.Allocatable.Memory != nil || c.allocatableCounts() != nil {
			t.Errorf("resources in an outage: got %+v", r)
		}
		k.start(kubeletAgeInTests)
		c.ListAllocations(t.Context())
		if c.current().Resources.AllocatableKnown {
			t.Error("List alone makes allocatable resources known")
		}
		c.fetchAllocatable(t.Context())
		again := c.current().Resources
		if unsafe.SliceData(again.Allocatable.Devices) != unsafe.SliceData(first.Allocatable.Devices) || unsafe.SliceData(again.Allocatable.CPUs) != unsafe.SliceData(first.Allocatable.CPUs) || unsafe.SliceData(again.Allocatable.Memory) != unsafe.SliceData(first.Allocatable.Memory) {
			t.Error("equal rows were replaced")
		}
		k.setAllocatable(&api.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3}})
		c.fetchAllocatable(t.Context())
		if r := c.current().Resources; !r.AllocatableKnown || len(r.Allocatable.Devices) > 0 || len(r.Allocatable.Memory) > 0 || unsafe.SliceData(r.Allocatable.CPUs) != unsafe.SliceData(first.Allocatable.CPUs) || len(c.allocatableCounts()) > 0 || c.allocatableCounts() == nil {
			t.Errorf("allocatable resources of a kubelet with CPUs only: got %+v", r)
		}
		synctest.Wait()
	})
}

// TestUnchangedRowsKeepSlices lists equal resources in random order, as a kubelet does.
func TestUnchangedRowsKeepSlices(t *testing.T) {
	runScripted(t, kubeletAgeInTests, func(t *testing.T, k *scriptedKubelet, c *Client) {
		chance := rand.New(rand.NewPCG(5, 6))
		list := nodeResponse(20, 8).PodResources
		k.setPods(list...)
		first := c.ListAllocations(t.Context()).Resources
		_, changed := c.Snapshot()
		for range 20 {
			shuffled := proto.CloneOf(&api.ListPodResourcesResponse{PodResources: list}).PodResources
			chance.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			for _, p := range shuffled {
				cpus := p.Containers[0].CpuIds
				chance.Shuffle(len(cpus), func(i, j int) { cpus[i], cpus[j] = cpus[j], cpus[i] })
				slices.Reverse(p.Containers[0].Memory)
			}
			k.setPods(shuffled...)
			r := c.ListAllocations(t.Context()).Resources
			if unsafe.SliceData(r.Allocated.Devices) != unsafe.SliceData(first.Allocated.Devices) || unsafe.SliceData(r.Allocated.CPUs) != unsafe.SliceData(first.Allocated.CPUs) ||
				unsafe.SliceData(r.Allocated.Memory) != unsafe.SliceData(first.Allocated.Memory) || unsafe.SliceData(r.Allocated.Claims) != unsafe.SliceData(first.Allocated.Claims) {
				t.Fatal("equal rows were replaced")
			}
		}
		select {
		case <-changed:
			t.Error("an unchanged response was reported as a change")
		default:
		}
		copied := fmt.Sprintf("%+v", first)
		less := proto.CloneOf(&api.ListPodResourcesResponse{PodResources: list}).PodResources
		less[0].Containers[0].CpuIds = less[0].Containers[0].CpuIds[:3]
		k.setPods(less...)
		r := c.ListAllocations(t.Context()).Resources
		select {
		case <-changed:
		default:
			t.Error("a change of CPUs was not reported")
		}
		if unsafe.SliceData(r.Allocated.CPUs) == unsafe.SliceData(first.Allocated.CPUs) || unsafe.SliceData(r.Allocated.Devices) != unsafe.SliceData(first.Allocated.Devices) {
			t.Error("a change of CPUs replaced other rows")
		}
		k.setPods(nodeResponse(30, 12).PodResources...)
		c.ListAllocations(t.Context())
		if now := fmt.Sprintf("%+v", first); now != copied {
			t.Errorf("a published slice was modified: got\n%s\nwant\n%s", now, copied)
		}
	})
}
