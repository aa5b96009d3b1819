package app

import (
	"context"
	"strings"
	"sync"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/status"
	"github.com/podgauge/podgauge/plugin"
)

// registrationTracker are how the kubelet took what it was offered, as the page shows it. The
// plugin's trace feeds them.
type registrationTracker struct {
	mu         sync.Mutex
	byResource map[string]resourceRegistration // by resource; guarded by mu
}

type resourceRegistration struct {
	streams        int
	healthyDevices int    // devices, as the kubelet was last told
	err            string // why it refused; empty once it has not
}

// wrap has the trace tell the registrations too.
func (r *registrationTracker) wrap(t plugin.EndpointHooks) plugin.EndpointHooks {
	registered, streaming, sent := t.OnRegistered, t.OnStreamCount, t.OnListSent
	t.OnRegistered = func(resource string, err error) {
		registered(resource, err)
		r.update(resource, func(reg *resourceRegistration) {
			reg.err = ""
			if err != nil {
				reg.err = err.Error()
			}
		})
	}
	t.OnStreamCount = func(resource string, streams int) {
		streaming(resource, streams)
		r.update(resource, func(reg *resourceRegistration) { reg.streams = streams })
	}
	t.OnListSent = func(resource string, devices, healthy int) {
		sent(resource, devices, healthy)
		r.update(resource, func(reg *resourceRegistration) { reg.healthyDevices = healthy })
	}
	return t
}

func (r *registrationTracker) update(resource string, change func(*resourceRegistration)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byResource == nil {
		r.byResource = map[string]resourceRegistration{}
	}
	reg := r.byResource[resource]
	change(&reg)
	r.byResource[resource] = reg
}

func (r *registrationTracker) get(resource string) resourceRegistration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byResource[resource]
}

// exportedNode is the app as the exporter reads it; it implements exporter.Node.
type exportedNode struct{ *app }

// Statuses implements api.NodeState.
func (a exportedNode) Statuses() ([]device.Status, <-chan struct{}) { return a.board.Get() }

// Allocations implements api.NodeState.
func (a exportedNode) Allocations() (device.Allocations, <-chan struct{}) {
	return a.podResources.Snapshot()
}

// Driver implements api.NodeState.
func (a exportedNode) Driver() device.Driver { return a.monitor.Driver() }

// Incidents implements api.NodeState.
func (a exportedNode) Incidents() incident.Snapshot {
	snapshot, _ := a.incidents.Get()
	return snapshot
}

// ListAllocations implements exporter.Node.
func (a exportedNode) ListAllocations(ctx context.Context) device.Allocations {
	return a.podResources.ListAllocations(ctx)
}

// PodMeta implements exporter.Node.
func (a exportedNode) PodMeta(namespace, pod string) device.PodMeta {
	cache, _ := a.pods.Snapshot()
	return cache.Meta(namespace, pod)
}

// HealthStore implements exporter.Node.
func (a exportedNode) HealthStore() (used bool, err error) {
	if a.state == nil {
		return false, nil
	}
	return true, a.state.Err()
}

// PluginResources implements exporter.Node: the device lists by the current rules, and how the kubelet took them.
func (a exportedNode) PluginResources() []status.PluginResource {
	if a.rules == nil {
		return nil
	}
	rules, _ := a.rules()
	settings, _ := a.configWatcher.Get()
	statuses, _ := a.board.Get()
	lists, _ := rules.Preview(statuses)
	all := make([]status.PluginResource, len(lists))
	for i, list := range lists {
		reg := a.registrations.get(list.Resource)
		all[i] = status.PluginResource{
			Resource: list.Resource, IDs: list.IDs, Registered: reg.streams > 0, Healthy: reg.healthyDevices, Err: reg.err,
		}
		switch {
		case usesMPS(settings.Sharing, list.Resource):
			all[i].Sharing = "MPS"
		case len(list.IDs) > 0 && isReplica(list.IDs[0]):
			all[i].Sharing = "time-slicing"
		}
	}
	return all
}

func isReplica(id device.AdvertisedID) bool { return id != id.Device().Advertised() }

// PodsAPI implements exporter.Node.
func (a exportedNode) PodsAPI() status.PodsAPIStatus {
	cache, _ := a.pods.Snapshot()
	f := status.PodsAPIStatus{Synced: cache.Synced}
	if cache.Err != nil {
		f.Reason = strings.ReplaceAll(cache.Err.Error(), "\n", "; ")
	}
	return f
}
