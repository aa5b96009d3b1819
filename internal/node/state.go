// Package node has the published state of the node.
package node

import (
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/hpcjobs"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/pods"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/plugin"
)

// State has the published values, each with one writer. The zero State is
// ready for use: each value is the zero value until its writer runs.
type State struct {
	Settings    pubsub.Value[config.Settings]     // by config.Watcher
	Retired     pubsub.Value[device.Retirements]  // by config.RetiredWatcher; nil: unknown
	Devices     device.Inventory                  // by health.Monitor
	Driver      pubsub.Value[device.Driver]       // by health.Monitor
	Allocations pubsub.Value[allocation.Snapshot] // by podresources.Client
	Pods        pubsub.Value[pods.Pods]           // by pods.Client
	HPCJobs     pubsub.Value[hpcjobs.Mapping]     // by hpcjobs.Follow
	Incidents   pubsub.Value[incident.Snapshot]   // by incident.Log
	StateFile   pubsub.Value[state.WriteStatus]   // by state.Store
	Rules       pubsub.Value[plugin.Rules]        // of the device plugin
	Resources   pubsub.Value[[]plugin.Resource]   // by plugin.Plugin
	// IsPlugin reports whether this process is the device plugin; constant.
	IsPlugin bool
}

// changed returns a channel that the next Set closes.
func changed[T any](v *pubsub.Value[T]) <-chan struct{} {
	_, c := v.Get()
	return c
}

// Changes returns channels of the values in the JSON API: the next change closes
// one of them.
func (s *State) Changes() []<-chan struct{} {
	return []<-chan struct{}{
		changed(&s.Settings), changed(&s.Devices), changed(&s.Driver), changed(&s.Allocations), changed(&s.Incidents),
		changed(&s.StateFile), changed(&s.Resources),
	}
}

// Statuses returns the status of all devices; nil before the first listing.
func (s *State) Statuses() []device.Status { return s.Devices.Newest() }

// ExpectedGPUs returns the expected number of GPUs; 0: any number.
func (s *State) ExpectedGPUs() int { return s.Settings.Newest().ExpectedGPUs }

// Retirements returns the listed devices of all nodes; nil: unknown.
func (s *State) Retirements() device.Retirements { return s.Retired.Newest() }

// XidPolicy returns the operator's policy for an Xid.
func (s *State) XidPolicy(xid uint64) device.XidPolicy {
	return s.Settings.Newest().Health.Policy(xid)
}

// IsAllocated reports whether a container has the device.
func (s *State) IsAllocated(id device.ID) bool {
	return len(s.Allocations.Newest().ForDevice(id)) > 0
}

// Excluded reports whether the settings exclude the device from allocation.
// Without the device plugin, the device filter has no meaning.
func (s *State) Excluded(d device.Device) bool {
	return s.IsPlugin && !s.Settings.Newest().DeviceFilter.Allows(d)
}

// PluginResources returns the resources by the newest rules; none if another
// process is the device plugin.
func (s *State) PluginResources() []plugin.Resource {
	if !s.IsPlugin {
		return nil
	}
	return s.Rules.Newest().WithRegistrations(s.Statuses(), s.Resources.Newest())
}

// PodMeta returns the metadata of a pod as far as known.
func (s *State) PodMeta(namespace, pod string) allocation.PodMeta {
	known := s.Pods.Newest()
	return known.Meta(namespace, pod)
}

// JobsOf returns the ids of the HPC jobs of a device.
func (s *State) JobsOf(d device.Device) []string { return s.HPCJobs.Newest().Of(d) }

// ContainerOwner returns the owner of a container by the kubelet's Pods API. The
// container's id decides: the UID in the cgroup of a static pod is not the UID
// of the pod.
func (s *State) ContainerOwner(_, containerID string) (allocation.Owner, bool) {
	known := s.Pods.Newest()
	pod, container, ok := known.ByContainer(containerID)
	return allocation.Owner{Namespace: pod.Namespace, Pod: pod.Name, Container: container}, ok
}

// Terminations returns the lookup of terminations, and a channel closed by the
// next change. The lookup is nil while the pods are not synced: the name of a
// pod may belong to a newer pod.
func (s *State) Terminations() (incident.TerminationLookup, <-chan struct{}) {
	known, changed := s.Pods.Get()
	if !known.Synced {
		return nil, changed
	}
	return known.Termination, changed
}

// StoredIncidents returns the incidents, and whether they are on disk.
func (s *State) StoredIncidents() incident.Snapshot {
	snapshot, file := s.Incidents.Newest(), s.StateFile.Newest()
	snapshot.Err, snapshot.Persisted = file.Err, file.Used && file.Err == nil
	return snapshot
}
