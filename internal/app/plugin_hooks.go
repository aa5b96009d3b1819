package app

import (
	"sync"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// pluginHooks connects the plugin with the self metrics, the PodResources client, the exporter and the page.
func (a *app) pluginHooks() plugin.EndpointHooks {
	return plugin.EndpointHooks{
		OnResourceAdded: func(resource string) {
			a.selfMetrics.InitResource(resource)
			for _, reason := range plugin.RejectReasons() {
				a.selfMetrics.InitRejections(resource, string(reason))
			}
		},
		OnRegistered: func(resource string, err error) {
			a.selfMetrics.CountRegistration(resource, err)
			text := ""
			if err == nil {
				a.podResources.OnRegistered()
			} else {
				text = err.Error()
			}
			a.registrations.update(resource, func(r *registration) { r.err = text })
		},
		OnStreamCount: func(resource string, streams int) {
			a.selfMetrics.SetStreams(resource, streams)
			a.registrations.update(resource, func(r *registration) { r.streams = streams })
		},
		OnListSent: func(resource string, devices, healthy int) {
			a.selfMetrics.SetDevices(resource, devices, healthy)
			a.podResources.OnListSent()
			a.registrations.update(resource, func(r *registration) { r.healthyDevices = healthy })
		},
		OnRejected: func(resource string, _ []device.AdvertisedID, reason plugin.RejectReason, _ error) {
			a.selfMetrics.CountRejection(resource, string(reason))
		},
		OnAllocated: func(resource string, ids []device.AdvertisedID) {
			devices := make([]device.ID, len(ids))
			for i, id := range ids {
				devices[i] = id.Device()
			}
			a.metrics.ReadAllocated(devices...) // before a collection can see the allocation
			a.podResources.OnAllocated(resource, ids)
		},
		OnCallServed: a.selfMetrics.ObservePluginCall, OnResourceReleased: a.selfMetrics.DeleteResource,
	}
}

// registrationTracker has the registrations of the resources with the kubelet.
type registrationTracker struct {
	mu         sync.Mutex
	byResource map[string]registration // guarded by mu
}

type registration struct {
	streams        int
	healthyDevices int    // in the list that the kubelet got last
	err            string // of the last registration; empty: it succeeded
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
