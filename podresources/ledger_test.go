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

// equipped is a pod that has a device, CPUs, memory and a claim, all of one number.
func equipped(name string, i int) *api.PodResources {
	c := container("main", fmt.Sprint(i))
	equip(c, i)
	return podOf(name, c)
}

// has lists what pods have, "pod: kind …", as the resources are ordered.
func has(r device.Resources) (list []string) {
	for _, d := range r.HeldDevices {
		list = append(list, fmt.Sprintf("%s: device %s on %v", d.Pod, d.ID, d.NUMANodes))
	}
	for _, c := range r.HeldCPUs {
		list = append(list, fmt.Sprintf("%s: CPUs %v", c.Pod, c.CPUs))
	}
	for _, m := range r.HeldMemory {
		list = append(list, fmt.Sprintf("%s: %d of %s on %v", m.Pod, m.Bytes, m.Type, m.NUMANodes))
	}
	for _, c := range r.Claims {
		list = append(list, fmt.Sprintf("%s: %s gives %s", c.Pod, c.ClaimName, c.Device))
	}
	return list
}

// equipment is what an equipped pod has.
func equipment(pods ...string) (want []string) {
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

func wantResources(t *testing.T, what string, h device.Holders, want []string) {
	t.Helper()
	got, lines := has(h.Resources), strings.Split(strings.Join(want, "\n"), "\n")
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		t.Errorf("%s resources are\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func TestResourcesOfAnAnswer(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		if h := c.known(); !isNothing(h.Resources) {
			t.Errorf("before the first answer there are %+v", h.Resources)
		}
		k.stop()
		if h := c.Owners(t.Context()); h.Err == nil || !isNothing(h.Resources) {
			t.Errorf("where there is none there are %+v, %v", h.Resources, h.Err)
		}
		k.start(age)
		k.says(equipped("b1", 1), pod("idle"), equipped("a0", 0))
		wantResources(t, "at first", c.Owners(t.Context()), equipment("a0", "b1"))
		whole := pod("whole", "7")
		whole.CpuIds, whole.Memory = []int64{9, 8}, []*api.ContainerMemory{{MemoryType: "memory", Size: 5}}
		whole.Containers[0].CpuIds = []int64{9}
		k.says(whole)
		h := c.Owners(t.Context())
		wantResources(t, "of a pod as a whole", h, []string{"whole: device 7 on []", "whole: CPUs [8 9]", "whole: CPUs [9]", "whole: 5 of memory on []"})
		if cpus := h.Resources.HeldCPUs; len(cpus) != 2 || cpus[0].Container != "" || cpus[1].Container != "main" {
			t.Errorf("the CPUs are %v", cpus)
		}
		k.stop()
		h = c.Owners(t.Context())
		if h.Err == nil {
			t.Error("an answer came")
		}
		wantResources(t, "in an outage", h, []string{"whole: device 7 on []", "whole: CPUs [8 9]", "whole: CPUs [9]", "whole: 5 of memory on []"})
	})
}

// While a pod is made anew under its name, two of that name may be listed. What an owner
// has of one kind is one row, or it would be one series twice.
func TestResourcesOfTwoPodsOfOneName(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		of := func(size uint64, cdi string, cpus ...int64) *api.PodResources {
			p := podOf("p", claims(container("main", "7"), "mine", "example.com/gpu-0"))
			main := p.Containers[0]
			main.CpuIds, main.Memory = cpus, []*api.ContainerMemory{{MemoryType: "memory", Size: size}}
			main.DynamicResources[0].ClaimResources[0].CdiDevices[0].Name = cdi
			return p
		}
		k.says(of(5, "example.com/gpu=b", 4, 1), of(6, "example.com/gpu=a", 2), of(7, "example.com/gpu=b", 1))
		h := c.Owners(t.Context())
		wantResources(t, "of one name", h, []string{"p: device 7 on []", "p: CPUs [1 2 4]", "p: 18 of memory on []", "p: mine gives gpu-0"})
		if got := h.Resources.Claims[0].CDI; !slices.Equal(got, []string{"example.com/gpu=a", "example.com/gpu=b"}) {
			t.Errorf("the CDI names are %q", got)
		}
		if again := c.Owners(t.Context()); unsafe.SliceData(h.Resources.HeldCPUs) != unsafe.SliceData(again.Resources.HeldCPUs) {
			t.Error("the same answer was made anew")
		}
	})
}

func isNothing(r device.Resources) bool {
	return !r.Known && r.Devices == nil && r.CPUs == nil && r.Memory == nil && len(has(r)) == 0
}

