package conformance

import (
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

var podResourcesCases = []kubeletCase{
	{"each device has a separate row", func(s *caseFixture) {
		s.registerPlugin(healthy("a", "b", "c")...)
		s.waitForListed(s.runAdmittedPod(s.podSpec("three", 3)).Name, "main[a b c]")
		s.waitForAllocatable("a", "b", "c") // allocated or not
	}},
	// Google's plugin has such ids.
	{"ids may have slashes", func(s *caseFixture) {
		s.registerPlugin(healthy("nvidia0/vgpu0", "nvidia1/gi3", "nvidia1/gi4/vgpu1")...)
		pod := s.runAdmittedPod(s.podSpec("three", 3))
		s.waitForListed(pod.Name, "main[nvidia0/vgpu0 nvidia1/gi3 nvidia1/gi4/vgpu1]")
		s.waitForAllocatable("nvidia0/vgpu0", "nvidia1/gi3", "nvidia1/gi4/vgpu1")
	}},
	// GetAllocatableResources lacks a device with an empty Topology.
	{"a device with Topology has a row for each NUMA node", func(s *caseFixture) {
		s.registerPlugin(healthy("nil")[0], onNUMANodes("empty"), onNUMANodes("one", 0), onNUMANodes("two", 0, 1))
		s.waitForAllocatable("nil", "one[0]", "two[0]", "two[1]")
		got := s.runAdmittedPod(s.podSpec("all", 4))
		// The kubelet stores allocations by node, and "empty" like nil.
		s.waitForListed(got.Name, "main[empty nil one[0] two[0] two[1]]")
	}},
	{"an allocation keeps the Topology of its start", func(s *caseFixture) {
		p := s.registerPlugin(onNUMANodes("a", 0))
		got := s.runAdmittedPod(s.podSpec("one", 1))
		p.Send(onNUMANodes("a", 1))
		s.waitForAllocatable("a[1]")
		s.waitForListed(got.Name, "main[a[0]]")
	}},
	{"a pod without devices is listed", func(s *caseFixture) {
		pod := s.podSpec("plain", 0)
		pod.Containers = []kubelet.ContainerSpec{{Name: "main"}, {Name: "second"}}
		s.waitForListed(s.runAdmittedPod(pod).Name, "main[] second[]")
	}},
	{"Get returns the row of List", func(s *caseFixture) {
		s.registerPlugin(healthy("a")...)
		pod := s.withInit(s.podSpec("one", 1), 1)
		side := s.containerSpec("side", 0)
		side.Sidecar = true
		pod.InitContainers = append(pod.InitContainers, side)
		if got, err := s.get(s.runAdmittedPod(pod).Name); err != nil || got != "side[] main[a]" {
			s.Errorf("Get: %q, %v", got, err)
		}
	}},
	{"Get of a missing pod returns code Unknown", func(s *caseFixture) {
		got := s.runAdmittedPod(s.podSpec("static", 0))
		for _, name := range []string{s.name, s.name + "-static"} { // the kubelet's name of a static pod has a suffix
			_, err := s.get(name)
			s.wantError(err, codes.Unknown, fmt.Sprintf("pod %s in namespace default not found", name))
		}
		_, err := s.get(got.Name)
		s.must(err)
	}},
	{"an unhealthy device remains allocated", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		pod := s.podSpec("owner", 2)
		got := s.runAdmittedPod(pod)
		s.waitForHealth(pod, "a Healthy", "b Healthy")
		p.Send(append(healthy("a"), unhealthy("b")...)...)
		s.waitForAllocatable("a")
		s.waitForHealth(pod, "a Healthy", "b Unhealthy")
		s.waitForListed(got.Name, "main[a b]")
		p.Send(healthy("a", "b")...)
		s.waitForHealth(pod, "a Healthy", "b Healthy")
		s.waitForAllocatable("a", "b")
	}},
	{"a removed device remains allocated and becomes Healthy", func(s *caseFixture) {
		p := s.registerPlugin(healthy("a", "b")...)
		pod := s.podSpec("owner", 2)
		got := s.runAdmittedPod(pod)
		p.Send(append(healthy("a"), unhealthy("b")...)...)
		s.waitForHealth(pod, "a Healthy", "b Unhealthy")
		p.Send(healthy("a")...)
		s.waitForAllocatable("a")
		s.waitForListed(got.Name, "main[a b]")
		s.waitForHealth(pod, "a Healthy", "b Healthy")
		s.runRejectedPod(s.podSpec("next", 1), s.unavailable(1, 0))
	}},
	{"the end of a plugin changes neither allocations nor health", func(s *caseFixture) {
		p := s.registerPlugin(append(healthy("a"), unhealthy("c")...)...)
		pod := s.podSpec("owner", 1)
		got := s.runAdmittedPod(pod)
		s.waitForHealth(pod, "a Healthy")
		p.Stop()
		s.waitForAllocatable()
		s.waitForListed(got.Name, "main[a]")
		s.waitForHealth(pod, "a Healthy")
		p.restarted().registerAndWait()
		s.waitForListed(got.Name, "main[a]")
	}},
	// The list of CDI names starts again with each driver.
	{"a claim's row includes the CDI names of the previous rows", func(s *caseFixture) {
		devices := []string{"gpu.test gpu-0", "gpu.test gpu-1", "nic.test eth0", "gpu.test gpu-2"}
		s.waitForClaims(1, devices, []string{"main"},
			"main: gpu.test gpu-0 [gpu-0]", "main: gpu.test gpu-1 [gpu-0 gpu-1]",
			"main: gpu.test gpu-2 [gpu-0 gpu-1 gpu-2]", "main: nic.test eth0 [eth0]")
	}},
	// A kubelet with the fix of kubernetes#141335 lists each row once.
	{"a claim prepared twice has two rows per device", func(s *caseFixture) {
		s.waitForClaims(2, []string{"gpu.test gpu-0", "gpu.test gpu-1"}, []string{"main"},
			"main: gpu.test gpu-0 [gpu-0 gpu-1 gpu-0]", "main: gpu.test gpu-0 [gpu-0]",
			"main: gpu.test gpu-1 [gpu-0 gpu-1 gpu-0 gpu-1]", "main: gpu.test gpu-1 [gpu-0 gpu-1]")
	}},
	{"each container of a claim has all devices", func(s *caseFixture) {
		s.waitForClaims(1, []string{"gpu.test gpu-0"}, []string{"main", "side"},
			"main: gpu.test gpu-0 [gpu-0]", "side: gpu.test gpu-0 [gpu-0]")
	}},
}

