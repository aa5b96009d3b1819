package plugin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// listStream is the kubelet's stream of lists, with the plugin's client.
type listStream struct {
	*fixture
	api.DevicePluginClient
	stream grpc.ServerStreamingClient[api.ListAndWatchResponse]
	newest string // "GPU-0 GPU-1!": GPU-1 is unhealthy
}

// watchLists starts the plugin with the statuses, and watches as the kubelet
// does.
func (s *fixture) watchLists(words string) *listStream {
	s.Helper()
	s.inventory.Set(plugin.ParseStatuses(words))
	streams := make(chan *listStream, 1)
	s.serveRegistration(func(ctx context.Context, endpoint string) error {
		client := s.dial(endpoint)
		if _, err := client.GetDevicePluginOptions(ctx, &api.Empty{}); err != nil {
			return err
		}
		stream, first, err := s.stream(s.ctx, endpoint)
		if err == nil {
			streams <- &listStream{s, client, stream, formatList(first)}
		}
		return err
	})
	s.startPlugin()
	return receive(s, streams)
}

func formatList(list *api.ListAndWatchResponse) string {
	var all []string
	for _, d := range list.GetDevices() {
		if all = append(all, d.ID); d.Health != api.Healthy {
			all[len(all)-1] += "!"
		}
	}
	return strings.Join(all, " ")
}

// want receives lists up to the wanted list.
func (l *listStream) want(step, want string) {
	l.Helper()
	for l.newest != want {
		list, err := l.stream.Recv()
		if err != nil {
			l.Fatalf("%s: got list %q, then %v; want %q", step, l.newest, err, want)
		}
		l.newest = formatList(list)
	}
}

// parseAllocations parses ids of the resource, and resource=id.
func parseAllocations(words string) (all []device.Allocation) {
	for word := range strings.FieldsSeq(words) {
		a := device.Allocation{Resource: resource, DeviceID: device.AdvertisedID(word)}
		if name, id, other := strings.Cut(word, "="); other {
			a.Resource, a.DeviceID = name, device.AdvertisedID(id)
		}
		all = append(all, a)
	}
	return all
}

// TestListHasAllocatedIDs covers the ids of a list, as steps of a node's life.
func TestListHasAllocatedIDs(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	unshared := plugin.Rules{MIGStrategy: config.MIGSingle}
	reserving := plugin.Rules{ReserveClaimed: true}
	var rules rulesSource
	rules.set(unshared)
	allocations := newAllocationSource()
	s.source.GetRules, s.source.GetAllocations = rules.get, allocations.get
	lists := s.watchLists("0 1 2")
	lists.want("at first", "GPU-0 GPU-1 GPU-2")
	for _, step := range []struct {
		name                 string
		rules                plugin.Rules
		inventory, allocated string
		want                 []string
	}{
		{"a device vanishes", unshared, "0 1", "", []string{"GPU-0 GPU-1 GPU-2!", "GPU-0 GPU-1"}},
		{"a device returns", unshared, "0 1 2", "", []string{"GPU-0 GPU-1 GPU-2"}},
		{"an allocated device vanishes too", unshared, "0", "GPU-1", []string{"GPU-0 GPU-1! GPU-2!", "GPU-0 GPU-1!"}},
		{"the container ends", unshared, "0", "", []string{"GPU-0"}},
		{"the last device vanishes", unshared, "", "", []string{"GPU-0!"}},
		{"the last device returns", unshared, "0", "", []string{"GPU-0"}},
		{"an allocated GPU is partitioned", unshared, "0m 0/1g.10gb", "GPU-0", []string{"GPU-0 MIG-1"}},
		{"the GPU fails", unshared, "0m! 0/1g.10gb!", "GPU-0", []string{"GPU-0! MIG-1!"}},
		{"the GPU recovers", unshared, "0m 0/1g.10gb", "GPU-0", []string{"GPU-0 MIG-1"}},
		{"the GPU is released", unshared, "0m 0/1g.10gb", "", []string{"GPU-0! MIG-1", "MIG-1"}},
		// Existing, lost and foreign devices.
		{
			"ids of an earlier process", unshared, "0m 0/1g.10gb", "GPU-0::1 GPU-7 GPU-8::1 MIG-9 nvidia3",
			[]string{"GPU-0::1 GPU-7! GPU-8::1! MIG-1 MIG-9!"},
		},
		{"their containers end", unshared, "0m 0/1g.10gb", "", []string{"MIG-1"}},
		{"replicas while the GPU is allocated", sharedRules(2), "0", "GPU-0", []string{"GPU-0 GPU-0::0 GPU-0::1"}},
		{"the shared GPU fails", sharedRules(2), "0!", "GPU-0", []string{"GPU-0! GPU-0::0! GPU-0::1!"}},
		{
			"an ending and a starting container have an id", sharedRules(1), "0", "GPU-0 GPU-0 GPU-0::7 GPU-0::7",
			[]string{"GPU-0 GPU-0::0 GPU-0::7"},
		},
		{"a GPU with an allocated replica", unshared, "0 1", "GPU-0::1", []string{"GPU-0! GPU-0::1 GPU-1"}},
		{
			"the pod's status shows the GPU's health", unshared, "0 1", "GPU-0 GPU-0::1",
			[]string{"GPU-0 GPU-0::1 GPU-1"},
		},
		{"allocated as a second resource", unshared, "0 1", "nvidia.com/a100=GPU-1", []string{"GPU-0 GPU-1!"}},
		{"released", unshared, "0 1", "", []string{"GPU-0 GPU-1"}},
		// The kubelet does not report admin access.
		{"allocated to a claim", reserving, "0 1", "gpu.nvidia.com=GPU-1", []string{"GPU-0 GPU-1!"}},
		{"claims reserve no device", unshared, "0 1", "gpu.nvidia.com=GPU-1", []string{"GPU-0 GPU-1"}},
	} {
		began := time.Now()
		allocations.set(parseAllocations(step.allocated)...)
		s.inventory.Set(plugin.ParseStatuses(step.inventory))
		rules.set(step.rules)
		for _, want := range step.want {
			lists.want(step.name, want)
		}
		s.wantFast(step.name, time.Since(began))
	}
	allocations.set(parseAllocations("GPU-0")...)
	rules.set(sharedRules(2))
	lists.want("shared again", "GPU-0 GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1")
	_, err := lists.Allocate(s.ctx, allocateRequest("GPU-0"))
	if got := status.Convert(err).Message(); got != "cannot allocate: GPU-0 is withdrawn" {
		t.Errorf("Allocate of a withdrawn id: got %q", got)
	}
}

