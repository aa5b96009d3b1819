package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// sharingByIndex shares the GPUs with these indices.
func sharingByIndex(counts map[int]config.DeviceSharing) func(string, []device.Device) []config.DeviceSharing {
	return func(_ string, devices []device.Device) []config.DeviceSharing {
		sharings := make([]config.DeviceSharing, len(devices))
		for i, d := range devices {
			sharings[i] = counts[d.Index]
		}
		return sharings
	}
}

// sharedRules shares each device.
func sharedRules(n int) plugin.Rules {
	return plugin.Rules{Sharing: func(_ string, devices []device.Device) []config.DeviceSharing {
		return slices.Repeat([]config.DeviceSharing{{Replicas: n}}, len(devices))
	}}
}

// TestAllocate checks the visible devices of containers, or the rejection: its
// text for the pod's status and the log, and its reason for the metric. The
// newest devices and allocations decide, which the kubelet's list may lack.
func TestAllocate(t *testing.T) {
	onlyOne := plugin.Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{
		0: {Replicas: 2, OnePerContainer: true}, 1: {Replicas: 2, OnePerContainer: true},
	})}
	distinct := sharedRules(2)
	distinct.Policy = preferred.Distinct
	withoutMPS := plugin.Rules{
		Sharing:   sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}}),
		MPSErrors: map[string]string{resource: "no daemon"},
	}
	unshared := plugin.Rules{}
	reserving := plugin.Rules{ReserveClaimed: true}
	const (
		allFaults     = "GPU-2 is unhealthy (xid_79), GPU-3 is unhealthy (lost), GPU-77 is unknown"
		tooMany       = " is shared: a container can request one such device, not 2"
		twoReplicas   = "GPU-1::0" + tooMany + ", GPU-1::1" + tooMany
		sameGPU       = "GPU-0::1 is of the same GPU as GPU-0::0"
		withoutDaemon = "GPU-0::1 is unhealthy (mps_daemon)"
		elsewhere     = "GPU-1 is allocated to another container, as "
	)
	for _, c := range []struct {
		name       string
		rules      plugin.Rules
		newer      string // "devices; allocated" after the list
		containers string // ids by container: "GPU-0 GPU-1; GPU-2"
		want       string // visible devices by container, or the text of the rejection
		reason     plugin.RejectReason
	}{
		{"one device", unshared, "", "GPU-1", "GPU-1", ""},
		{"in the order of the node", unshared, "", "GPU-10 GPU-9", "GPU-9,GPU-10", ""},
		{"two containers", unshared, "", "GPU-1; GPU-0", "GPU-1; GPU-0", ""},
		{"no id", unshared, "", "", "a container requests no device", plugin.RejectNoIDs},
		{"unknown", unshared, "", "GPU-77", "GPU-77 is unknown", plugin.RejectUnknown},
		{"no name", unshared, "", "::1", "::1 is unknown", plugin.RejectUnknown},
		{"a part of a name", unshared, "", "GPU", "GPU is unknown", plugin.RejectUnknown},
		{"a replica of an unshared GPU", unshared, "", "GPU-1::0", "GPU-1::0 is unknown", plugin.RejectUnknown},
		{"unhealthy", unshared, "", "GPU-2", "GPU-2 is unhealthy (xid_79)", plugin.RejectUnhealthy},
		{"all faults", unshared, "", "GPU-77; GPU-0; GPU-3 GPU-2", allFaults, plugin.RejectUnhealthy},
		{"failed since the list", unshared, "0 1!;", "GPU-1", "GPU-1 is unhealthy ()", plugin.RejectUnhealthy},
		{"gone since the list", unshared, "0;", "GPU-1", "GPU-1 is unknown", plugin.RejectUnknown},

		{"replicas", sharedRules(2), "", "GPU-0::1 GPU-0::0", "GPU-0", ""},
		{"one replica allowed", onlyOne, "", "GPU-0::0", "GPU-0", ""},
		{"two replicas, one allowed", onlyOne, "", "GPU-1::1 GPU-1::0", twoReplicas, plugin.RejectTooMany},
		{"distinct GPUs", distinct, "", "GPU-0::0 GPU-1::1", "GPU-0,GPU-1", ""},
		{"two replicas of a distinct GPU", distinct, "", "GPU-0::0 GPU-0::1", sameGPU, plugin.RejectSameGPU},
		{"no MPS daemon, a replica", withoutMPS, "", "GPU-0::1", withoutDaemon, plugin.RejectUnhealthy},
		{"no MPS daemon, an unshared GPU", withoutMPS, "", "GPU-1", "GPU-1", ""},

		{"as a second resource", unshared, "0 1; nvidia.com/a100=GPU-1", "GPU-1", elsewhere + "GPU-1 of nvidia.com/a100", plugin.RejectAllocated},
		{"by a withdrawn replica", unshared, "0 1; GPU-1::3", "GPU-0 GPU-1", elsewhere + "GPU-1::3 of nvidia.com/gpu", plugin.RejectAllocated},
		{"another device is allocated", unshared, "0 1; nvidia.com/a100=GPU-1", "GPU-0", "GPU-0", ""},
		{"the kubelet knows the end first", unshared, "0 1; GPU-1", "GPU-1", "GPU-1", ""},
		{"another replica is allocated", sharedRules(2), "0 1; GPU-1::0", "GPU-1::1", "GPU-1", ""},
		{"a claim", unshared, "0 1; gpu.nvidia.com=GPU-1", "GPU-1", "GPU-1", ""},
		{"a reserving claim", reserving, "0 1; gpu.nvidia.com=GPU-1", "GPU-1", elsewhere + "GPU-1 of gpu.nvidia.com", plugin.RejectAllocated},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFixture(t)
			s.rules.Set(c.rules)
			lists := s.watchLists(unhealthy(unhealthy(statuses(11), 2, "xid_79"), 3, "lost"))
			if devices, allocated, found := strings.Cut(c.newer, ";"); found {
				s.inventory.Replace(parseStatuses(devices)) // without a wake-up
				s.allocations.Replace(parseAllocations(allocated))
			}
			containers := strings.Split(c.containers, ";")
			got, err := lists.allocate(containers...)
			if c.reason == "" && strings.Join(got, "; ") != c.want {
				t.Errorf("visible devices: got %q, want %q", got, c.want)
			}
			s.wantRejection(err, containers, c.reason, c.want)
		})
	}
}

