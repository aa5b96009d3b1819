package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// serverHolding is a life of an endpoint that offers what is on the board, by these
// rules, while containers hold ids from before.
func serverHolding(rules Rules, statuses []device.Status, allocated ...device.AdvertisedID) *server {
	e := endpointFor("", Rules{}, statuses...)
	e.devices.Set(&deviceList{})
	e.fakeSource().GetAllocations = allocationsOf(gpuResource, allocated...)
	s := &server{endpoint: e}
	s.updateList(rules, statuses)
	return s
}

// allocationsOf has containers hold ids of a resource.
func allocationsOf(resource string, allocated ...device.AdvertisedID) func() (device.Allocations, <-chan struct{}) {
	var h device.Allocations
	for _, id := range allocated {
		h.All = append(h.All, device.Allocation{Resource: resource, DeviceID: id})
	}
	slices.SortFunc(h.All, device.CompareAllocations)
	return constant(h)
}

// updateList is one of Plugin.Run, for this endpoint.
func (s *server) updateList(rules Rules, statuses []device.Status) {
	lists, _ := rules.deviceLists(statuses)
	allocations, _ := s.Allocations()
	s.setDevices(cmp.Or(lists[gpuResource], &deviceList{rules: rules}), statuses, allocations, time.Now())
}

// preferredIDs is which of the ids a container gets that asks for so many.
func (s *server) preferredIDs(t *testing.T, size int32, available ...string) []string {
	t.Helper()
	a, err := s.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, AllocationSize: size}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a.ContainerResponses[0].DeviceIDs
}

// sharingAll shares each device so often.
func sharingAll(n int) Rules {
	return Rules{Sharing: func(_ string, devices []device.Device) []Sharing {
		return slices.Repeat([]Sharing{{Replicas: n}}, len(devices))
	}}
}

func TestAHeldWholeGPUIsALoad(t *testing.T) {
	s := serverHolding(sharingAll(2), parseStatuses("0 1"), "GPU-0")
	if got := s.preferredIDs(t, 1, "GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"); fmt.Sprint(got) != "[GPU-1::0]" {
		t.Errorf("preferred is %q", got)
	}
	if got := s.preferredIDs(t, 1, "GPU-0", "GPU-0::1"); fmt.Sprint(got) != "[GPU-0::1]" { // the kubelet has freed it, and not been told
		t.Errorf("preferred is %q, which Allocate refuses", got)
	}
}

// A replica from before the GPUs were whole again does not make them parts: links
// decide.
func TestAHeldReplicaLeavesWholeGPUsWhole(t *testing.T) {
	s := serverHolding(Rules{}, parseStatuses("0 1 2 3"), "GPU-3::1")
	s.fakeSource().GetLinks = func() []device.Link { return []device.Link{{A: "GPU-1", B: "GPU-2", NVLinks: 4}} }
	if got := s.preferredIDs(t, 2, "GPU-0", "GPU-1", "GPU-2"); fmt.Sprint(got) != "[GPU-1 GPU-2]" {
		t.Errorf("preferred is %q", got)
	}
}

// A GPU is not had alone while somebody has a replica of it from before.
func TestAHeldReplicaKeepsItsGPUFromBeingGivenAway(t *testing.T) {
	s := serverHolding(Rules{}, parseStatuses("0 1"), "GPU-0::1")
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0! GPU-0::1 GPU-1" {
		t.Errorf("offered is %q", got)
	}
	_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"GPU-0"}}}})
	if err == nil || !strings.Contains(err.Error(), "GPU-0 is allocated to another container, as GPU-0::1 of nvidia.com/gpu") {
		t.Errorf("Allocate answers %v", err)
	}
	for _, allocated := range [][]device.AdvertisedID{
		{"GPU-0"},             // by who may have it
		{"GPU-0", "GPU-0::1"}, // by both: the pod's status is not to be wrong
	} {
		s := serverHolding(Rules{}, parseStatuses("0"), allocated...)
		if i, _ := s.list().find("GPU-0"); !i.healthy {
			t.Errorf("held are %q, and GPU-0 is unhealthy (%s)", allocated, i.unusableReason)
		}
	}
	if s := serverHolding(sharingAll(2), parseStatuses("0"), "GPU-0"); s.list().healthyCount() != 3 {
		t.Errorf("replicas are not to be had alone, and offered is %q", formatLists(map[string]*deviceList{"": s.list()}))
	}
}

// Nor while somebody has it as another resource, or of another plugin.
func TestAGPUThatIsHeldAsAnotherResource(t *testing.T) {
	s := serverHolding(Rules{}, parseStatuses("0 1"))
	s.fakeSource().GetAllocations = allocationsOf("nvidia.com/a100", "GPU-1")
	s.updateList(Rules{}, parseStatuses("0 1"))
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0 GPU-1!" {
		t.Errorf("offered is %q", got)
	}
}

