package app

import (
	"context"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/web/status"
)

// exportedNode implements exporter.Node and incident.StateSource.
type exportedNode struct{ *app }

// Statuses implements api.NodeState.
func (a exportedNode) Statuses() ([]device.Status, <-chan struct{}) { return a.inventory.Get() }

// Allocations implements api.NodeState.
func (a exportedNode) Allocations() (device.Allocations, <-chan struct{}) {
	return a.podResources.Snapshot()
}

// Terminations implements incident.StateSource.
func (a exportedNode) Terminations() (incident.TerminationLookup, <-chan struct{}) {
	return a.pods.TerminationLookup()
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

// PluginResources implements exporter.Node: the device lists by the current rules, and the registrations.
func (a exportedNode) PluginResources() []status.PluginResource {
	if a.rules == nil {
		return nil
	}
	rules, _ := a.rules.Get()
	settings, _ := a.configWatcher.Get()
	statuses, _ := a.inventory.Get()
	lists, _ := rules.Preview(statuses)
	all := make([]status.PluginResource, len(lists))
	for i, list := range lists {
		r := a.registrations.get(list.Resource)
		all[i] = status.PluginResource{Resource: list.Resource, IDs: list.IDs, Registered: r.streams > 0, Healthy: r.healthyDevices, Err: r.err}
		switch {
		case usesMPS(settings.Sharing, list.Resource):
			all[i].Sharing = "MPS"
		case len(list.IDs) > 0 && list.IDs[0] != list.IDs[0].Device().Advertised():
			all[i].Sharing = "time-slicing"
		}
	}
	return all
}

// PodsAPI implements exporter.Node.
func (a exportedNode) PodsAPI() status.PodsAPIStatus {
	cache, _ := a.pods.Snapshot()
	s := status.PodsAPIStatus{Synced: cache.Synced}
	if cache.Err != nil {
		s.Reason = strings.ReplaceAll(cache.Err.Error(), "\n", "; ")
	}
	return s
}

// ownDevices implements podresources.DeviceIndex.
type ownDevices struct{ *app }

// DeviceIDs returns the ids of all devices in the inventory; nil before the first listing.
func (a ownDevices) DeviceIDs() []device.ID {
	statuses, _ := a.inventory.Get()
	if statuses == nil {
		return nil
	}
	ids := make([]device.ID, len(statuses))
	for i := range statuses {
		ids[i] = statuses[i].ID
	}
	return ids
}

// ClaimedDevice implements podresources.DeviceIndex. Ignored claims allocate no device.
func (a ownDevices) ClaimedDevice(c device.Claim) (device.ID, bool) {
	if settings, _ := a.configWatcher.Get(); settings.Claims.Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) {
		return "", false
	}
	statuses, _ := a.inventory.Get()
	return a.o.platform.ClaimedDevice(c, statuses)
}

// podObserver implements pods.Observer.
type podObserver struct{ *app }

// OnPodAdded implements pods.Observer.
func (a podObserver) OnPodAdded(namespace, name string) { a.podResources.OnPodAdded(namespace, name) }

// OnPodEnded implements pods.Observer. If a new pod with the same name runs, the end is not reported.
func (a podObserver) OnPodEnded(p pods.Pod) {
	cache, _ := a.pods.Snapshot()
	if other, found := cache.ByName(p.Namespace, p.Name); found && other.UID != p.UID && !other.Ended() {
		return
	}
	a.podResources.OnPodEnded(p.Namespace, p.Name)
}

// containerOwner returns the owner of a container by the kubelet's Pods API. The container's id decides, because the UID in the
// cgroup of a static pod is not the UID of the pod.
func (a *app) containerOwner(_, containerID string) (device.Owner, bool) {
	cache, _ := a.pods.Snapshot()
	pod, container, ok := cache.ByContainer(containerID)
	return device.Owner{Namespace: pod.Namespace, Pod: pod.Name, Container: container}, ok
}