// TestSameAllocationsNeedNoUpdate checks that equal allocations cause no
// update: each scrape calls List, and an update of many replicas is slow.
func TestSameAllocationsNeedNoUpdate(t *testing.T) {
	s := newFixture(t)
	allocations := newAllocationSource()
	var reads, updates atomic.Int64
	s.source.GetAllocations = func() (device.Allocations, <-chan struct{}) {
		reads.Add(1)
		return allocations.get()
	}
	s.source.GetRules = constantRules(plugin.Rules{Select: func(device.Device) bool { updates.Add(1); return true }})
	lists := s.watchLists("0 1")
	allocations.set(parseAllocations("GPU-0 nvidia.com/a100=GPU-1")...)
	lists.want("allocated", "GPU-0 GPU-1!")
	before := updates.Load()
	for range 2 {
		last := reads.Load()
		allocations.set(parseAllocations("GPU-0 nvidia.com/a100=GPU-1")...)
		s.poll("the allocations are read", func() bool { return reads.Load() > last })
	}
	if n := updates.Load(); n != before {
		t.Errorf("got %d updates, want none", n-before)
	}
}

// TestAllocateRejectsAllocatedDevices checks current allocations: the kubelet's
// list may be older.
func TestAllocateRejectsAllocatedDevices(t *testing.T) {
	const rejected = "GPU-1 is allocated to another container, as "
	for _, c := range []struct {
		name      string
		rules     plugin.Rules
		listed    string // allocated before the list
		allocated string
		ids       string
		want      string // in the error; empty: accepted
	}{
		{
			"as a second resource",
			plugin.Rules{},
			"", "nvidia.com/a100=GPU-1", "GPU-1",
			rejected + "GPU-1 of nvidia.com/a100",
		},
		{
			"by a withdrawn replica",
			plugin.Rules{},
			"", "GPU-1::3", "GPU-0 GPU-1",
			rejected + "GPU-1::3 of nvidia.com/gpu",
		},
		{"of a different device", plugin.Rules{}, "", "nvidia.com/a100=GPU-1", "GPU-0", ""},
		{"by the requested id: the kubelet knows the end first", plugin.Rules{}, "", "GPU-1", "GPU-1", ""},
		{"a different replica of a shared GPU", sharedRules(2), "", "GPU-1::0", "GPU-1::1", ""},
		{"by a claim", plugin.Rules{}, "", "gpu.nvidia.com=GPU-1", "GPU-1", ""},
		{
			"by a claim that reserves the device",
			plugin.Rules{ReserveClaimed: true},
			"", "gpu.nvidia.com=GPU-1",
			"GPU-1", rejected + "GPU-1 of gpu.nvidia.com",
		},
		{"the container has ended", plugin.Rules{}, "GPU-1::3", "", "GPU-1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFixture(t)
			var allocated atomic.Pointer[string]
			allocated.Store(&c.listed)
			s.source.GetAllocations = func() (device.Allocations, <-chan struct{}) { // without a wake-up
				return device.Allocations{All: parseAllocations(*allocated.Load())}, nil
			}
			s.source.GetRules = constantRules(c.rules)
			client := s.watchLists("0 1")
			allocated.Store(&c.allocated)
			_, err := client.Allocate(s.ctx, allocateRequest(c.ids))
			if (err == nil) != (c.want == "") || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("Allocate: got %v, want %q", err, c.want)
			}
			s.recorded.mu.Lock()
			defer s.recorded.mu.Unlock()
			for _, r := range s.recorded.rejected {
				if r.reason != plugin.RejectAllocated {
					t.Errorf("reason: got %q, want %q", r.reason, plugin.RejectAllocated)
				}
			}
		})
	}
}

