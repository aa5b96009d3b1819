package plugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// FakeSource is a DeviceSource with functions of a test. A nil function returns the zero value.
type FakeSource struct {
	GetStatuses    func() ([]device.Status, <-chan struct{})
	GetRules       func() (Rules, <-chan struct{})
	GetLinks       func() []device.Link
	GetAllocations func() (device.Allocations, <-chan struct{})
	Check          func(context.Context, UsabilityCheck) error
}

func call[T any](get func() (T, <-chan struct{})) (value T, changed <-chan struct{}) {
	if get == nil {
		return value, nil
	}
	return get()
}

func (n *FakeSource) Statuses() ([]device.Status, <-chan struct{}) { return call(n.GetStatuses) }
func (n *FakeSource) Rules() (Rules, <-chan struct{})              { return call(n.GetRules) }
func (n *FakeSource) Allocations() (device.Allocations, <-chan struct{}) {
	return call(n.GetAllocations)
}

func (n *FakeSource) Links() []device.Link {
	if n.GetLinks == nil {
		return nil
	}
	return n.GetLinks()
}

func (n *FakeSource) CheckUsable(ctx context.Context, c UsabilityCheck) error {
	if n.Check == nil {
		return nil
	}
	return n.Check(ctx, c)
}

// constant returns a constant value as a DeviceSource does.
func constant[T any](value T) func() (T, <-chan struct{}) {
	return func() (T, <-chan struct{}) { return value, nil }
}

// noHooks ignores all events.
type noHooks struct{}

func (noHooks) OnResourceAdded(string)                                        {}
func (noHooks) OnRegistered(string, error)                                    {}
func (noHooks) OnStreamCount(string, int)                                     {}
func (noHooks) OnListSent(string, int, int)                                   {}
func (noHooks) OnCallServed(string, time.Duration, error)                     {}
func (noHooks) OnAllocated(string, []device.AdvertisedID)                     {}
func (noHooks) OnRejected(string, []device.AdvertisedID, RejectReason, error) {}
func (noHooks) OnOtherPlugin(string, bool)                                    {}
func (noHooks) OnResourceReleased(string)                                     {}

// testHooks records the events for internal tests.
type testHooks struct {
	noHooks
	rejected []RejectReason
	streams  []int
}

func (h *testHooks) OnStreamCount(_ string, n int) { h.streams = append(h.streams, n) }

func (h *testHooks) OnRejected(_ string, _ []device.AdvertisedID, reason RejectReason, _ error) {
	h.rejected = append(h.rejected, reason)
}

// endpointFor returns an endpoint on a FakeSource, with the list of the devices from the rules.
func endpointFor(dir string, rules Rules, statuses ...device.Status) *endpoint {
	p := New(Options{Dir: dir, DeviceSource: &FakeSource{GetStatuses: constant(statuses)}, Log: slog.New(slog.DiscardHandler), Hooks: &testHooks{}})
	e := newEndpoint(p.Options, gpuResource, &folderWatch{})
	if lists, _ := rules.deviceLists(statuses); lists[gpuResource] != nil {
		e.setDevices(lists[gpuResource], statuses, device.Allocations{}, time.Now())
	}
	return e
}

func (e *endpoint) fakeSource() *FakeSource { return e.DeviceSource.(*FakeSource) }
func (e *endpoint) testHooks() *testHooks   { return e.Hooks.(*testHooks) }
