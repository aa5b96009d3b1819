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

// holding is a life of an endpoint that offers what is on the board, by these
// rules, while containers hold ids from before.
func holding(rules Rules, statuses []device.Status, held ...device.OfferedID) *life {
	e := on("", Rules{}, statuses...)
	e.offered = &offer{}
	e.Holders = as(wholeGPU, held...)
	l := &life{endpoint: e}
	l.turn(rules, statuses)
	return l
}

// as has containers hold ids of a resource.
func as(resource string, held ...device.OfferedID) func() (device.Holders, <-chan struct{}) {
	var h device.Holders
	for _, id := range held {
		h.Held = append(h.Held, device.Holding{Resource: resource, Offered: id})
	}
	slices.SortFunc(h.Held, device.CompareHoldings)
	return func() (device.Holders, <-chan struct{}) { return h, nil }
}

// turn is one of Plugin.Run, for this endpoint.
func (l *life) turn(rules Rules, statuses []device.Status) {
	offers, _ := rules.apply(statuses)
	holders, _ := l.Holders()
	l.offer(cmp.Or(offers[wholeGPU], &offer{rules: rules}), statuses, holders, time.Now())
}

// prefers is which of the ids a container gets that asks for so many.
func (l *life) prefers(t *testing.T, size int32, available ...string) []string {
	t.Helper()
	a, err := l.GetPreferredAllocation(t.Context(), &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, AllocationSize: size}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return a.ContainerResponses[0].DeviceIDs
}

// shareAll shares each device so often.
func shareAll(n int) Rules {
	return Rules{Share: func(_ string, devices []device.Device) []Share {
		return slices.Repeat([]Share{{Replicas: n}}, len(devices))
	}}
}

func TestAHeldWholeGPUIsALoad(t *testing.T) {
	l := holding(shareAll(2), board("0 1"), "GPU-0")
	if got := l.prefers(t, 1, "GPU-0::0", "GPU-0::1", "GPU-1::0", "GPU-1::1"); fmt.Sprint(got) != "[GPU-1::0]" {
		t.Errorf("preferred is %q", got)
	}
	if got := l.prefers(t, 1, "GPU-0", "GPU-0::1"); fmt.Sprint(got) != "[GPU-0::1]" { // the kubelet has freed it, and not been told
		t.Errorf("preferred is %q, which Allocate refuses", got)
	}
}

// A replica from before the GPUs were whole again does not make them parts: links
// decide.
func TestAHeldReplicaLeavesWholeGPUsWhole(t *testing.T) {
	l := holding(Rules{}, board("0 1 2 3"), "GPU-3::1")
	l.Links = func() []device.Link { return []device.Link{{A: "GPU-1", B: "GPU-2", NVLinks: 4}} }
	if got := l.prefers(t, 2, "GPU-0", "GPU-1", "GPU-2"); fmt.Sprint(got) != "[GPU-1 GPU-2]" {
		t.Errorf("preferred is %q", got)
	}
}

// A GPU is not had alone while somebody has a replica of it from before.
func TestAHeldReplicaKeepsItsGPUFromBeingGivenAway(t *testing.T) {
	l := holding(Rules{}, board("0 1"), "GPU-0::1")
	if got := words(map[string]*offer{"": l.offered}); got != ": GPU-0! GPU-0::1 GPU-1" {
		t.Errorf("offered is %q", got)
	}
	_, err := l.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: []string{"GPU-0"}}}})
	if err == nil || !strings.Contains(err.Error(), "GPU-0 is allocated to another container, as GPU-0::1 of nvidia.com/gpu") {
		t.Errorf("Allocate answers %v", err)
	}
	for _, held := range [][]device.OfferedID{
		{"GPU-0"},             // by who may have it
		{"GPU-0", "GPU-0::1"}, // by both: the pod's status is not to be wrong
	} {
		l := holding(Rules{}, board("0"), held...)
		if i, _ := l.offered.find("GPU-0"); !i.healthy {
			t.Errorf("held are %q, and GPU-0 is unhealthy (%s)", held, i.down)
		}
	}
	if l := holding(shareAll(2), board("0"), "GPU-0"); l.offered.healthy() != 3 {
		t.Errorf("replicas are not to be had alone, and offered is %q", words(map[string]*offer{"": l.offered}))
	}
}

