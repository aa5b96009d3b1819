package plugin_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/preferred"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestPreferredAllocation checks that links decide, and that the preferred ids
// are ids that Allocate accepts, of the least loaded devices.
func TestPreferredAllocation(t *testing.T) {
	links := []device.Link{{A: "GPU-1", B: "GPU-2", NVLinks: 4}}
	firstShared := plugin.Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{
		0: {Replicas: 4, OnePerContainer: true},
	})}
	for _, c := range []struct {
		name                 string
		rules                plugin.Rules
		inventory, allocated string
		size                 int
		available, want      string
	}{
		{"linked GPUs", plugin.Rules{}, "0 1 2", "", 2, "GPU-2 GPU-1 GPU-0", "GPU-1 GPU-2"},
		{"a lost GPU", plugin.Rules{}, "0 1 2! 3", "", 3, "GPU-0 GPU-1 GPU-2 GPU-3", "GPU-0 GPU-1 GPU-3"},
		{"an allocated GPU is a load", sharedRules(2), "0 1", "GPU-0", 1, "GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1", "GPU-1::0"},
		{"released before the new list", sharedRules(2), "0 1", "GPU-0", 1, "GPU-0 GPU-0::1", "GPU-0::1"},
		{"beside an allocated replica", plugin.Rules{}, "0 1 2 3", "GPU-3::1", 2, "GPU-0 GPU-1 GPU-2", "GPU-1 GPU-2"},
		{"one replica per container", firstShared, "0 1 2", "", 2, "GPU-0::0 GPU-0::1 GPU-1 GPU-2", "GPU-1 GPU-2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFixture(t)
			s.rules.Set(c.rules)
			s.allocations.Set(parseAllocations(c.allocated))
			s.options.Links = func() []device.Link { return links }
			lists := s.watchLists(parseStatuses(c.inventory))
			if got := lists.prefer(c.size, c.available); got != c.want {
				t.Errorf("preferred: got %q, want %q", got, c.want)
			}
		})
	}
}

// maxRequestIDs limits the ids of a request: the test tries each subset.
const maxRequestIDs = 7

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
	return parseStatuses(text)
}

// randomRules returns rules that list all devices as one resource, some of them
// shared.
func randomRules(r *rand.Rand) plugin.Rules {
	sharings := map[device.ID]config.DeviceSharing{}
	onePerContainer, mixed := r.IntN(2) == 0, r.IntN(4) == 0
	policies := []preferred.AllocationPolicy{preferred.Distributed, preferred.Packed, preferred.Distinct}
	rules := plugin.Rules{
		MIGStrategy: []string{config.MIGNone, config.MIGSingle, config.MIGMixed}[r.IntN(3)],
		Resources:   config.ResourceNames{MIGs: []config.NamePattern{{Pattern: "*", Name: resource}}},
		Policy:      policies[r.IntN(3)],
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
	if r.IntN(8) == 0 {
		rules.MPSErrors = map[string]string{resource: "no daemon"}
	}
	return rules
}

// randomAllocations returns allocations by ids of any form.
func randomAllocations(r *rand.Rand, resource string, statuses []device.Status) allocation.Snapshot {
	var words []string
	for range r.IntN(3) {
		id := statuses[r.IntN(len(statuses))].ID
		advertised := id.Advertised()
		if r.IntN(2) == 0 {
			advertised = id.Replica(r.IntN(4))
		}
		words = append(words, resource+"="+string(advertised))
	}
	return parseAllocations(strings.Join(words, " "))
}

// randomRequest requests some of the ids, some of them as required.
func randomRequest(r *rand.Rand, listed string) *api.ContainerPreferredAllocationRequest {
	ids := strings.Fields(strings.ReplaceAll(listed, "!", ""))
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

// acceptedIDs returns ids that Allocate accepts; nil if all are rejected.
func (l *listStream) acceptedIDs(request *api.ContainerPreferredAllocationRequest) []string {
	for mask := range 1 << len(request.AvailableDeviceIDs) {
		var ids []string
		for n, id := range request.AvailableDeviceIDs {
			if mask>>n&1 == 1 {
				ids = append(ids, id)
			}
		}
		isMissing := func(id string) bool { return !slices.Contains(ids, id) }
		if len(ids) == int(request.AllocationSize) && !slices.ContainsFunc(request.MustIncludeDeviceIDs, isMissing) {
			if _, err := l.allocate(strings.Join(ids, " ")); err == nil {
				return ids
			}
		}
	}
	return nil
}

// TestAllocateAcceptsPreferredIDs checks agreement on random nodes, whose
// devices and allocations may be newer than the kubelet's list: the kubelet
// allocates the preferred ids, and a rejection is final for the pod.
func TestAllocateAcceptsPreferredIDs(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 10))
	accepted, rejected := 0, 0
	for node := range 200 {
		t.Run(fmt.Sprint(node), func(t *testing.T) {
			s := newFixture(t)
			all, rules := randomNode(random), randomRules(random)
			if lists, _ := rules.Preview(all); len(lists) == 0 {
				return
			}
			s.rules.Set(rules)
			s.allocations.Set(randomAllocations(random, resource, all))
			lists := s.watchLists(all)
			newer := slices.Clone(all)
			if random.IntN(3) == 0 {
				newer[random.IntN(len(newer))].Healthy = false
			}
			if random.IntN(8) == 0 {
				newer = newer[:len(newer)-1]
			}
			s.inventory.Replace(newer)
			if random.IntN(2) == 0 {
				other := []string{resource, "nvidia.com/a100", "gpu.nvidia.com"}[random.IntN(3)]
				s.allocations.Replace(randomAllocations(random, other, all))
			}
			for range 5 {
				request := randomRequest(random, lists.newest)
				response, err := lists.GetPreferredAllocation(s.ctx, &api.PreferredAllocationRequest{
					ContainerRequests: []*api.ContainerPreferredAllocationRequest{request},
				})
				if err != nil {
					t.Fatalf("%v: error rejects the pod: %v", request, err)
				}
				ids := response.ContainerResponses[0].DeviceIDs
				if _, err := lists.allocate(strings.Join(ids, " ")); err == nil {
					accepted++
					continue
				}
				rejected++
				if want := lists.acceptedIDs(request); want != nil {
					t.Fatalf("%v with %s, policy %s: preferred: got %q, which is rejected, want %q",
						request, lists.newest, rules.Policy, ids, want)
				}
			}
		})
	}
	if min(accepted, rejected) < 100 {
		t.Errorf("got %d results rejected, %d accepted: too few of a kind", rejected, accepted)
	}
}
