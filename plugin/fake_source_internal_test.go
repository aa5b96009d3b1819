package plugin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
)

const gpuResource = config.GPUResource

// ParseStatuses parses statuses: "0" is a GPU, "1m" a MIG-enabled GPU,
// "1/1g.10gb" a MIG device of GPU 1. "!" marks an unhealthy device.
func ParseStatuses(words string) []device.Status {
	var all []device.Status
	for n, word := range strings.Fields(words) {
		word, unhealthy := strings.CutSuffix(word, "!")
		name, profile, isMIG := strings.Cut(word, "/")
		name, mig := strings.CutSuffix(name, "m")
		s := device.Status{Healthy: !unhealthy, Device: device.Device{
			GPU: device.GPU("GPU-" + name), MIGEnabled: mig, NUMANode: -1,
		}}
		fmt.Sscan(name, &s.Index) //nolint:errcheck // test data is valid
		s.ID = device.ID(s.GPU)
		if isMIG {
			s.ID, s.Profile = device.ID(fmt.Sprintf("MIG-%d", n)), profile
		}
		all = append(all, s)
	}
	return all
}

// FakeSource is a DeviceSource with functions of a test. A nil function returns
// the zero value.
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

// endpointFor returns an endpoint on a FakeSource, with the list of the devices
// from the rules, while containers have earlier ids.
func endpointFor(
	dir string, rules Rules, statuses []device.Status, allocated ...device.AdvertisedID,
) *endpoint {
	e := newEndpoint(Options{
		Dir: dir, Log: slog.New(slog.DiscardHandler), Hooks: noHooks{},
		DeviceSource: &FakeSource{
			GetStatuses: constant(statuses), GetAllocations: allocationsOf(gpuResource, allocated...),
		},
	}, gpuResource, &folderWatch{})
	lists, _ := rules.deviceLists(statuses)
	allocations, _ := e.Allocations()
	e.setDevices(cmp.Or(lists[gpuResource], &deviceList{rules: rules}), statuses, allocations, time.Now())
	return e
}

// allocationsOf returns allocations of a resource by these ids.
func allocationsOf(
	resource string, allocated ...device.AdvertisedID,
) func() (device.Allocations, <-chan struct{}) {
	var h device.Allocations
	for _, id := range allocated {
		h.All = append(h.All, device.Allocation{Resource: resource, DeviceID: id})
	}
	slices.SortFunc(h.All, device.CompareAllocations)
	return constant(h)
}

func (r *resourceState) fakeSource() *FakeSource { return r.DeviceSource.(*FakeSource) }