// Nor while somebody has it as another resource, or of another plugin.
func TestAGPUThatIsHeldAsAnotherResource(t *testing.T) {
	l := holding(Rules{}, board("0 1"))
	l.Holders = as("nvidia.com/a100", "GPU-1")
	l.turn(Rules{}, board("0 1"))
	if got := words(map[string]*offer{"": l.offered}); got != ": GPU-0 GPU-1!" {
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
		l := holding(rules, board("0 1"))
		l.Holders = as("gpu.nvidia.com", "GPU-1")
		l.turn(rules, board("0 1"))
		if got := words(map[string]*offer{"": l.offered}); got != c.want {
			t.Errorf("claims reserve devices: %t; offered is %q, want %q", c.reserve, got, c.want)
		}
	}
}

// asks is what is asked of devices before a start on these ids, and what came of it.
func (l *life) asks(t *testing.T, ids ...string) (asked []Ask, err error) {
	t.Helper()
	answers := make(chan Ask, len(ids))
	l.Fit = func(_ context.Context, a Ask) error { answers <- a; return nil }
	_, err = l.PreStartContainer(t.Context(), &api.PreStartContainerRequest{DevicesIds: ids})
	close(answers)
	for a := range answers {
		asked = append(asked, a)
	}
	return asked, err
}

// A container on a GPU that is shared by now starts anew beside the replicas'.
func TestAStartOnAGPUThatIsSharedByNow(t *testing.T) {
	rules := shareAll(2)
	rules.PreStart = true
	asked, err := holding(rules, board("0"), "GPU-0").asks(t, "GPU-0")
	if err != nil || len(asked) != 1 || asked[0].Alone {
		t.Errorf("asked was %+v, and the answer is %v", asked, err)
	}
	if _, err := holding(rules, board("0!"), "GPU-0").asks(t, "GPU-0"); err == nil {
		t.Error("it starts on a device that has failed")
	}
}

// What nobody serves is no better before a later start than at Allocate.
func TestAStartWhileTheMPSDaemonIsDown(t *testing.T) {
	rules := shareAll(2)
	rules.PreStart = true
	rules.Down = func(string) string { return "mps_daemon" }
	asked, err := holding(rules, board("0")).asks(t, "GPU-0::1")
	if len(asked) > 0 || err == nil || !strings.Contains(err.Error(), "GPU-0::1 is unhealthy (mps_daemon)") {
		t.Errorf("asked was %+v, and the answer is %v", asked, err)
	}
	l := holding(rules, board("0"), "GPU-0::1")
	l.turn(Rules{PreStart: true}, board("0"))
	if asked, err := l.asks(t, "GPU-0::1"); len(asked) != 1 || err != nil {
		t.Errorf("the daemon is not wanted any more: asked was %+v, and the answer is %v", asked, err)
	}
}

// Two containers may hold one id for a moment: the one that ends, and the next.
func TestAnIDThatTwoHoldIsListedOnce(t *testing.T) {
	l := holding(shareAll(1), board("0"), "GPU-0", "GPU-0", "GPU-0::7", "GPU-0::7")
	if got := words(map[string]*offer{"": l.offered}); got != ": GPU-0 GPU-0::0 GPU-0::7" {
		t.Errorf("offered is %q", got)
	}
}

// sending is a stream whose sends a test takes part in.
type sending struct {
	grpc.ServerStreamingServer[api.ListAndWatchResponse]
	ctx  context.Context
	send func(*api.ListAndWatchResponse) error
}

func (s *sending) Context() context.Context                  { return s.ctx }
func (s *sending) Send(list *api.ListAndWatchResponse) error { return s.send(list) }

// The kubelet may choose from a list as soon as it has it, which is before Send
// returns: what goes then must not vanish within its Allocate.
func TestWhatGoesWhileTheListIsSent(t *testing.T) {
	l := holding(Rules{}, board("0 1"))
	l.done, l.streaming, l.broken = make(chan struct{}), make(chan struct{}), make(chan struct{})
	err := l.ListAndWatch(nil, &sending{ctx: t.Context(), send: func(*api.ListAndWatchResponse) error {
		l.turn(Rules{}, board("0"))
		return io.EOF
	}})
	if got := words(map[string]*offer{"": l.offered}); got != ": GPU-0 GPU-1!" || !errors.Is(err, io.EOF) {
		t.Errorf("offered is %q, %v", got, err)
	}
}
