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
	"github.com/podgauge/podgauge/test/bubble"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// synctestFixture is a plugin in a synctest bubble, without a kubelet.
type synctestFixture struct {
	*testing.T
	plugin      *Plugin
	inventory   device.Inventory
	allocations pubsub.Value[device.Allocations]
	updates     int // number of updates; written by Plugin.Run
}

func newSynctestFixture(t *testing.T, rules Rules, words string) *synctestFixture {
	b := &synctestFixture{T: t}
	b.inventory.Set(parseStatuses(words))
	rules.Select = func(d device.Device) bool {
		if d.Index == 0 { // each update calls it once for the first device
			b.updates++
		}
		return true
	}
	b.plugin = New(Options{
		Dir: "none", Log: slog.New(slog.DiscardHandler), Hooks: noHooks{},
		DeviceSource: &FakeSource{GetStatuses: b.inventory.Get, GetRules: constant(rules), GetAllocations: b.allocations.Get},
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

// allocate replaces all allocations by ids of a resource.
func (b *synctestFixture) allocate(resource string, allocated ...device.AdvertisedID) {
	allocations, _ := allocationsOf(resource, allocated...)()
	b.allocations.Set(allocations)
}

// wantList checks the list once all goroutines wait, without advancing the clock.
func (b *synctestFixture) wantList(want string) {
	b.Helper()
	began := time.Now()
	synctest.Wait()
	list := b.plugin.endpoints[gpuResource].list()
	if got := strings.TrimPrefix(formatLists(map[string]*deviceList{"": list}), ": "); got != want || !time.Now().Equal(began) {
		b.Errorf("list after %s: got %q, want %q", time.Since(began), got, want)
	}
}

// TestAllocationsWakeThePlugin checks that a device allocated as a second resource becomes Unhealthy at once, not after the next interval.
func TestAllocationsWakeThePlugin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newSynctestFixture(t, Rules{}, "0 1")
		b.wantList("GPU-0 GPU-1")
		b.allocate("nvidia.com/a100", "GPU-1")
		b.wantList("GPU-0 GPU-1!")
		b.allocate("nvidia.com/a100")
		b.wantList("GPU-0 GPU-1")
		b.allocate(gpuResource, "GPU-1")
		b.wantList("GPU-0 GPU-1")
		b.inventory.Set(parseStatuses("0")) // an allocated device disappears
		b.wantList("GPU-0 GPU-1!")
		time.Sleep(time.Minute)
		b.wantList("GPU-0 GPU-1!")
		b.allocate(gpuResource)
		b.wantList("GPU-0")
	})
}

// TestSameAllocationsNeedNoUpdate checks that equal allocations cause no update: each scrape calls List, and an update of many replicas is slow.
func TestSameAllocationsNeedNoUpdate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newSynctestFixture(t, sharingAll(2), "0")
		b.wantList("GPU-0::0 GPU-0::1")
		b.allocate(gpuResource, "GPU-0::1")
		b.wantList("GPU-0::0 GPU-0::1")
		before := b.updates
		b.allocate(gpuResource, "GPU-0::1")
		b.wantList("GPU-0::0 GPU-0::1")
		time.Sleep(time.Minute)
		b.wantList("GPU-0::0 GPU-0::1")
		if b.updates != before {
			t.Errorf("got %d updates, want none", b.updates-before)
		}
	})
}

// tryAllocate calls Allocate for a container.
func (s *server) tryAllocate(t *testing.T, ids string) error {
	t.Helper()
	_, err := s.Allocate(t.Context(), &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: strings.Fields(ids)}}})
	return err
}

// TestAllocateRejectsAllocatedDevices checks current allocations: the kubelet's list may be older.
func TestAllocateRejectsAllocatedDevices(t *testing.T) {
	for _, c := range []struct {
		name     string
		rules    Rules
		resource string              // of the allocation
		id       device.AdvertisedID // of the allocation
		ids      string
		want     string // in the error; empty: accepted
	}{
		{"as a second resource", Rules{}, "nvidia.com/a100", "GPU-1", "GPU-1", "GPU-1 is allocated to another container, as GPU-1 of nvidia.com/a100"},
		{"by a withdrawn replica", Rules{}, gpuResource, "GPU-1::3", "GPU-0 GPU-1", "GPU-1 is allocated to another container, as GPU-1::3 of nvidia.com/gpu"},
		{"of a different device", Rules{}, "nvidia.com/a100", "GPU-1", "GPU-0", ""},
		{"by the requested id: the kubelet knows the end first", Rules{}, gpuResource, "GPU-1", "GPU-1", ""},
		{"a different replica of a shared GPU", sharingAll(2), gpuResource, "GPU-1::0", "GPU-1::1", ""},
		{"by a claim", Rules{}, "gpu.nvidia.com", "GPU-1", "GPU-1", ""},
		{"by a claim that reserves the device", Rules{ReserveClaimed: true}, "gpu.nvidia.com", "GPU-1", "GPU-1", "GPU-1 is allocated to another container, as GPU-1 of gpu.nvidia.com"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serverWith(c.rules, parseStatuses("0 1"))
			s.fakeSource().GetAllocations = allocationsOf(c.resource, c.id) // since the list
			err := s.tryAllocate(t, c.ids)
			if (err == nil) != (c.want == "") || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("Allocate: got %v, want %q", err, c.want)
			}
			if reasons := s.testHooks().rejected; err != nil && !slices.Equal(reasons, []RejectReason{RejectAllocated}) {
				t.Errorf("reasons: got %q, want %q", reasons, RejectAllocated)
			}
		})
	}
	s := serverWith(Rules{}, parseStatuses("0 1"), "GPU-1::3")
	s.fakeSource().GetAllocations = allocationsOf(gpuResource) // ended since the list
	if err := s.tryAllocate(t, "GPU-1"); err != nil {
		t.Errorf("device of an ended container: got error %v, want none", err)
	}
}
