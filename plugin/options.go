package plugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
)

// Options are the parts of a Plugin.
type Options struct {
	Dir string // the kubelet's device-plugins folder
	DeviceSource
	Log   *slog.Logger
	Hooks EndpointHooks
	// Resources receives the state of the registrations; nil: none does.
	Resources *pubsub.Value[[]Resource]
	// TakeOver registers a resource at once. Otherwise the first registration
	// waits while a foreign plugin serves the resource.
	TakeOver bool
	// WithdrawnTimeout is how long no foreign plugin has served a resource
	// without a rule, until the Plugin serves the ids of its containers; 0: a
	// minute.
	WithdrawnTimeout time.Duration
}

// DeviceSource is the input of device lists. Values are immutable; a change
// closes the value's channel.
type DeviceSource interface {
	// Statuses returns the devices; nil until the first health check. No
	// resource is registered before: the kubelet would reject the pods of a
	// rebooted node if all devices were unhealthy.
	Statuses() ([]device.Status, <-chan struct{})
	Rules() (Rules, <-chan struct{})
	// Links returns the known links between GPUs. A change is a new slice.
	Links() []device.Link
	// Allocations returns the allocations of the node. Allocate calls the
	// method, so waiting is not allowed.
	Allocations() (device.Allocations, <-chan struct{})
	// CheckUsable returns the reason why a container cannot start on a device.
	// The check ends with ctx.
	CheckUsable(ctx context.Context, c UsabilityCheck) error
}

// Source is the DeviceSource of published values, and of calls to the driver.
type Source struct {
	Devices        *device.Inventory
	PublishedRules *pubsub.Value[Rules]
	Allocated      *pubsub.Value[device.Allocations]
	NewestLinks    func() []device.Link
	Check          func(ctx context.Context, d device.Device, exclusive bool) error
}

// Statuses implements DeviceSource.
func (s Source) Statuses() ([]device.Status, <-chan struct{}) { return s.Devices.Get() }

// Rules implements DeviceSource.
func (s Source) Rules() (Rules, <-chan struct{}) { return s.PublishedRules.Get() }

// Links implements DeviceSource.
func (s Source) Links() []device.Link { return s.NewestLinks() }

// Allocations implements DeviceSource.
func (s Source) Allocations() (device.Allocations, <-chan struct{}) { return s.Allocated.Get() }

// CheckUsable implements DeviceSource.
func (s Source) CheckUsable(ctx context.Context, c UsabilityCheck) error {
	return s.Check(ctx, c.Device, c.Exclusive)
}

// UsabilityCheck asks whether a container can start on a device.
type UsabilityCheck struct {
	device.Device
	Exclusive bool // a process on the device is a reason
}

// EndpointHooks receives the events of the plugin. The methods run on the
// goroutine of the event and must be quick.
type EndpointHooks interface {
	OnResourceAdded(resource string)                                                             // before the first registration
	OnRegistered(resource string, err error)                                                     // Register has returned
	OnOtherPlugin(resource string, waiting bool)                                                 // the first registration waits, or no longer
	OnStreamCount(resource string, streams int)                                                  // live ListAndWatch streams of the kubelet
	OnListSent(resource string, devices, healthy int)                                            // to the kubelet
	OnCallServed(method string, took time.Duration, err error)                                   // a call of the kubelet
	OnAllocated(resource string, ids []device.AdvertisedID)                                      // by Allocate
	OnRejected(resource string, ids []device.AdvertisedID, reason RejectReason, rejection error) // by Allocate or PreStartContainer
	OnResourceReleased(resource string)                                                          // unregistered, without a device
}
