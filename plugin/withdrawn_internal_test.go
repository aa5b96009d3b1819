package plugin

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/device"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// holding is a life of an endpoint that offers what is on the board, by these
// rules, while containers hold ids from before.
func holding(rules Rules, statuses []device.Status, held ...device.OfferedID) *life {
	e := on("", Rules{}, statuses...)
	e.offered = &offer{}
	e.Held = func(string) []device.OfferedID { return held }
	offers, _ := rules.apply(statuses)
	e.offer(offers[wholeGPU], statuses, time.Now())
	return &life{endpoint: e}
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
