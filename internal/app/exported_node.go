package app

import (
	"context"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/web/status"
)

// exportedNode is the node for the components: exporter.Node, incident.StateSource, podresources.DeviceIndex and pods.Observer.
type exportedNode struct{ *app }

func (a exportedNode) Statuses() ([]device.Status, <-chan struct{}) { return a.inventory.Get() }

func (a exportedNode) Allocations() (device.Allocations, <-chan struct{}) {
	return a.podResources.Snapshot()
}

func (a exportedNode) Terminations() (incident.TerminationLookup, <-chan struct{}) {
	return a.pods.TerminationLookup()
}

func (a exportedNode) Driver() device.Driver { return a.monitor.Driver() }

func (a exportedNode) Incidents() incident.Snapshot {
	snapshot, _ := a.incidents.Get()
	if a.state != nil {
		snapshot.Err = a.state.Err()
		snapshot.Persisted = snapshot.Err == nil
	}
	return snapshot
}

func (a exportedNode) ExpectedGPUs() int {
	settings, _ := a.configWatcher.Get()
	return settings.ExpectedGPUs
}

// Excluded implements exporter.Node. Without the device plugin, the device filter has no meaning.
func (a exportedNode) Excluded(d device.Device) bool {
	settings, _ := a.configWatcher.Get()
	return a.rules != nil && !settings.DeviceFilter.Allows(d)
}

func (a exportedNode) ListAllocations(ctx context.Context) device.Allocations {
	return a.podResources.ListAllocations(ctx)
}

func (a exportedNode) PodMeta(namespace, pod string) device.PodMeta {
	cache, _ := a.pods.Snapshot()
	return cache.Meta(namespace, pod)
}

func (a exportedNode) HealthStore() (used bool, err error) {
	if a.state == nil {
		return false, nil
	}
	return true, a.state.Err()
}

// PluginResources returns the device lists by the current rules, and the registrations.
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
		all[i] = a.registrations.get(list.Resource)
		all[i].Resource, all[i].IDs = list.Resource, list.IDs
		switch {
		case usesMPS(settings.Sharing, list.Resource):
			all[i].Sharing = "MPS"
		case len(list.IDs) > 0 && list.IDs[0] != list.IDs[0].Device().Advertised():
			all[i].Sharing = "time-slicing"
		}
	}
	return all
}

func (a exportedNode) PodsAPI() (synced bool, err error) {
	cache, _ := a.pods.Snapshot()
	return cache.Synced, cache.Err
}

// DeviceIDs returns the ids of all devices in the inventory; nil before the first listing.
func (a exportedNode) DeviceIDs() []device.ID {
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

// ClaimedDevice returns the device of a claim. Ignored claims allocate no device.
func (a exportedNode) ClaimedDevice(c device.Claim) (device.ID, bool) {
	if settings, _ := a.configWatcher.Get(); settings.Claims.Ignores(c.ClaimNamespace, c.ClaimName, c.Driver) {
		return "", false
	}
	statuses, _ := a.inventory.Get()
	return a.machine.ClaimedDevice(c, statuses)
}

func (a exportedNode) OnPodAdded(namespace, name string) { a.podResources.OnPodAdded(namespace, name) }

// OnPodEnded reports the end of a pod, unless a new pod with the same name runs.
func (a exportedNode) OnPodEnded(p pods.Pod) {
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
