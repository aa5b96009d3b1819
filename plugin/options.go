package plugin

import (
	"context"
	"log/slog"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Options are the parts that a Plugin needs.
type Options struct {
	Dir string // the kubelet's device-plugins folder
	DeviceSource
	Log   *slog.Logger
	Hooks EndpointHooks // nil: none
}

// DeviceSource has the values that device lists follow from. Values are immutable; a channel is closed when its value changes.
type DeviceSource interface {
	// Statuses returns the devices; nil until the first health check. Nothing is registered before.
	Statuses() ([]device.Status, <-chan struct{})
	Rules() (Rules, <-chan struct{})
	// Links returns the known links between GPUs. A change is another slice.
	Links() []device.Link
	// Allocations returns the allocations of the node. Allocate calls it, so it must not wait.
	Allocations() (device.Allocations, <-chan struct{})
	// CheckUsable returns the reason why a container cannot start on a device. It returns when ctx is done.
	CheckUsable(ctx context.Context, c UsabilityCheck) error
}

// UsabilityCheck asks whether a container can start on a device.
type UsabilityCheck struct {
	device.Device
	Exclusive bool // no other process may use the device
}

// EndpointHooks receives the events of the plugin. The methods run on the goroutine of the event and must be quick.
type EndpointHooks interface {
	OnResourceAdded(resource string)                                                             // before the first registration
	OnRegistered(resource string, err error)                                                     // Register has returned
	OnStreamCount(resource string, streams int)                                                  // live ListAndWatch streams of the kubelet
	OnListSent(resource string, devices, healthy int)                                            // to the kubelet
	OnCallServed(method string, took time.Duration, err error)                                   // a call of the kubelet
	OnAllocated(resource string, ids []device.AdvertisedID)                                      // by Allocate
	OnRejected(resource string, ids []device.AdvertisedID, reason RejectReason, rejection error) // by Allocate or PreStartContainer
	OnResourceReleased(resource string)                                                          // unregistered, without a device
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
func (noHooks) OnResourceReleased(string)                                     {}
