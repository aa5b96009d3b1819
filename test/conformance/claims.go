package conformance

import (
	"fmt"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// ClaimSupport is a Kubelet whose RunPod takes pods with claims. They need an API server and a DRA
// driver: static pods have none (pkg/apis/core/validation).
type ClaimSupport interface{ TakesClaims() }

// claimCases is how the PodResources service lists resource claims.
func claimCases() []Case {
	return []Case{
		newCase("a claim's row has the CDI names of the rows before it", cumulativeClaimRows),
		newCase("a claim that was prepared again has its rows twice", repeatedClaimRows),
		newCase("each container of a claim has all of its devices", sharedClaim),
	}
}

// cumulativeClaimRows: the list of CDI names begins anew with each driver only.
func cumulativeClaimRows(s *caseFixture) {
	claim := kubelet.ClaimSpec{Name: s.name, Devices: []kubelet.ClaimedDevice{
		claimedDevice("gpu.test", "gpu-0"), claimedDevice("gpu.test", "gpu-1"), claimedDevice("nic.test", "eth0"), claimedDevice("gpu.test", "gpu-2"),
	}}
	s.waitForClaims(s.runPodWithClaim(claim, "main"),
		"main: gpu.test gpu-0 [gpu-0]", "main: gpu.test gpu-1 [gpu-0 gpu-1]", "main: gpu.test gpu-2 [gpu-0 gpu-1 gpu-2]", "main: nic.test eth0 [eth0]")
}

// repeatedClaimRows: a kubelet with the fix of kubernetes#141335 lists each once.
func repeatedClaimRows(s *caseFixture) {
	claim := kubelet.ClaimSpec{Name: s.name, PreparedCount: 2, Devices: []kubelet.ClaimedDevice{claimedDevice("gpu.test", "gpu-0"), claimedDevice("gpu.test", "gpu-1")}}
	s.waitForClaims(s.runPodWithClaim(claim, "main"),
		"main: gpu.test gpu-0 [gpu-0 gpu-1 gpu-0]", "main: gpu.test gpu-0 [gpu-0]",
		"main: gpu.test gpu-1 [gpu-0 gpu-1 gpu-0 gpu-1]", "main: gpu.test gpu-1 [gpu-0 gpu-1]")
}

// sharedClaim: whichever of the claim's requests a container uses.
func sharedClaim(s *caseFixture) {
	claim := kubelet.ClaimSpec{Name: s.name, Devices: []kubelet.ClaimedDevice{claimedDevice("gpu.test", "gpu-0")}}
	s.waitForClaims(s.runPodWithClaim(claim, "main", "side"), "main: gpu.test gpu-0 [gpu-0]", "side: gpu.test gpu-0 [gpu-0]")
}

func claimedDevice(driver, device string) kubelet.ClaimedDevice {
	return kubelet.ClaimedDevice{Driver: driver, Pool: "pool", Device: device, CDI: []string{device}}
}

// runPodWithClaim runs a pod whose containers all use a claim, and returns its name.
func (s *caseFixture) runPodWithClaim(claim kubelet.ClaimSpec, containers ...string) string {
	s.Helper()
	if _, ok := s.k.(ClaimSupport); !ok {
		s.Skip("claims take an API server and a DRA driver")
	}
	pod := kubelet.PodSpec{Name: s.name + "-claims"}
	for _, name := range containers {
		pod.Containers = append(pod.Containers, kubelet.ContainerSpec{Name: name, Claims: []kubelet.ClaimSpec{claim}})
	}
	return s.runAdmittedPod(pod).Name
}

// waitForClaims waits until Get has these rows, of each container in the order in which a driver
// gave them: "container: driver device [CDI names]".
func (s *caseFixture) waitForClaims(pod string, want ...string) {
	s.Helper()
	s.waitFor(fmt.Sprintf("Get has %q", want), func() error {
		answer, err := callWithRetry(s, s.lister.Get, &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: pod})
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
