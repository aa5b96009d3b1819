package kubelet_test

import (
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

// reservations returns the CPUs, memory and claims of List, one per line,
// sorted.
func reservations(t testing.TB, k *kubelet.Kubelet) (lines []string) {
	t.Helper()
	resp, err := lister(t, k).List(t.Context(), &podresources.ListPodResourcesRequest{})
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
	for _, p := range resp.PodResources {
		add(p.Name, p.CpuIds, p.Memory)
		for _, c := range p.Containers {
			add(p.Name+"/"+c.Name, c.CpuIds, c.Memory)
			for _, d := range c.DynamicResources {
				for _, r := range d.ClaimResources {
					var cdi []string
					for _, name := range r.CdiDevices {
						cdi = append(cdi, name.Name)
					}
					lines = append(lines,
						fmt.Sprintf("%s/%s: %s/%s gives %s/%s/%s/%s %v", p.Name, c.Name, d.ClaimNamespace, d.ClaimName,
							r.DriverName, r.PoolName, r.DeviceName, r.GetShareId(), cdi))
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
		t.Errorf("List:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCPUsAndMemoryAsConfigured(t *testing.T) {
	t.Parallel()
	memory := func(kind string, bytes uint64, nodes ...int64) kubelet.MemoryBlock {
		return kubelet.MemoryBlock{Type: kind, Bytes: bytes, NUMANodes: nodes}
	}
	k := start(t, kubelet.Options{
		ExclusiveCPUs: []int64{7, 2, 3, 4, 5, 6},
		Memory: []kubelet.MemoryBlock{
			memory("memory", 4*gib, 0), memory("memory", 4*gib, 1),
			memory("hugepages-2Mi", gib, 1),
		},
	})
	runPod(t, k, kubelet.PodSpec{
		Name: "one", ExclusiveCPUs: []int64{2}, Memory: []kubelet.MemoryBlock{memory("memory", gib, 0)},
		Containers: []kubelet.ContainerSpec{
			{
				Name: "main", ExclusiveCPUs: []int64{4, 3},
				Memory: []kubelet.MemoryBlock{memory("memory", 5*gib, 0, 1), memory("hugepages-2Mi", gib, 1)},
			},
			{Name: "plain"},
		},
	})
	want := []string{
		"one/main: 1073741824 of hugepages-2Mi on [1]", "one/main: 5368709120 of memory on [0 1]",
		"one/main: CPUs [3 4]",
		"one: 1073741824 of memory on [0]", "one: CPUs [2]",
	}
	wantReservations(t, k, want...)
	restart(t, k, nil)
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantReservations(t, k, want...)
	response, err := lister(t, k).GetAllocatableResources(t.Context(), &podresources.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var allocatable []string
	for _, m := range response.Memory {
		allocatable = append(allocatable, fmt.Sprintf("%d of %s on %v", m.Size, m.MemoryType, nodes(m.Topology)))
	}
	slices.Sort(response.CpuIds)
	slices.Sort(allocatable)
	const wantAllocatable = "[2 3 4 5 6 7] [1073741824 of hugepages-2Mi on [1] " +
		"4294967296 of memory on [0] 4294967296 of memory on [1]]"
	if got := fmt.Sprint(response.CpuIds, allocatable); got != wantAllocatable {
		t.Errorf("allocatable: got %s", got)
	}
}

func TestClaims(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	shared := kubelet.ClaimSpec{Name: "ours", Devices: []kubelet.ClaimedDevice{
		{
			Driver: "gpu.nvidia.com", Pool: "node-a", Device: "gpu-0",
			CDI: []string{"k8s.gpu.nvidia.com/claim=uid-gpu-0"},
		},
		{Driver: "nic.example.com", Pool: "p", Device: "d", Share: "s"},
	}}
	other := kubelet.ClaimSpec{
		Namespace: "elsewhere", Name: "other",
		Devices: []kubelet.ClaimedDevice{{Driver: "x", Pool: "y", Device: "z"}},
	}
	for _, name := range []string{"one", "two"} {
		runPod(t, k, kubelet.PodSpec{
			Namespace: "team", Name: name,
			Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{shared}}},
		})
	}
	runPod(t, k, kubelet.PodSpec{
		Name:       "three",
		Containers: []kubelet.ContainerSpec{{Name: "main", Claims: []kubelet.ClaimSpec{other}}},
	})
	want := []string{
		"one/main: team/ours gives gpu.nvidia.com/node-a/gpu-0/ [k8s.gpu.nvidia.com/claim=uid-gpu-0]",
		"one/main: team/ours gives nic.example.com/p/d/s []",
		"three/main: elsewhere/other gives x/y/z/ []",
		"two/main: team/ours gives gpu.nvidia.com/node-a/gpu-0/ [k8s.gpu.nvidia.com/claim=uid-gpu-0]",
		"two/main: team/ours gives nic.example.com/p/d/s []",
	}
	wantReservations(t, k, want...)
	restart(t, k, nil)
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.PodsRead })
	wantReservations(t, k, want...)
}

func TestGetFaults(t *testing.T) {
	t.Parallel()
	k := start(t, kubelet.Options{})
	runPod(t, k, kubelet.PodSpec{Name: "one"})
	k.SetFaults(kubelet.Faults{GetErr: status.Error(codes.Unimplemented, "unknown method Get")})
	get := func() error {
		_, err := lister(t, k).Get(t.Context(),
			&podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: "one"})
		return err
	}
	if err := get(); status.Code(err) != codes.Unimplemented {
		t.Errorf("Get: got %v, want code Unimplemented", err)
	}
	k.SetFaults(kubelet.Faults{})
	if err := get(); err != nil {
		t.Errorf("Get: got %v, want nil", err)
	}
}
