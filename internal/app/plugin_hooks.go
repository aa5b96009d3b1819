package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/plugin"
)

// pluginSource implements plugin.DeviceSource.
type pluginSource struct{ *app }

// Statuses hides devices until containers can start, so the plugin registers nothing before.
func (s pluginSource) Statuses() ([]device.Status, <-chan struct{}) {
	if !pubsub.IsClosed(s.rules.canStart) {
		return nil, s.rules.canStart
	}
	return s.node.Devices.Get()
}

func (s pluginSource) Allocations() (device.Allocations, <-chan struct{}) {
	return s.node.Allocations.Get()
}

func (s pluginSource) Rules() (plugin.Rules, <-chan struct{}) { return s.rules.Get() }

func (s pluginSource) Links() []device.Link { return s.monitor.Links() }

func (s pluginSource) CheckUsable(ctx context.Context, c plugin.UsabilityCheck) error {
	return s.readers.CheckUsable(ctx, c.Device, c.Exclusive)
}

// pluginHooks implements plugin.EndpointHooks. It passes the plugin's events to the self metrics, the PodResources client, the exporter and the page.
type pluginHooks struct{ *app }

func (h pluginHooks) OnResourceAdded(resource string) {
	var reasons []string
	for _, reason := range plugin.RejectReasons() {
		reasons = append(reasons, string(reason))
	}
	h.selfMetrics.InitResource(resource, reasons...)
}

func (h pluginHooks) OnRegistered(resource string, err error) {
	h.selfMetrics.CountRegistration(resource, err)
	text := ""
	if err == nil {
		h.podResources.OnRegistered()
	} else {
		text = err.Error()
	}
	h.registrations.update(resource, func(r *status.PluginResource) { r.Err = text })
}

func (h pluginHooks) OnOtherPlugin(resource string, waiting bool) {
	h.selfMetrics.SetWaiting(resource, waiting)
	h.registrations.setWaiting(resource, waiting)
}

func (h pluginHooks) OnStreamCount(resource string, streams int) {
	h.selfMetrics.SetStreams(resource, streams)
	h.registrations.update(resource, func(r *status.PluginResource) { r.Registered = streams > 0 })
}

func (h pluginHooks) OnListSent(resource string, devices, healthy int) {
	h.selfMetrics.SetDevices(resource, devices, healthy)
	h.podResources.OnListSent()
	h.registrations.update(resource, func(r *status.PluginResource) { r.Healthy = healthy })
}

func (h pluginHooks) OnCallServed(method string, took time.Duration, err error) {
	h.selfMetrics.ObservePluginCall(method, took, err)
}

func (h pluginHooks) OnAllocated(resource string, ids []device.AdvertisedID) {
	devices := make([]device.ID, len(ids))
	for i, id := range ids {
		devices[i] = id.Device()
	}
	h.metrics.OnAllocated(func() { h.podResources.OnAllocated(resource, ids) }, devices...)
}

func (h pluginHooks) OnRejected(resource string, _ []device.AdvertisedID, reason plugin.RejectReason, _ error) {
	h.selfMetrics.CountRejection(resource, string(reason))
}

func (h pluginHooks) OnResourceReleased(resource string) { h.selfMetrics.DeleteResource(resource) }

// registrationTracker has the registrations of the resources with the kubelet.
type registrationTracker struct {
	mu         sync.Mutex
	byResource map[string]status.PluginResource // guarded by mu; without ids and sharing

	waiting pubsub.Value[[]string] // resources served by another plugin, sorted
}

// setWaiting records whether the first registration of a resource waits for another plugin.
func (t *registrationTracker) setWaiting(resource string, waiting bool) {
	reason := ""
	if waiting {
		reason = plugin.OtherPluginReason
	}
	t.update(resource, func(r *status.PluginResource) { r.Err = reason })
	t.mu.Lock()
	defer t.mu.Unlock()
	before, _ := t.waiting.Get()
	names := slices.DeleteFunc(slices.Clone(before), func(name string) bool { return name == resource })
	if waiting {
		names = append(names, resource)
	}
	slices.Sort(names)
	t.waiting.Set(names)
}

// notes returns a line for each resource that waits for another plugin.
func (t *registrationTracker) notes() (lines []string) {
	waiting, _ := t.waiting.Get()
	for _, resource := range waiting {
		lines = append(lines, resource+": "+plugin.OtherPluginReason)
	}
	return lines
}

func (t *registrationTracker) update(resource string, change func(*status.PluginResource)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.byResource[resource]
	change(&r)
	t.byResource[resource] = r
}

func (t *registrationTracker) get(resource string) status.PluginResource {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byResource[resource]
}
