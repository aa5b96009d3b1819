package kubelet_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

const gib = 1 << 30

// staticOptions has both static policies: six CPUs, and memory on two nodes.
var staticOptions = kubelet.Options{
	ExclusiveCPUs: []int64{7, 2, 3, 4, 5, 6},
	Memory:        []kubelet.MemoryBlock{{Type: "memory", Bytes: 4 * gib, NUMANode: 0}, {Type: "memory", Bytes: 4 * gib, NUMANode: 1}, {Type: "hugepages-2Mi", Bytes: gib, NUMANode: 1}},
}

// reservations is what containers have of CPUs, memory and claims, a line each, sorted.
func reservations(t testing.TB, k *kubelet.Kubelet) (lines []string) {
	t.Helper()
	answer, err := lister(t, k).List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, cpus []int64, memory []*podresources.ContainerMemory) {
		if slices.Sort(cpus); len(cpus) > 0 {
			lines = append(lines, fmt.Sprintf("%s: CPUs %v", name, cpus))
		}
		for _, m := range memory {
			lines = append(lines, fmt.Sprintf("%s: %d of %s on %v", name, m.Size, m.MemoryType, nodes(m.Topology)))
		}
	}
	for _, p := range answer.PodResources {
		add(p.Name, p.CpuIds, p.Memory)
		for _, c := range p.Containers {
			add(p.Name+"/"+c.Name, c.CpuIds, c.Memory)
			for _, d := range c.DynamicResources {
				for _, r := range d.ClaimResources {
					var cdi []string
					for _, name := range r.CdiDevices {
						cdi = append(cdi, name.Name)
					}
					lines = append(lines, fmt.Sprintf("%s/%s: %s/%s gives %s/%s/%s/%s %v", p.Name, c.Name, d.ClaimNamespace, d.ClaimName, r.DriverName, r.PoolName, r.DeviceName, r.GetShareId(), cdi))
				}
			}
		}
	}
	slices.Sort(lines)
	return lines
}

func nodes(topology *podresources.TopologyInfo) (list []int64) {
	for _, n := range topology.GetNodes() {
		list = append(list, n.ID)
	}
	return list
}

