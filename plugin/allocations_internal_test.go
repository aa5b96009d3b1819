package plugin

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// synctestFixture is a plugin that runs in a test's bubble, without a kubelet.
type synctestFixture struct {
	*testing.T
	plugin      *Plugin
	board       device.Inventory
	allocations pubsub.Value[device.Allocations]
	updates     int // of Plugin.Run so far; written by it
}

func newSynctestFixture(t *testing.T, rules Rules, words string) *synctestFixture {
	b := &synctestFixture{T: t}
	b.board.Set(parseStatuses(words))
	rules.Select = func(d device.Device) bool {
		if d.Index == 0 { // each turn asks once for the first device
			b.updates++
		}
		return true
	}
	b.plugin = New(Options{
		Dir: "none", Log: slog.New(slog.DiscardHandler),
		DeviceSource: &FakeSource{GetStatuses: b.board.Get, GetRules: constant(rules), GetAllocations: b.allocations.Get},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.plugin.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return b
}

// allocate has containers hold these ids of a resource, and no other.
func (b *synctestFixture) allocate(resource string, allocated ...device.AdvertisedID) {
	allocations, _ := allocationsOf(resource, allocated...)()
	b.allocations.Set(allocations)
}

// wantList checks what is offered once all goroutines wait, which takes no time in the bubble.
func (b *synctestFixture) wantList(want string) {
	b.Helper()
	began := time.Now()
	synctest.Wait()
	list := b.plugin.endpoints[gpuResource].list()
	if got := strings.TrimPrefix(formatLists(map[string]*deviceList{"": list}), ": "); got != want || !time.Now().Equal(began) {
		b.Errorf("after %s offered is %q, want %q", time.Since(began), got, want)
	}
}

// TestAnAllocationWakesThePlugin: a device that a container gets by another resource is
// unhealthy to the kubelet at once, and not when the plugin next looks by itself.
func TestAnAllocationWakesThePlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSynctestFixture(t, Rules{}, "0 1")
		b.wantList("GPU-0 GPU-1")
		b.allocate("nvidia.com/a100", "GPU-1")
		b.wantList("GPU-0 GPU-1!")
		b.allocate("nvidia.com/a100")
		b.wantList("GPU-0 GPU-1")
		b.allocate(gpuResource, "GPU-1")
		b.wantList("GPU-0 GPU-1")
		b.board.Set(parseStatuses("0")) // its container has it, and the device is gone
		b.wantList("GPU-0 GPU-1!")
		time.Sleep(time.Minute)
		b.wantList("GPU-0 GPU-1!")
		b.allocate(gpuResource)
		b.wantList("GPU-0")
	})
}

// TestAPodOnAReplicaTakesNoTurn: pods come and go, and a turn with many replicas is long.
func TestAPodOnAReplicaTakesNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSynctestFixture(t, sharingAll(2), "0")
		b.wantList("GPU-0::0 GPU-0::1")
		before := b.updates
		b.allocate(gpuResource, "GPU-0::1")
		b.wantList("GPU-0::0 GPU-0::1")
		b.allocate("example.com/foreign", "GPU-77")
		time.Sleep(time.Minute)
		b.wantList("GPU-0::0 GPU-0::1")
		if b.updates != before {
			t.Errorf("it took %d turns", b.updates-before)
		}
	})
}

// tryAllocate is one call for one container.
func (s *server) tryAllocate(t *testing.T, ids string) error {
	t.Helper()
	_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: strings.Fields(ids)}}})
	return err
}

// TestAllocateRejectsWhatAnotherContainerHas: the list that the kubelet chose from may be older
// than the allocation.
func TestAllocateRejectsWhatAnotherContainerHas(t *testing.T) {
	for _, c := range []struct {
		name     string
		rules    Rules
		resource string // as which
		held     device.AdvertisedID
		ids      string
		want     string // in the error; empty: it is given away
	}{
		{"as another resource", Rules{}, "nvidia.com/a100", "GPU-1", "GPU-1", "GPU-1 is allocated to another container, as GPU-1 of nvidia.com/a100"},
		{"by a replica from before", Rules{}, gpuResource, "GPU-1::3", "GPU-0 GPU-1", "GPU-1 is allocated to another container, as GPU-1::3 of nvidia.com/gpu"},
		{"another device", Rules{}, "nvidia.com/a100", "GPU-1", "GPU-0", ""},
		{"by the id itself, whose end the kubelet knows first", Rules{}, gpuResource, "GPU-1", "GPU-1", ""},
		{"another replica of a shared GPU", sharingAll(2), gpuResource, "GPU-1::0", "GPU-1::1", ""},
		{"by a claim", Rules{}, "gpu.nvidia.com", "GPU-1", "GPU-1", ""},
		{"by a claim, which reserves it", Rules{ReserveClaimed: true}, "gpu.nvidia.com", "GPU-1", "GPU-1", "GPU-1 is allocated to another container, as GPU-1 of gpu.nvidia.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serverHolding(c.rules, parseStatuses("0 1"))
			s.fakeSource().GetAllocations = allocationsOf(c.resource, c.held) // since the list
			err := s.tryAllocate(t, c.ids)
			if (err == nil) != (c.want == "") || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("Allocate answers %v", err)
			}
			if reasons := s.testHooks().rejected; err != nil && !slices.Equal(reasons, []RejectReason{RejectAllocated}) {
				t.Errorf("the reason is %q", reasons)
			}
		})
	}
	s := serverHolding(Rules{}, parseStatuses("0 1"), "GPU-1::3")
	s.fakeSource().GetAllocations = allocationsOf(gpuResource) // it has ended since the list
	if err := s.tryAllocate(t, "GPU-1"); err != nil {
		t.Errorf("a device that was allocated is rejected: %v", err)
	}
}
