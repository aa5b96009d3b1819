package plugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
)

// Options are the parts of a Plugin, and the published values that it reads.
type Options struct {
	Dir   string // the kubelet's device-plugins folder
	Log   *slog.Logger
	Hooks EndpointHooks

	// Devices are nil until the first health check. No resource is registered
	// before: the kubelet would reject the pods of a rebooted node if all
	// devices were unhealthy.
	Devices     *device.Inventory
	Rules       *pubsub.Value[Rules]               // nil: the zero Rules
	Allocations *pubsub.Value[allocation.Snapshot] // of the node; nil: none
	// Links returns the known links between GPUs, without a wait.
	Links func() []device.Link
	// CheckUsable returns the reason why a container cannot start on a device.
	// For an exclusive device, a process is a reason. The check ends with ctx.
	CheckUsable func(ctx context.Context, d device.Device, exclusive bool) error

	// Resources receives the state of the registrations of resources with
	// devices; nil: none does.
	Resources *pubsub.Value[[]Resource]
	// TakeOver registers a resource at once. Otherwise the first registration
	// waits while a foreign plugin serves the resource.
	TakeOver bool
	// WithdrawnTimeout is how long no foreign plugin has served a resource
	// without a rule, until the Plugin serves the ids of its containers; 0: a
	// minute.
	WithdrawnTimeout time.Duration
}

// EndpointHooks receives the events of the plugin. The methods run on the
// goroutine of the event and must be quick.
type EndpointHooks interface {
	// OnResourceAdded comes before the registrations of a resource with devices.
	OnResourceAdded(resource string)
	// OnRegistered comes when Register has returned.
	OnRegistered(resource string, err error)
	// OnListSent comes after each list to the kubelet.
	OnListSent()
	// OnCallServed comes after each call of the kubelet.
	OnCallServed(method string, took time.Duration, err error)
	// OnAllocated comes after a successful Allocate.
	OnAllocated(resource string, ids []device.AdvertisedID)
	// OnRejected comes after a rejected Allocate or PreStartContainer.
	OnRejected(resource string, ids []device.AdvertisedID, reason RejectReason, rejection error)
}

// Resource is a resource of a Plugin.
type Resource struct {
	Name       string
	IDs        []device.AdvertisedID // by the newest rules; not published
	Sharing    string                // "time-slicing" or "MPS", empty without replicas; not published
	Registered bool                  // the kubelet reads the device list
	Devices    int                   // in the newest list to the kubelet
	Healthy    int                   // of Devices
	// Waiting is set while the first registration waits for a foreign plugin.
	Waiting bool
	Err     string // of the newest registration
}