// TestAClaimReservesNoDevice: a claim may have admin access, which the kubelet does not
// report, so it takes a device from the list only where the rules ask for that.
func TestAClaimReservesNoDevice(t *testing.T) {
	for _, c := range []struct {
		reserve bool
		want    string
	}{{false, ": GPU-0 GPU-1"}, {true, ": GPU-0 GPU-1!"}} {
		rules := Rules{ReserveClaimed: c.reserve}
		s := serverHolding(rules, parseStatuses("0 1"))
		s.fakeSource().GetAllocations = allocationsOf("gpu.nvidia.com", "GPU-1")
		s.updateList(rules, parseStatuses("0 1"))
		if got := formatLists(map[string]*deviceList{"": s.list()}); got != c.want {
			t.Errorf("claims reserve devices: %t; offered is %q, want %q", c.reserve, got, c.want)
		}
	}
}

// startChecks is what is asked of devices before a start on these ids, and what came of it.
func (s *server) startChecks(t *testing.T, ids ...string) (checks []UsabilityCheck, err error) {
	t.Helper()
	answers := make(chan UsabilityCheck, len(ids))
	s.fakeSource().Check = func(_ context.Context, a UsabilityCheck) error { answers <- a; return nil }
	_, err = s.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: ids})
	close(answers)
	for a := range answers {
		checks = append(checks, a)
	}
	return checks, err
}

// A container on a GPU that is shared by now starts anew beside the replicas'.
func TestAStartOnAGPUThatIsSharedByNow(t *testing.T) {
	rules := sharingAll(2)
	rules.PreStartCheck = true
	checks, err := serverHolding(rules, parseStatuses("0"), "GPU-0").startChecks(t, "GPU-0")
	if err != nil || len(checks) != 1 || checks[0].Exclusive {
		t.Errorf("asked was %+v, and the answer is %v", checks, err)
	}
	if _, err := serverHolding(rules, parseStatuses("0!"), "GPU-0").startChecks(t, "GPU-0"); err == nil {
		t.Error("it starts on a device that has failed")
	}
}

// What nobody serves is no better before a later start than at Allocate.
func TestAStartWhileTheMPSDaemonIsDown(t *testing.T) {
	rules := sharingAll(2)
	rules.PreStartCheck = true
	rules.UnusableReason = func(string) string { return "mps_daemon" }
	checks, err := serverHolding(rules, parseStatuses("0")).startChecks(t, "GPU-0::1")
	if len(checks) > 0 || err == nil || !strings.Contains(err.Error(), "GPU-0::1 is unhealthy (mps_daemon)") {
		t.Errorf("asked was %+v, and the answer is %v", checks, err)
	}
	s := serverHolding(rules, parseStatuses("0"), "GPU-0::1")
	s.updateList(Rules{PreStartCheck: true}, parseStatuses("0"))
	if checks, err := s.startChecks(t, "GPU-0::1"); len(checks) != 1 || err != nil {
		t.Errorf("the daemon is not wanted any more: asked was %+v, and the answer is %v", checks, err)
	}
}

// Two containers may hold one id for a moment: the one that ends, and the next.
func TestAnIDThatTwoHoldIsListedOnce(t *testing.T) {
	s := serverHolding(sharingAll(1), parseStatuses("0"), "GPU-0", "GPU-0", "GPU-0::7", "GPU-0::7")
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0 GPU-0::0 GPU-0::7" {
		t.Errorf("offered is %q", got)
	}
}

// fakeStream is a stream whose sends a test takes part in.
type fakeStream struct {
	grpc.ServerStreamingServer[api.ListAndWatchResponse]
	ctx  context.Context
	send func(*api.ListAndWatchResponse) error
}

func (s *fakeStream) Context() context.Context                  { return s.ctx }
func (s *fakeStream) Send(list *api.ListAndWatchResponse) error { return s.send(list) }

// The kubelet may choose from a list as soon as it has it, which is before Send
// returns: what goes then must not vanish within its Allocate.
func TestWhatGoesWhileTheListIsSent(t *testing.T) {
	s := serverHolding(Rules{}, parseStatuses("0 1"))
	s.stopping, s.kubeletStreamOpened, s.kubeletStreamEnded = make(chan struct{}), make(chan struct{}), make(chan struct{})
	err := s.ListAndWatch(nil, &fakeStream{ctx: t.Context(), send: func(*api.ListAndWatchResponse) error {
		s.updateList(Rules{}, parseStatuses("0"))
		return io.EOF
	}})
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0 GPU-1!" || !errors.Is(err, io.EOF) {
		t.Errorf("offered is %q, %v", got, err)
	}
}