func wantReservations(t *testing.T, k *kubelet.Kubelet, want ...string) {
	t.Helper()
	if got := reservations(t, k); !slices.Equal(got, want) {
		t.Errorf("List has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// guaranteedPod is a pod of one container that has something for itself.
func guaranteedPod(name string, cpus int, memory map[string]uint64) kubelet.PodSpec {
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{{Name: "main", ExclusiveCPUs: cpus, Memory: memory}}}
}

func TestStaticPolicies(t *testing.T) {
	t.Parallel()
	k := start(t, staticOptions)
	runPod(t, k, guaranteedPod("one", 2, map[string]uint64{"memory": 3 * gib, "hugepages-2Mi": gib / 2}))
	wantOne := []string{"one/main: 3221225472 of memory on [0]", "one/main: 536870912 of hugepages-2Mi on [1]", "one/main: CPUs [2 3]"}
	wantReservations(t, k, wantOne...)
	runPod(t, k, guaranteedPod("two", 3, map[string]uint64{"memory": 5 * gib})) // of both nodes
	wantTwo := []string{"two/main: 5368709120 of memory on [0 1]", "two/main: CPUs [4 5 6]"}
	wantReservations(t, k, append(wantOne, wantTwo...)...)
	for want, p := range map[string]kubelet.PodSpec{
		"not enough cpus available to satisfy request: requested=2, available=1":  guaranteedPod("cpus", 2, nil),
		"no NUMA nodes with enough memory is available":                           guaranteedPod("memory", 0, map[string]uint64{"memory": gib}),
		"no NUMA nodes with enough memory is available, which is unexpected":      guaranteedPod("huge", 0, map[string]uint64{"hugepages-2Mi": gib}),
		"failed to get the default NUMA affinity, no NUMA nodes with enough memo": guaranteedPod("unheard of", 0, map[string]uint64{"hugepages-1Gi": gib}),
	} {
		var rejected *kubelet.AdmissionError
		if err := k.RunPod(t.Context(), p); !errors.As(err, &rejected) || !strings.Contains(rejected.Message, want) {
			t.Errorf("%s: %v; want %q", p.Name, err, want)
		}
	}
	restart(t, k, kubelet.RestartOptions{})
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantReservations(t, k, append(wantOne, wantTwo...)...)
	if err := k.EndPod(kubelet.PodSpec{Name: "one"}); err != nil {
		t.Fatal(err)
	}
	wantReservations(t, k, wantTwo...)
	runPod(t, k, guaranteedPod("three", 3, map[string]uint64{"memory": 2 * gib}))
	wantReservations(t, k, append([]string{"three/main: 2147483648 of memory on [0]", "three/main: CPUs [2 3 7]"}, wantTwo...)...)
}

func TestInitContainersHaveNothingAndSidecarsHave(t *testing.T) {
	t.Parallel()
	k := start(t, staticOptions)
	p := guaranteedPod("pod", 1, nil)
	p.InitContainers = []kubelet.ContainerSpec{{Name: "first", ExclusiveCPUs: 6}, {Name: "side", ExclusiveCPUs: 1, Sidecar: true}}
	runPod(t, k, p)
	wantReservations(t, k, "pod/main: CPUs [3]", "pod/side: CPUs [2]")
}

// With the policies none nobody has anything for himself, and nothing is allocatable.
func TestPoliciesNone(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]kubelet.Options{"none": {}, "static": staticOptions} {
		k := start(t, o)
		runPod(t, k, guaranteedPod("one", 2, map[string]uint64{"memory": gib}))
		if got := len(reservations(t, k)); got != map[string]int{"none": 0, "static": 2}[name] {
			t.Errorf("%s: containers have %d portions", name, got)
		}
		answer, err := lister(t, k).GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var memory []string
		for _, m := range answer.Memory {
			memory = append(memory, fmt.Sprintf("%d of %s on %v", m.Size, m.MemoryType, nodes(m.Topology)))
		}
		slices.Sort(answer.CpuIds)
		slices.Sort(memory)
		want := map[string]string{"none": "[] []", "static": "[2 3 4 5 6 7] [1073741824 of hugepages-2Mi on [1] 4294967296 of memory on [0] 4294967296 of memory on [1]]"}[name]
		if got := fmt.Sprint(answer.CpuIds, memory); got != want {
			t.Errorf("%s: allocatable are %s, want %s", name, got, want)
		}
	}
}

func TestPodLevel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version kubelet.Version
		on      bool
		want    []string
	}{
		{kubelet.V137, true, []string{"pod/main: CPUs [4]", "pod: 1073741824 of memory on [0]", "pod: CPUs [2 3]"}},
		{kubelet.V137, false, []string{"pod/main: CPUs [2]"}},
		{kubelet.V136, true, []string{"pod/main: CPUs [2]"}},
	} {
		o := staticOptions
		o.Version, o.PodLevelResources = c.version, c.on
		k := start(t, o)
		p := guaranteedPod("pod", 1, nil)
		p.CPUs, p.Memory = 2, map[string]uint64{"memory": gib}
		runPod(t, k, p)
		wantReservations(t, k, c.want...)
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	shared := kubelet.ClaimSpec{Name: "ours", Devices: []kubelet.ClaimedDevice{
		{Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0", CDI: []string{"k8s.gpu.nvidia.com/claim=uid-gpu-0"}},
		{Driver: "nic.example.com", Pool: "p", Device: "d", Share: "s"},
	}}
	other := kubelet.ClaimSpec{Namespace: "elsewhere", Name: "other", Devices: []kubelet.ClaimedDevice{{Driver: "x", Pool: "y", Device: "z"}}}
	for _, name := range []string{"one", "two"} {
		runPod(t, k, kubelet.PodSpec{Namespace: "team", Name: name, Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{shared}}}})
	}
	runPod(t, k, kubelet.PodSpec{Name: "three", Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{other}}}})
	want := []string{
		"one/main: team/ours gives gpu.nvidia.com/node-a/gpu-0/ [k8s.gpu.nvidia.com/claim=uid-gpu-0]", "one/main: team/ours gives nic.example.com/p/d/s []",
		"three/main: elsewhere/other gives x/y/z/ []",
		"two/main: team/ours gives gpu.nvidia.com/node-a/gpu-0/ [k8s.gpu.nvidia.com/claim=uid-gpu-0]", "two/main: team/ours gives nic.example.com/p/d/s []",
	}
	wantReservations(t, k, want...)
	restart(t, k, kubelet.RestartOptions{})
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantReservations(t, k, want...)
}

func TestGetInTrouble(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	runPod(t, k, kubelet.PodSpec{Name: "one"})
	k.SetFaults(kubelet.Faults{GetErr: status.Error(codes.Unimplemented, "unknown method Get")})
	ask := func() error {
		_, err := lister(t, k).Get(t.Context(), &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "one"})
		return err
	}
	if err := ask(); status.Code(err) != codes.Unimplemented {
		t.Errorf("Get: %v", err)
	}
	k.SetFaults(kubelet.Faults{})
	if err := ask(); err != nil {
		t.Errorf("Get: %v", err)
	}
}