// waitForClaims runs a pod with containers that use a claim of the devices
// ("driver device"), and waits for the rows of Get: "container: driver device
// [CDI names]".
func (s *caseFixture) waitForClaims(prepared int, devices, containers []string, want ...string) {
	s.Helper()
	if _, ok := s.k.(ClaimSupport); !ok {
		s.Skip("claims need an API server and a DRA driver")
	}
	claim := kubelet.ClaimSpec{Name: s.name, PreparedCount: prepared}
	for _, d := range devices {
		var c kubelet.ClaimedDevice
		_, err := fmt.Sscan(d, &c.Driver, &c.Device)
		s.must(err)
		c.Pool, c.CDI = "pool", []string{c.Device}
		claim.Devices = append(claim.Devices, c)
	}
	pod := kubelet.PodSpec{Name: s.name + "-claims"}
	for _, name := range containers {
		pod.Containers = append(pod.Containers, kubelet.ContainerSpec{Name: name, Claims: []kubelet.ClaimSpec{claim}})
	}
	request := &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: s.runAdmittedPod(pod).Name}
	s.waitForValue("rows of Get", func() (any, error) {
		response, err := callWithRetry(s, s.lister.Get, request)
		rows := []string{}
		for _, c := range response.GetPodResources().GetContainers() {
			for _, claim := range c.GetDynamicResources() {
				for _, r := range claim.GetClaimResources() {
					rows = append(rows, formatClaimRow(c.GetName(), r))
				}
			}
		}
		slices.Sort(rows)
		return rows, err
	}, want)
}

func formatClaimRow(container string, r *podresources.ClaimResource) string {
	names := []string{}
	for _, d := range r.GetCdiDevices() {
		names = append(names, d.GetName())
	}
	return fmt.Sprintf("%s: %s %s %v", container, r.GetDriverName(), r.GetDeviceName(), names)
}