// TestEndOfAnAllocation checks that the end of an allocation counts before the
// next list.
func TestEndOfAnAllocation(t *testing.T) {
	s := newFixture(t)
	s.allocations.Set(parseAllocations("GPU-1::3"))
	lists := s.watchLists(parseStatuses("0 1"))
	s.allocations.Replace(parseAllocations(""))
	if got, err := lists.allocate("GPU-1"); err != nil || !slices.Equal(got, []string{"GPU-1"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

// wantRejection checks error, hooks and log after an Allocate; the reason is
// empty without a rejection.
func (s *fixture) wantRejection(err error, containers []string, reason plugin.RejectReason, text string) {
	s.Helper()
	s.poll("the hooks have the call", func() (done bool) {
		s.recorded.record(func() { done = len(s.recorded.allocateErrs) == 1 })
		return done && (reason != "" || len(s.recorded.allocations()) == 1)
	})
	var ids []device.AdvertisedID
	for id := range strings.FieldsSeq(strings.Join(containers, " ")) {
		ids = append(ids, device.AdvertisedID(id))
	}
	rejections, logged := s.recorded.takeRejections(), s.log.Matching("container rejected")
	if reason == "" {
		if err != nil || len(rejections)+len(logged) > 0 || !slices.Equal(s.recorded.allocations()[0], ids) {
			s.Errorf("got %v, rejections %v, log %q, allocated %q", err, rejections, logged, s.recorded.allocations())
		}
		return
	}
	if status.Code(err) != codes.FailedPrecondition || status.Convert(err).Message() != "cannot allocate: "+text {
		s.Errorf("got error %v, want %q", err, text)
	}
	if len(rejections) != 1 || rejections[0].reason != reason || !slices.Equal(rejections[0].ids, ids) {
		s.Errorf("hook: got %v, want reason %q", rejections, reason)
	}
	if len(logged) != 1 || !strings.Contains(logged[0], text) || len(s.recorded.allocations()) > 0 {
		s.Errorf("got log %q, allocated %q", logged, s.recorded.allocations())
	}
}

// TestRepeatedRejection checks that each rejection is counted but logged once:
// the kubelet retries a start every few seconds, with the ids in random order.
func TestRepeatedRejection(t *testing.T) {
	s := newFixture(t)
	lists := s.watchLists(parseStatuses("0! 1!"))
	for _, ids := range []string{"GPU-0 GPU-7", "GPU-7 GPU-0", "GPU-0 GPU-7", "GPU-1"} {
		if _, err := lists.allocate(ids); err == nil {
			t.Errorf("%s: got no error, want a rejection", ids)
		}
	}
	rejections := s.recorded.takeRejections()
	otherReason := func(r rejection) bool { return r.reason != plugin.RejectUnhealthy }
	if len(rejections) != 4 || slices.ContainsFunc(rejections, otherReason) {
		t.Errorf("hook: got %v, want 4 times %q", rejections, plugin.RejectUnhealthy)
	}
	if lines := s.log.Matching("container rejected"); len(lines) != 2 { // a line for each fault
		t.Errorf("log: got %q", lines)
	}
}

// TestMPSIsForReplicas checks that an unshared device beside MPS replicas needs
// no daemon.
func TestMPSIsForReplicas(t *testing.T) {
	s := newFixture(t)
	s.rules.Set(plugin.Rules{
		Sharing:  sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}}),
		Response: response.Options{MPSRoot: "/run/nvidia/mps"},
	})
	lists := s.watchLists(statuses(2))
	for ids, want := range map[string]bool{"GPU-0::0": true, "GPU-1": false, "GPU-1 GPU-0::1": true} {
		got, err := lists.Allocate(s.ctx, allocateRequest(ids))
		s.must(err)
		c := got.ContainerResponses[0]
		if _, has := c.Envs["CUDA_MPS_PIPE_DIRECTORY"]; has != want || (len(c.Mounts) > 0) != want {
			t.Errorf("%q: got environment %v, mounts %v", ids, c.Envs, c.Mounts)
		}
	}
}

