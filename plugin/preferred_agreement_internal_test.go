package plugin

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxRequestIDs limits the ids of a request: the test tries each subset.
const maxRequestIDs = 10

// randomNode returns whole and partitioned GPUs, some of them unhealthy.
func randomNode(r *rand.Rand) []device.Status {
	text := ""
	randomSuffix := func() string {
		if r.IntN(6) == 0 {
			return "!"
		}
		return ""
	}
	for n := range 1 + r.IntN(4) {
		if r.IntN(3) > 0 {
			text += fmt.Sprint(" ", n, randomSuffix())
			continue
		}
		text += fmt.Sprint(" ", n, "m")
		for range 1 + r.IntN(3) {
			text += fmt.Sprint(" ", n, "/1g.10gb", randomSuffix())
		}
	}
	return ParseStatuses(text)
}

// randomRules returns rules with the same name for most devices, some of them
// shared.
func randomRules(r *rand.Rand) Rules {
	sharings := map[device.ID]config.DeviceSharing{}
	onePerContainer, mixed := r.IntN(2) == 0, r.IntN(4) == 0
	rules := Rules{
		MIGStrategy: []string{config.MIGNone, config.MIGSingle, config.MIGMixed}[r.IntN(3)],
		Policy: []preferred.AllocationPolicy{
			preferred.Distributed, preferred.Packed,
			preferred.Distinct,
		}[r.IntN(3)],
		Sharing: func(_ string, devices []device.Device) (all []config.DeviceSharing) {
			for _, d := range devices {
				if _, known := sharings[d.ID]; !known {
					sharings[d.ID] = config.DeviceSharing{
						Replicas:        max(0, r.IntN(6)-2),
						OnePerContainer: onePerContainer != (mixed && r.IntN(2) == 0),
					}
				}
				all = append(all, sharings[d.ID])
			}
			return all
		},
	}
	if r.IntN(3) > 0 {
		rules.Resources.MIGs = []config.NamePattern{{Pattern: "*", Name: gpuResource}}
	}
	if r.IntN(8) == 0 {
		rules.MPSErrors = map[string]string{gpuResource: "no daemon", config.MIGResource("1g.10gb"): "no daemon"}
	}
	return rules
}

// randomIDs returns ids of the devices, in all forms of an id.
func randomIDs(r *rand.Rand, statuses []device.Status, maxIDs int) (ids []device.AdvertisedID) {
	for range r.IntN(maxIDs + 1) {
		id := statuses[r.IntN(len(statuses))].ID
		ids = append(ids, id.Advertised())
		if r.IntN(2) == 0 {
			ids[len(ids)-1] = id.Replica(r.IntN(4))
		}
	}
	return ids
}

// randomServer returns a server whose statuses and allocations are newer than
// the kubelet's list.
func randomServer(r *rand.Rand) *server {
	statuses := randomNode(r)
	s := &server{resourceState: endpointFor("", randomRules(r), statuses, randomIDs(r, statuses, 2)...).resourceState}
	newer := slices.Clone(statuses)
	if r.IntN(3) == 0 {
		n := r.IntN(len(newer))
		newer[n].Healthy, newer[n].Reason = false, "lost"
	}
	if r.IntN(8) == 0 {
		newer = newer[:len(newer)-1]
	}
	s.fakeSource().GetStatuses = func() ([]device.Status, <-chan struct{}) { return newer, nil }
	if r.IntN(2) == 0 {
		s.fakeSource().GetAllocations = allocationsOf([]string{
			gpuResource, "nvidia.com/a100",
			"gpu.nvidia.com",
		}[r.IntN(3)], randomIDs(r, statuses, 2)...)
	}
	return s
}

// randomRequest requests some of the server's ids, some of them as required.
func randomRequest(r *rand.Rand, s *server) *api.ContainerPreferredAllocationRequest {
	var ids []string
	for _, i := range s.list().items {
		ids = append(ids, string(i.id))
	}
	if r.IntN(4) == 0 {
		ids = append(ids, "GPU-unknown")
	}
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	ids = ids[:min(len(ids), 1+r.IntN(maxRequestIDs))]
	request := &api.ContainerPreferredAllocationRequest{AvailableDeviceIDs: ids, AllocationSize: int32(1 + r.IntN(4))}
	if r.IntN(3) == 0 {
		request.MustIncludeDeviceIDs = ids[:min(r.IntN(3), len(ids), int(request.AllocationSize))]
	}
	return request
}

// allocateAccepts reports whether Allocate accepts ids, in any order.
func (s *server) allocateAccepts(t *testing.T, r *rand.Rand, ids []string) bool {
	t.Helper()
	accepted := func() bool {
		container := &api.ContainerAllocateRequest{DevicesIds: ids}
		_, _, errs := s.buildResponse(&api.AllocateRequest{
			ContainerRequests: []*api.ContainerAllocateRequest{container},
		})
		return len(errs) == 0
	}
	first := accepted()
	for range 2 {
		ids = slices.Clone(ids)
		r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		if accepted() != first {
			t.Fatalf("Allocate accepts %q in some orders only", ids)
		}
	}
	return first
}

// acceptedIDs returns ids that Allocate accepts; nil if all are rejected.
func (s *server) acceptedIDs(t *testing.T, r *rand.Rand, request *api.ContainerPreferredAllocationRequest) []string {
	t.Helper()
	for mask := range 1 << len(request.AvailableDeviceIDs) {
		var ids []string
		for n, id := range request.AvailableDeviceIDs {
			if mask>>n&1 == 1 {
				ids = append(ids, id)
			}
		}
		required := !slices.ContainsFunc(request.MustIncludeDeviceIDs,
			func(id string) bool { return !slices.Contains(ids, id) })
		if len(ids) == int(request.AllocationSize) && required && s.allocateAccepts(t, r, ids) {
			return ids
		}
	}
	return nil
}

// TestAllocateAcceptsPreferredIDs checks agreement: the kubelet allocates the
// preferred ids, and a rejection is final for the pod.
func TestAllocateAcceptsPreferredIDs(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 10))
	counts := map[bool]int{} // results by rejection
	for round := range 4000 {
		s := randomServer(random)
		request := randomRequest(random, s)
		response, err := s.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
			ContainerRequests: []*api.ContainerPreferredAllocationRequest{request},
		})
		if err != nil {
			t.Fatalf("round %d: %v: error rejects the pod: %v", round, request, err)
		}
		ids := response.ContainerResponses[0].DeviceIDs
		if s.allocateAccepts(t, random, ids) {
			counts[false]++
			continue
		}
		counts[true]++
		if want := s.acceptedIDs(t, random, request); want != nil {
			t.Fatalf("round %d: %v with %v, policy %s: preferred: got %q, which is rejected, want %q",
				round, request, s.list().items, s.list().rules.Policy, ids, want)
		}
	}
	if counts[true] < 500 || counts[false] < 500 {
		t.Errorf("got %d results rejected, %d accepted: too few of a kind", counts[true], counts[false])
	}
}
