package app

import (
	"context"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// pluginSource implements plugin.DeviceSource.
type pluginSource struct{ app *app }

// Statuses implements plugin.DeviceSource. Devices are hidden until containers can start, so the plugin registers nothing before.
func (s pluginSource) Statuses() ([]device.Status, <-chan struct{}) {
	if !isClosed(s.app.rules.canStart) {
		return nil, s.app.rules.canStart
	}
	return s.app.inventory.Get()
}

// Rules implements plugin.DeviceSource.
func (s pluginSource) Rules() (plugin.Rules, <-chan struct{}) { return s.app.rules.Get() }

// Links implements plugin.DeviceSource.
func (s pluginSource) Links() []device.Link { return s.app.monitor.Links() }

// Allocations implements plugin.DeviceSource.
func (s pluginSource) Allocations() (device.Allocations, <-chan struct{}) {
	return s.app.podResources.Snapshot()
}

// CheckUsable implements plugin.DeviceSource.
func (s pluginSource) CheckUsable(ctx context.Context, c plugin.UsabilityCheck) error {
	return s.app.readers.CheckUsable(ctx, c.Device, c.Exclusive)
}

// pluginHooks passes the plugin's events to the self metrics, the PodResources client, the exporter and the page.
type pluginHooks struct{ app *app }

// OnResourceAdded implements plugin.EndpointHooks.
func (h pluginHooks) OnResourceAdded(resource string) {
	h.app.selfMetrics.InitResource(resource)
	for _, reason := range plugin.RejectReasons() {
		h.app.selfMetrics.InitRejections(resource, string(reason))
	}
}

// OnRegistered implements plugin.EndpointHooks.
func (h pluginHooks) OnRegistered(resource string, err error) {
	h.app.selfMetrics.CountRegistration(resource, err)
	text := ""
	if err == nil {
		h.app.podResources.OnRegistered()
	} else {
		text = err.Error()
	}
	h.app.registrations.update(resource, func(r *registration) { r.err = text })
}

// OnStreamCount implements plugin.EndpointHooks.
func (h pluginHooks) OnStreamCount(resource string, streams int) {
	h.app.selfMetrics.SetStreams(resource, streams)
	h.app.registrations.update(resource, func(r *registration) { r.streams = streams })
}

// OnListSent implements plugin.EndpointHooks.
func (h pluginHooks) OnListSent(resource string, devices, healthy int) {
	h.app.selfMetrics.SetDevices(resource, devices, healthy)
	h.app.podResources.OnListSent()
	h.app.registrations.update(resource, func(r *registration) { r.healthyDevices = healthy })
}

// OnCallServed implements plugin.EndpointHooks.
func (h pluginHooks) OnCallServed(method string, took time.Duration, err error) {
	h.app.selfMetrics.ObservePluginCall(method, took, err)
}

// OnAllocated implements plugin.EndpointHooks. The counters are read before a collection can see the allocation.
func (h pluginHooks) OnAllocated(resource string, ids []device.AdvertisedID) {
	devices := make([]device.ID, len(ids))
	for i, id := range ids {
		devices[i] = id.Device()
	}
	h.app.metrics.ReadAllocated(devices...)
	h.app.podResources.OnAllocated(resource, ids)
}

// OnRejected implements plugin.EndpointHooks.
func (h pluginHooks) OnRejected(resource string, _ []device.AdvertisedID, reason plugin.RejectReason, _ error) {
	h.app.selfMetrics.CountRejection(resource, string(reason))
}

// OnResourceReleased implements plugin.EndpointHooks.
func (h pluginHooks) OnResourceReleased(resource string) { h.app.selfMetrics.DeleteResource(resource) }

// registrationTracker has the registrations of the resources with the kubelet.
type registrationTracker struct {
	mu         sync.Mutex
	byResource map[string]registration // guarded by mu
}

type registration struct {
	streams        int
	healthyDevices int    // in the last list sent to the kubelet
	err            string // of the last registration; empty: success
}

func (t *registrationTracker) update(resource string, change func(*registration)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byResource == nil {
		t.byResource = map[string]registration{}
	}
	r := t.byResource[resource]
	change(&r)
	t.byResource[resource] = r
}

func (t *registrationTracker) get(resource string) registration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byResource[resource]
}