// TestAllocateFollowsTheRules checks that Allocate applies the newest rules.
func TestAllocateFollowsTheRules(t *testing.T) {
	s := newFixture(t)
	s.rules.Set(plugin.Rules{Response: response.Options{IDStrategy: response.Index}})
	lists := s.watchLists(statuses(1))
	if got, err := lists.allocate("GPU-0"); err != nil || !slices.Equal(got, []string{"0"}) {
		t.Errorf("response: got %q, %v", got, err)
	}
	s.rules.Set(plugin.Rules{})
	s.poll("the response follows the new rules", func() bool {
		got, err := lists.allocate("GPU-0")
		return err == nil && slices.Equal(got, []string{"GPU-0"})
	})
}

// FuzzAllocate requests arbitrary ids, and checks that Allocate grants only
// requested, healthy devices.
func FuzzAllocate(f *testing.F) {
	for _, seed := range []string{
		"", "GPU-a", "GPU-b,GPU-a::1", "GPU-b,GPU-a", "GPU-a::0,GPU-a::1", "GPU-a::01", "GPU-x", "GPU-a|GPU-b",
		"GPU-a|", ",", "::", "::GPU-a", "GPU-a::", "GPU-a::::1", "GPU-a:1", "gpu-a", "GPU-a\x00", "GPU-a,GPU-gone",
		"|||", " GPU-a", strings.Repeat("GPU-a::7,", 100),
	} {
		f.Add(seed)
	}
	all := statuses(3)
	for i, id := range []device.ID{"GPU-a", "GPU-b", "GPU-x"} {
		all[i].ID, all[i].GPU = id, device.GPU(id)
	}
	s := newFixture(f)
	s.ctx = f.Context() // without a timeout
	s.rules.Set(plugin.Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}})})
	lists := s.watchLists(unhealthy(all, 2, "lost"))
	good := map[string]string{"GPU-b": "GPU-b", "GPU-a::0": "GPU-a", "GPU-a::1": "GPU-a"}
	f.Fuzz(func(t *testing.T, text string) {
		if !utf8.ValidString(text) {
			return // gRPC rejects the request
		}
		r, wants, granted := &api.AllocateRequest{}, []string{}, true
		for c := range strings.SplitSeq(text, "|") {
			var ids, want []string
			if c != "" {
				ids = strings.Split(c, ",")
			}
			for _, id := range ids {
				want = append(want, good[id])
				granted = granted && good[id] != ""
			}
			granted = granted && len(ids) > 0
			slices.Sort(want)
			wants = append(wants, strings.Join(slices.Compact(want), ","))
			r.ContainerRequests = append(r.ContainerRequests, &api.ContainerAllocateRequest{DevicesIds: ids})
		}
		resp, err := lists.Allocate(context.Background(), r)
		if (err == nil) != granted {
			t.Fatalf("%q: got %v, %v", text, resp, err)
		}
		for i, c := range resp.GetContainerResponses() {
			expect.Equal(t, c.Envs["NVIDIA_VISIBLE_DEVICES"], wants[i], text, ": container", i)
		}
	})
}