// After a restart a kubelet lists its pods one after the other. What was known of those
// that it has not listed stands until it has, or others have the same, or it is a minute
// since.
func TestResourcesStandAfterARestart(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		k.says(equipped("a0", 0), equipped("b1", 1), equipped("c2", 2), equipped("d3", 3))
		before := c.Owners(t.Context())
		k.says()
		k.restart()
		time.Sleep(2 * time.Second)
		h := c.Owners(t.Context())
		wantResources(t, "while nobody is listed", h, equipment("a0", "b1", "c2", "d3"))
		if unsafe.SliceData(h.Resources.HeldCPUs) != unsafe.SliceData(before.Resources.HeldCPUs) {
			t.Error("what stands was made anew")
		}
		k.says(pod("a0"), equipped("b1", 1)) // a0 has nothing any more
		wantResources(t, "with two", c.Owners(t.Context()), equipment("b1", "c2", "d3"))
		k.says(equipped("b1", 1), equipped("x2", 2)) // which c2 had
		// Memory has no name by which to know it again, and a claim may be shared.
		left := []string{"c2: 1073741824 of hugepages-2Mi on [0]", "c2: 8589934592 of memory on [0]", "c2: claim-2 gives gpu-2"}
		wantResources(t, "with one in another's place", c.Owners(t.Context()), append(equipment("b1", "d3", "x2"), left...))
		k.says(equipped("x2", 2)) // b1 was listed by this one, and is over
		wantResources(t, "with one that ended", c.Owners(t.Context()), append(equipment("d3", "x2"), left...))
		time.Sleep(settleAfter)
		wantResources(t, "a minute later", c.Owners(t.Context()), equipment("x2"))
		k.says(equipped("d3", 3))
		wantResources(t, "later", c.Owners(t.Context()), equipment("d3"))
	})
}

// To some plugins each MiB of memory is a device. Compared one by one these take a minute,
// and each flight of the first one would.
func TestCountlessDevicesStandAfterARestart(t *testing.T) {
	const each = 60000
	now := time.Now()
	answer := func(pods ...string) (g given, names []podName) {
		for _, p := range pods {
			for i := range each {
				of := device.ResourceDevice{Resource: "example.com/gpu-memory", ID: fmt.Sprint(p, "-", i)}
				g.devices = append(g.devices, device.HeldDevice{Owner: owner(p), ResourceDevice: of})
			}
			names = append(names, podName{owner(p).Namespace, p})
		}
		return g, names
	}
	var l ledger
	g, pods := answer("a", "b")
	l.take(&g, pods, link{connected: now.Add(-time.Hour)}, false)
	g, pods = answer("a")
	if l.take(&g, pods, link{connected: now}, true) || len(l.held.HeldDevices) != 2*each {
		t.Errorf("of %d devices %d stand", 2*each, len(l.held.HeldDevices))
	}
}

// A part of a pod's CPUs may be another's by now, and several pods may share a claim.
func TestResourcesInPartAndShared(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		share := func(name, claim, share string) *api.PodResources {
			p := pod(name)
			equip(p.Containers[0], 0)
			d := p.Containers[0].DynamicResources[0]
			d.ClaimName, d.ClaimResources[0].ShareId = claim, &share
			p.Containers[0].CpuIds, p.Containers[0].Memory = nil, nil
			return p
		}
		cpus := pod("cpus")
		cpus.Containers[0].CpuIds = []int64{1, 2, 3}
		k.says(cpus, share("a", "one", ""), share("b", "one", ""), share("c", "other", "s"))
		c.Owners(t.Context())
		next := pod("next")
		next.Containers[0].CpuIds = []int64{2, 4}
		k.says(next, share("a", "one", ""))
		k.restart()
		wantResources(t, "after a restart", c.Owners(t.Context()),
			[]string{"cpus: CPUs [1 3]", "next: CPUs [2 4]", "a: one gives gpu-0", "b: one gives gpu-0", "c: other gives gpu-0"})
		k.says(share("d", "new", ""))
		wantResources(t, "when it is another's", c.Owners(t.Context()), []string{"cpus: CPUs [1 3]", "c: other gives gpu-0", "d: new gives gpu-0"})
	})
}

