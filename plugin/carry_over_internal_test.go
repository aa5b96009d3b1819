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

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// serverWith returns the server of an endpoint with a list from the rules, while containers have earlier ids.
func serverWith(rules Rules, statuses []device.Status, allocated ...device.AdvertisedID) *server {
	e := endpointFor("", Rules{}, statuses...)
	e.devices.Set(&deviceList{})
	e.fakeSource().GetAllocations = allocationsOf(gpuResource, allocated...)
	s := &server{endpoint: e}
	s.updateList(rules, statuses)
	return s
}

// allocationsOf returns allocations of a resource by these ids.
func allocationsOf(resource string, allocated ...device.AdvertisedID) func() (device.Allocations, <-chan struct{}) {
	var h device.Allocations
	for _, id := range allocated {
		h.All = append(h.All, device.Allocation{Resource: resource, DeviceID: id})
	}
	slices.SortFunc(h.All, device.CompareAllocations)
	return constant(h)
}

// updateList updates the list as Plugin.Run does.
func (s *server) updateList(rules Rules, statuses []device.Status) {
	lists, _ := rules.deviceLists(statuses)
	allocations, _ := s.Allocations()
	s.setDevices(cmp.Or(lists[gpuResource], &deviceList{rules: rules}), statuses, allocations, time.Now())
}

// preferredIDs returns the preferred ids for a container.
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

// sharingAll returns rules with n replicas of each device.
func sharingAll(n int) Rules {
	return Rules{Sharing: func(_ string, devices []device.Device) []config.DeviceSharing {
		return slices.Repeat([]config.DeviceSharing{{Replicas: n}}, len(devices))
	}}
}

func TestAllocatedWholeGPUIsALoad(t *testing.T) {
	s := serverWith(sharingAll(2), parseStatuses("0 1"), "GPU-0")
	if got := s.preferredIDs(t, 1, "GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"); fmt.Sprint(got) != "[GPU-1::0]" {
		t.Errorf("preferred: got %q", got)
	}
	if got := s.preferredIDs(t, 1, "GPU-0", "GPU-0::1"); fmt.Sprint(got) != "[GPU-0::1]" { // released by the kubelet before the new list
		t.Errorf("preferred: got %q, want only ids that Allocate accepts", got)
	}
}

// TestWithdrawnReplicaDoesNotDecideThePolicy checks that links decide among whole GPUs, even if a replica is still allocated.
func TestWithdrawnReplicaDoesNotDecideThePolicy(t *testing.T) {
	s := serverWith(Rules{}, parseStatuses("0 1 2 3"), "GPU-3::1")
	s.fakeSource().GetLinks = func() []device.Link { return []device.Link{{A: "GPU-1", B: "GPU-2", NVLinks: 4}} }
	if got := s.preferredIDs(t, 2, "GPU-0", "GPU-1", "GPU-2"); fmt.Sprint(got) != "[GPU-1 GPU-2]" {
		t.Errorf("preferred: got %q", got)
	}
}

// TestAllocatedReplicaBlocksTheWholeGPU checks that an unshared GPU is not allocated while a container has an old replica.
func TestAllocatedReplicaBlocksTheWholeGPU(t *testing.T) {
	s := serverWith(Rules{}, parseStatuses("0 1"), "GPU-0::1")
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0! GPU-0::1 GPU-1" {
		t.Errorf("list: got %q", got)
	}
	_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"GPU-0"}}}})
	if err == nil || !strings.Contains(err.Error(), "GPU-0 is allocated to another container, as GPU-0::1 of nvidia.com/gpu") {
		t.Errorf("Allocate: got error %v", err)
	}
	for _, allocated := range [][]device.AdvertisedID{
		{"GPU-0"},             // the listed id alone
		{"GPU-0", "GPU-0::1"}, // both: the pod's status shows the health of GPU-0
	} {
		s := serverWith(Rules{}, parseStatuses("0"), allocated...)
		if i, _ := s.list().find("GPU-0"); !i.healthy {
			t.Errorf("with allocations %q: got GPU-0 unhealthy (%s)", allocated, i.unusableReason)
		}
	}
	if s := serverWith(sharingAll(2), parseStatuses("0"), "GPU-0"); s.list().healthyCount() != 3 {
		t.Errorf("an allocated whole GPU must not block replicas: got list %q", formatLists(map[string]*deviceList{"": s.list()}))
	}
}

// TestGPUAllocatedAsASecondResource checks that an allocation by an old resource, or by a foreign plugin, blocks the GPU.
func TestGPUAllocatedAsASecondResource(t *testing.T) {
	s := serverWith(Rules{}, parseStatuses("0 1"))
	s.fakeSource().GetAllocations = allocationsOf("nvidia.com/a100", "GPU-1")
	s.updateList(Rules{}, parseStatuses("0 1"))
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0 GPU-1!" {
		t.Errorf("list: got %q", got)
	}
}