// TestPreStart checks that the kubelet asks before each start if the rules
// require the check, and that a faulty device rejects the start.
func TestPreStart(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		checks := make(chan bool, 10)
		s.options.CheckUsable = func(_ context.Context, d device.Device, exclusive bool) error {
			checks <- exclusive
			return nil
		}
		s.start(2)
		s.must(s.kubelet.RunPod(s.ctx, pod("unasked", resource, 1)))
		old := s.socket()
		s.rules.Set(plugin.Rules{PreStartCheck: true})
		s.waitNewSocket(2, old)
		s.must(s.kubelet.RunPod(s.ctx, pod("checked", resource, 1)))
		if len(checks) != 1 || !<-checks {
			s.Errorf("got %d more checks, want one of an exclusive device", len(checks))
		}
	})
}

// TestPreStartChecks covers a GPU that became shared, whose container restarts
// beside containers of replicas, replicas of MPS, and a device that hangs.
func TestPreStartChecks(t *testing.T) {
	inUse := func(_ context.Context, d device.Device, exclusive bool) error {
		if exclusive {
			return fmt.Errorf("%s is in use by process 4711", d.ID)
		}
		return nil
	}
	hanging := func(ctx context.Context, d device.Device, _ bool) error {
		<-ctx.Done()
		return fmt.Errorf("%s does not respond", d.ID)
	}
	unchecked := func(context.Context, device.Device, bool) error { return errors.New("unnecessary check") }
	noDaemon := sharedRules(2)
	noDaemon.MPSErrors = map[string]string{resource: "no daemon"}
	for _, c := range []struct {
		name      string
		rules     plugin.Rules
		inventory string
		allocated string
		ids       string
		check     func(context.Context, device.Device, bool) error
		want      string // in the error; empty: accepted
	}{
		{"an exclusive GPU in use", plugin.Rules{}, "0", "", "GPU-0", inUse, "GPU-0 is in use by process 4711"},
		{"a withdrawn GPU", sharedRules(2), "0", "GPU-0", "GPU-0", inUse, ""},
		{"a withdrawn replica", plugin.Rules{}, "0", "GPU-0::1", "GPU-0::1", inUse, ""},
		{"a withdrawn GPU that failed", sharedRules(2), "0!", "GPU-0", "GPU-0", unchecked, "GPU-0 is unhealthy ()"},
		{"an allocated GPU that is gone", plugin.Rules{}, "0", "GPU-1", "GPU-1", unchecked, "GPU-1 is gone"},
		{"no MPS daemon", noDaemon, "0", "", "GPU-0::1", unchecked, "GPU-0::1 is unhealthy (mps_daemon)"},
		{"hanging and unknown devices", plugin.Rules{}, "0 1", "", "GPU-1 GPU-0 GPU-77", hanging, "GPU-0 does not respond, GPU-1 does not respond"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t)
			c.rules.PreStartCheck = true
			s.rules.Set(c.rules)
			s.allocations.Set(parseAllocations(c.allocated))
			s.options.CheckUsable = c.check
			lists := s.watchLists(parseStatuses(c.inventory))
			_, err := lists.PreStartContainer(s.ctx, &api.PreStartContainerRequest{DevicesIds: strings.Fields(c.ids)})
			if got := strings.TrimPrefix(status.Convert(err).Message(), "cannot start: "); got != c.want {
				t.Errorf("start: got error %v, want %q", err, c.want)
			}
		})
	}
}

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
			expect.Equal(t, lists.prefer(c.size, c.available), c.want, "preferred")
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