// TestPreferredBesideAllocatedIDs checks that the preferred ids are ids that
// Allocate accepts, of the least loaded devices.
func TestPreferredBesideAllocatedIDs(t *testing.T) {
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
		{
			"an allocated GPU is a load", sharedRules(2), "0 1", "GPU-0", 1,
			"GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1", "GPU-1::0",
		},
		{
			"released by the kubelet before the new list", sharedRules(2), "0 1", "GPU-0", 1,
			"GPU-0 GPU-0::1", "GPU-0::1",
		},
		{
			"links decide beside an allocated replica",
			plugin.Rules{},
			"0 1 2 3", "GPU-3::1", 2,
			"GPU-0 GPU-1 GPU-2", "GPU-1 GPU-2",
		},
		{
			"a container may have only one replica", firstShared, "0 1 2", "", 2,
			"GPU-0::0 GPU-0::1 GPU-0::2 GPU-0::3 GPU-1 GPU-2", "GPU-1 GPU-2",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFixture(t)
			s.source.GetRules = constantRules(c.rules)
			s.source.GetAllocations = constantAllocations(c.allocated)
			s.source.GetLinks = func() []device.Link { return links }
			client := s.watchLists(c.inventory)
			if got := s.preferredIDs(client, c.size, c.available); got != c.want {
				t.Errorf("preferred: got %q, want %q", got, c.want)
			}
		})
	}
}

func constantAllocations(words string) func() (device.Allocations, <-chan struct{}) {
	return func() (device.Allocations, <-chan struct{}) {
		return device.Allocations{All: parseAllocations(words)}, nil
	}
}

// preferredIDs returns the preferred ids for a container.
func (s *fixture) preferredIDs(client api.DevicePluginClient, size int, available string) string {
	s.Helper()
	container := &api.ContainerPreferredAllocationRequest{
		AvailableDeviceIDs: strings.Fields(available), AllocationSize: int32(size),
	}
	a, err := client.GetPreferredAllocation(s.ctx, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{container},
	})
	if err != nil {
		s.Fatal(err)
	}
	return strings.Join(slices.Sorted(slices.Values(a.ContainerResponses[0].DeviceIDs)), " ")
}

// TestPreStartChecks covers a GPU that became shared, whose container restarts
// beside containers of replicas, and replicas of MPS.
func TestPreStartChecks(t *testing.T) {
	checked := func(rules plugin.Rules, mpsErrors map[string]string) plugin.Rules {
		rules.PreStartCheck, rules.MPSErrors = true, mpsErrors
		return rules
	}
	for _, c := range []struct {
		name                     string
		rules                    plugin.Rules
		inventory, allocated, id string
		checks                   int
		want                     string // in the error; empty: accepted
	}{
		{"a withdrawn GPU", checked(sharedRules(2), nil), "0", "GPU-0", "GPU-0", 1, ""},
		{"an unhealthy device", checked(sharedRules(2), nil), "0!", "GPU-0", "GPU-0", 0, "GPU-0 is unhealthy"},
		{
			"no MPS daemon", checked(sharedRules(2), map[string]string{resource: "no daemon"}), "0", "", "GPU-0::1", 0,
			"GPU-0::1 is unhealthy (mps_daemon)",
		},
		{"a withdrawn replica", checked(plugin.Rules{}, nil), "0", "GPU-0::1", "GPU-0::1", 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFixture(t)
			s.source.GetRules = constantRules(c.rules)
			s.source.GetAllocations = constantAllocations(c.allocated)
			checks := make(chan plugin.UsabilityCheck, 2)
			s.source.Check = func(_ context.Context, check plugin.UsabilityCheck) error {
				checks <- check
				return nil
			}
			client := s.watchLists(c.inventory)
			_, err := client.PreStartContainer(s.ctx, &api.PreStartContainerRequest{DevicesIds: []string{c.id}})
			if (err == nil) != (c.want == "") || !strings.Contains(status.Convert(err).Message(), c.want) {
				t.Errorf("start: got error %v, want %q", err, c.want)
			}
			if len(checks) != c.checks {
				t.Errorf("got %d checks, want %d", len(checks), c.checks)
			}
			for range len(checks) {
				if check := <-checks; check.Exclusive {
					t.Errorf("got check %+v, want one beside other containers", check)
				}
			}
		})
	}
}