// TestClaimsReserveNoDevice checks that claims reserve devices only by configuration: the kubelet does not report admin access.
func TestClaimsReserveNoDevice(t *testing.T) {
	for _, c := range []struct {
		reserve bool
		want    string
	}{{false, ": GPU-0 GPU-1"}, {true, ": GPU-0 GPU-1!"}} {
		rules := Rules{ReserveClaimed: c.reserve}
		s := serverWith(rules, parseStatuses("0 1"))
		s.fakeSource().GetAllocations = allocationsOf("gpu.nvidia.com", "GPU-1")
		s.updateList(rules, parseStatuses("0 1"))
		if got := formatLists(map[string]*deviceList{"": s.list()}); got != c.want {
			t.Errorf("claims reserve devices: %t: got list %q, want %q", c.reserve, got, c.want)
		}
	}
}

// startChecks returns the checks and the result of a start with these ids.
func (s *server) startChecks(t *testing.T, ids ...string) (checks []UsabilityCheck, err error) {
	t.Helper()
	requested := make(chan UsabilityCheck, len(ids))
	s.fakeSource().Check = func(_ context.Context, a UsabilityCheck) error { requested <- a; return nil }
	_, err = s.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: ids})
	close(requested)
	for a := range requested {
		checks = append(checks, a)
	}
	return checks, err
}

// TestPreStartOfAWithdrawnGPU checks that the container of a GPU that became shared restarts beside containers of replicas.
func TestPreStartOfAWithdrawnGPU(t *testing.T) {
	rules := sharingAll(2)
	rules.PreStartCheck = true
	checks, err := serverWith(rules, parseStatuses("0"), "GPU-0").startChecks(t, "GPU-0")
	if err != nil || len(checks) != 1 || checks[0].Exclusive {
		t.Errorf("got checks %+v, error %v", checks, err)
	}
	if _, err := serverWith(rules, parseStatuses("0!"), "GPU-0").startChecks(t, "GPU-0"); err == nil {
		t.Error("start on an unhealthy device: got no error")
	}
}

// TestPreStartWithoutTheMPSDaemon checks that PreStartContainer rejects like Allocate.
func TestPreStartWithoutTheMPSDaemon(t *testing.T) {
	rules := sharingAll(2)
	rules.PreStartCheck = true
	rules.MPSErrors = map[string]string{gpuResource: "no daemon"}
	checks, err := serverWith(rules, parseStatuses("0")).startChecks(t, "GPU-0::1")
	if len(checks) > 0 || err == nil || !strings.Contains(err.Error(), "GPU-0::1 is unhealthy (mps_daemon)") {
		t.Errorf("got checks %+v, error %v", checks, err)
	}
	s := serverWith(rules, parseStatuses("0"), "GPU-0::1")
	s.updateList(Rules{PreStartCheck: true}, parseStatuses("0"))
	if checks, err := s.startChecks(t, "GPU-0::1"); len(checks) != 1 || err != nil {
		t.Errorf("without MPS: got checks %+v, error %v", checks, err)
	}
}

// TestIDsAreListedOnce covers an ending container and the next container, which may briefly have the same id.
func TestIDsAreListedOnce(t *testing.T) {
	s := serverWith(sharingAll(1), parseStatuses("0"), "GPU-0", "GPU-0", "GPU-0::7", "GPU-0::7")
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0 GPU-0::0 GPU-0::7" {
		t.Errorf("list: got %q", got)
	}
}

// fakeStream is a stream whose Send is a function of the test.
type fakeStream struct {
	grpc.ServerStreamingServer[api.ListAndWatchResponse]
	ctx  context.Context
	send func(*api.ListAndWatchResponse) error
}

func (s *fakeStream) Context() context.Context                  { return s.ctx }
func (s *fakeStream) Send(list *api.ListAndWatchResponse) error { return s.send(list) }

// TestDeviceVanishesDuringSend checks that the device stays listed: the kubelet may choose from a list before Send returns.
func TestDeviceVanishesDuringSend(t *testing.T) {
	s := serverWith(Rules{}, parseStatuses("0 1"))
	s.stopping, s.kubeletStreamOpened, s.kubeletStreamEnded = make(chan struct{}), make(chan struct{}), make(chan struct{})
	err := s.ListAndWatch(nil, &fakeStream{ctx: t.Context(), send: func(*api.ListAndWatchResponse) error {
		s.updateList(Rules{}, parseStatuses("0"))
		return io.EOF
	}})
	if got := formatLists(map[string]*deviceList{"": s.list()}); got != ": GPU-0 GPU-1!" || !errors.Is(err, io.EOF) {
		t.Errorf("got list %q, error %v", got, err)
	}
}
