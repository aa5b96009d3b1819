package habits

import (
	"fmt"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// Claims is a Kubelet whose RunPod takes pods with claims. They need an API server and a DRA
// driver: static pods have none (pkg/apis/core/validation).
type Claims interface{ TakesClaims() }

// claims is how the PodResources service lists resource claims.
func claims() []Habit {
	return []Habit{
		habit("a claim's row has the CDI names of the rows before it", cumulativeRows),
		habit("a claim that was prepared again has its rows twice", repeatedRows),
		habit("each container of a claim has all of its devices", sharedClaim),
	}
}

// cumulativeRows: the list of CDI names begins anew with each driver only.
func cumulativeRows(s *stage) {
	claim := kubelet.Claim{Name: s.name, Devices: []kubelet.ClaimedDevice{
		claimed("gpu.test", "gpu-0"), claimed("gpu.test", "gpu-1"), claimed("nic.test", "eth0"), claimed("gpu.test", "gpu-2"),
	}}
	s.awaitClaims(s.runsWith(claim, "main"),
		"main: gpu.test gpu-0 [gpu-0]", "main: gpu.test gpu-1 [gpu-0 gpu-1]", "main: gpu.test gpu-2 [gpu-0 gpu-1 gpu-2]", "main: nic.test eth0 [eth0]")
}

// repeatedRows: a kubelet with the fix of kubernetes#141335 lists each once.
func repeatedRows(s *stage) {
	claim := kubelet.Claim{Name: s.name, Prepared: 2, Devices: []kubelet.ClaimedDevice{claimed("gpu.test", "gpu-0"), claimed("gpu.test", "gpu-1")}}
	s.awaitClaims(s.runsWith(claim, "main"),
		"main: gpu.test gpu-0 [gpu-0 gpu-1 gpu-0]", "main: gpu.test gpu-0 [gpu-0]",
		"main: gpu.test gpu-1 [gpu-0 gpu-1 gpu-0 gpu-1]", "main: gpu.test gpu-1 [gpu-0 gpu-1]")
}

// sharedClaim: whichever of the claim's requests a container uses.
func sharedClaim(s *stage) {
	claim := kubelet.Claim{Name: s.name, Devices: []kubelet.ClaimedDevice{claimed("gpu.test", "gpu-0")}}
	s.awaitClaims(s.runsWith(claim, "main", "side"), "main: gpu.test gpu-0 [gpu-0]", "side: gpu.test gpu-0 [gpu-0]")
}

func claimed(driver, device string) kubelet.ClaimedDevice {
	return kubelet.ClaimedDevice{Driver: driver, Pool: "pool", Device: device, CDI: []string{device}}
}

// runsWith runs a pod whose containers all use a claim, and returns its name.
func (s *stage) runsWith(claim kubelet.Claim, containers ...string) string {
	s.Helper()
	if _, ok := s.k.(Claims); !ok {
		s.Skip("claims take an API server and a DRA driver")
	}
	pod := kubelet.Pod{Name: s.name + "-claims"}
	for _, name := range containers {
		pod.Containers = append(pod.Containers, kubelet.Container{Name: name, Claims: []kubelet.Claim{claim}})
	}
	return s.runs(pod).Name
}

// awaitClaims waits until Get has these rows, of each container in the order in which a driver
// gave them: "container: driver device [CDI names]".
func (s *stage) awaitClaims(pod string, want ...string) {
	s.Helper()
	s.await(fmt.Sprintf("Get has %q", want), func() error {
		answer, err := ask(s, s.lister.Get, &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: pod})
		var got []string
		for _, c := range answer.GetPodResources().GetContainers() {
			for _, claim := range c.GetDynamicResources() {
				for _, r := range claim.GetClaimResources() {
					var names []string
					for _, d := range r.GetCdiDevices() {
						names = append(names, d.GetName())
					}
					got = append(got, fmt.Sprintf("%s: %s %s %v", c.GetName(), r.GetDriverName(), r.GetDeviceName(), names))
				}
			}
		}
		slices.Sort(got)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
}