func TestAllocatableResources(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		on := func(nodes ...int64) *api.TopologyInfo {
			topology := &api.TopologyInfo{}
			for _, n := range nodes {
				topology.Nodes = append(topology.Nodes, &api.NUMANode{ID: n})
			}
			return topology
		}
		k.gives(&api.AllocatableResourcesResponse{
			Devices: []*api.ContainerDevices{
				{ResourceName: gpu, DeviceIds: []string{"b"}, Topology: on(1)},
				{ResourceName: "example.com/nic", DeviceIds: []string{"n"}},
				{ResourceName: gpu, DeviceIds: []string{"a"}, Topology: on(1)},
				{ResourceName: gpu, DeviceIds: []string{"a"}, Topology: on(0)},
			},
			CpuIds: []int64{3, 1, 2},
			Memory: []*api.ContainerMemory{{MemoryType: "memory", Size: 64 << 30, Topology: on(1)}, {MemoryType: "memory", Size: 32 << 30, Topology: on(0)}},
		})
		c.Owners(t.Context())
		if c.known().Resources.Known {
			t.Error("it is known before it was asked for")
		}
		c.askAllocatable(t.Context())
		first := c.known().Resources
		want := "{Known:true Devices:[{Resource:example.com/nic ID:n NUMANodes:[]} {Resource:nvidia.com/gpu ID:a NUMANodes:[0 1]} {Resource:nvidia.com/gpu ID:b NUMANodes:[1]}] " +
			"CPUs:[1 2 3] Memory:[{Type:memory Bytes:34359738368 NUMANodes:[0]} {Type:memory Bytes:68719476736 NUMANodes:[1]}] HeldDevices:[] HeldCPUs:[] HeldMemory:[] Claims:[] Dropped:[] DroppedHeld:[]}"
		if got := fmt.Sprintf("%+v", first); got != want {
			t.Errorf("allocatable are\n%s\nwant\n%s", got, want)
		}
		if got := fmt.Sprint(c.allocatable()); got != "map[example.com/nic:1 nvidia.com/gpu:2]" {
			t.Errorf("counts are %s", got)
		}
		k.stop()
		c.Owners(t.Context())
		if r := c.known().Resources; r.Known || r.Devices != nil || r.CPUs != nil || r.Memory != nil || c.allocatable() != nil {
			t.Errorf("of a kubelet that is away there are %+v", r)
		}
		k.start(age)
		c.Owners(t.Context())
		if c.known().Resources.Known {
			t.Error("it is known by who lists holders alone")
		}
		c.askAllocatable(t.Context())
		again := c.known().Resources
		if unsafe.SliceData(again.Devices) != unsafe.SliceData(first.Devices) || unsafe.SliceData(again.CPUs) != unsafe.SliceData(first.CPUs) || unsafe.SliceData(again.Memory) != unsafe.SliceData(first.Memory) {
			t.Error("what is the same was made anew")
		}
		k.gives(&api.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3}})
		c.askAllocatable(t.Context())
		if r := c.known().Resources; !r.Known || len(r.Devices) > 0 || len(r.Memory) > 0 || unsafe.SliceData(r.CPUs) != unsafe.SliceData(first.CPUs) || len(c.allocatable()) > 0 || c.allocatable() == nil {
			t.Errorf("of a kubelet that gives CPUs only there are %+v", r)
		}
		synctest.Wait()
	})
}

// A kubelet lists nothing twice in the same order, and what is the same stays the same.
func TestWhatIsTheSameIsNotMadeAnew(t *testing.T) {
	bubble(t, age, func(t *testing.T, k *scripted, c *Client) {
		chance := rand.New(rand.NewPCG(5, 6))
		list := node(20, 8).PodResources
		k.says(list...)
		first := c.Owners(t.Context()).Resources
		_, changed := c.Look()
		for range 20 {
			shuffled := proto.CloneOf(&api.ListPodResourcesResponse{PodResources: list}).PodResources
			chance.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			for _, p := range shuffled {
				cpus := p.Containers[0].CpuIds
				chance.Shuffle(len(cpus), func(i, j int) { cpus[i], cpus[j] = cpus[j], cpus[i] })
				slices.Reverse(p.Containers[0].Memory)
			}
			k.says(shuffled...)
			r := c.Owners(t.Context()).Resources
			if unsafe.SliceData(r.HeldDevices) != unsafe.SliceData(first.HeldDevices) || unsafe.SliceData(r.HeldCPUs) != unsafe.SliceData(first.HeldCPUs) ||
				unsafe.SliceData(r.HeldMemory) != unsafe.SliceData(first.HeldMemory) || unsafe.SliceData(r.Claims) != unsafe.SliceData(first.Claims) {
				t.Fatal("what is the same was made anew")
			}
		}
		select {
		case <-changed:
			t.Error("a change was told where there was none")
		default:
		}
		copied := fmt.Sprintf("%+v", first)
		less := proto.CloneOf(&api.ListPodResourcesResponse{PodResources: list}).PodResources
		less[0].Containers[0].CpuIds = less[0].Containers[0].CpuIds[:3]
		k.says(less...)
		r := c.Owners(t.Context()).Resources
		select {
		case <-changed:
		default:
			t.Error("a change of CPUs was not told")
		}
		if unsafe.SliceData(r.HeldCPUs) == unsafe.SliceData(first.HeldCPUs) || unsafe.SliceData(r.HeldDevices) != unsafe.SliceData(first.HeldDevices) {
			t.Error("a change of CPUs is one of something else")
		}
		k.says(node(30, 12).PodResources...)
		c.Owners(t.Context())
		if now := fmt.Sprintf("%+v", first); now != copied {
			t.Errorf("what was published was written: \n%s\nwas\n%s", now, copied)
		}
	})
}
