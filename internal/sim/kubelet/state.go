package kubelet

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// KubeletState is a copy of a Kubelet's state.
type KubeletState struct { //nolint:revive // State is the method
	Serving       bool                     // the registration and the PodResources socket accept connections
	Starts        int                      // processes so far
	PodsRead      bool                     // all pods have been read since the start: List is complete
	Registrations []Registration           // the latest of all processes, in order
	Resources     map[string]ResourceState // all resources registered with any process
	Pods          []PodStatus              // in order of arrival, ended pods included
	Calls         map[string]int           // gRPC calls of all processes by method ("List")
}

// ResourceState is the state of a resource.
type ResourceState struct {
	Registered            bool          // until five minutes after the end of the last plugin
	Capacity, Allocatable int           // of the node's status
	Devices               []DeviceState // of the latest list, sorted by id
	Sockets               []string      // file names of plugins by open ListAndWatch stream, sorted
	// Updates are the lists received by all processes, and Repeats the lists
	// without a change on the same stream.
	Updates, Repeats int
}

// DeviceState is a device of a resource.
type DeviceState struct {
	ID      string
	Health  string // of the latest list
	Healthy bool   // false as well if the plugin has left
}

// PodStatus is the status of a pod.
type PodStatus struct {
	Namespace, Name, UID string
	Phase                string // Pending, Running, Succeeded or Failed
	Reason, Message      string // of a failure
	InList               bool   // List includes the pod
	// Containers has no init containers or sidecars: the kubelet reports no
	// devices for both.
	Containers []PodContainerStatus
}

// PodContainerStatus is the status of a container.
type PodContainerStatus struct {
	Name          string
	ID            string // of the runtime, for the latest start: 64 hexadecimal digits; empty before the first start
	Running       bool
	WaitingReason string
	Starts        int
	Devices       []AllocatedDeviceHealth // allocatedResourcesStatus, sorted
}

// AllocatedDeviceHealth is the health of a container's device.
type AllocatedDeviceHealth struct{ Resource, ID, Health string }

// State returns the current state.
func (k *Kubelet) State() (s KubeletState) {
	k.node.locked(func() { s = k.state() })
	return s
}

// Wait calls cond, now and after each change, until cond returns true.
func (k *Kubelet) Wait(ctx context.Context, cond func(KubeletState) bool) error {
	var state KubeletState
	err := k.node.waitUntil(ctx, func() bool {
		state = k.State()
		return cond(state)
	})
	if err != nil {
		return fmt.Errorf("wait for the kubelet's state: %w; state: %+v", err, state)
	}
	return nil
}

// Resource returns the state of a resource.
func (k *Kubelet) Resource(name string) ResourceState { return k.State().Resources[name] }

// Pod returns the status of a pod, or ErrNoPod.
func (k *Kubelet) Pod(spec PodSpec) (status PodStatus, err error) {
	err = k.node.readPod(spec, func(p *pod) { status = k.podStatus(p) })
	return status, err
}

// state needs mu.
func (k *Kubelet) state() KubeletState {
	s := KubeletState{
		Starts: k.starts, Registrations: slices.Clone(k.node.registrations),
		Resources: map[string]ResourceState{}, Calls: maps.Clone(k.node.calls),
	}
	for resource, count := range k.node.lists {
		s.Resources[resource] = ResourceState{Updates: count.updates, Repeats: count.repeats}
	}
	if kp := k.process; kp != nil {
		s.Serving, s.PodsRead = kp.serving, kp.podsRead
		if kp.removeExpired() {
			kp.writeCheckpoint()
		}
		for resource := range kp.healthy {
			s.Resources[resource] = kp.resourceState(resource, s.Resources[resource])
		}
	}
	for _, p := range k.node.pods {
		s.Pods = append(s.Pods, k.podStatus(p))
	}
	return s
}

// resourceState adds the process's state of a resource. mu is held.
func (kp *kubeletProcess) resourceState(name string, r ResourceState) ResourceState {
	r.Registered = true
	r.Allocatable = len(kp.healthy[name])
	r.Capacity = len(kp.devices[name])
	for id, device := range kp.devices[name] {
		r.Devices = append(r.Devices, DeviceState{ID: id, Health: device.Health, Healthy: kp.healthy[name].has(id)})
	}
	slices.SortFunc(r.Devices, func(a, b DeviceState) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range kp.conns {
		if c.resource == name && c.streamOpen {
			r.Sockets = append(r.Sockets, filepath.Base(c.socket))
		}
	}
	slices.Sort(r.Sockets)
	return r
}

// podStatus needs mu.
func (k *Kubelet) podStatus(p *pod) PodStatus {
	s := PodStatus{
		Namespace: p.Namespace, Name: p.Name, UID: p.uid, Phase: p.phase, Reason: p.reason,
		Message: p.message, InList: p.isListed(),
	}
	for _, c := range p.Containers {
		state := p.states[c.Name]
		status := PodContainerStatus{
			Name: c.Name, Running: state.running, WaitingReason: state.waitingReason,
			Starts: state.starts,
		}
		if state.starts > 0 {
			status.ID = p.containerID(c.Name)
		}
		if k.process != nil {
			status.Devices = k.process.deviceHealth(p.uid, c)
		}
		s.Containers = append(s.Containers, status)
	}
	return s
}

// deviceHealth returns the allocatedResourcesStatus of a container: the health
// of each device in the latest list. An unlisted device is Healthy
// (manager.go:1169). mu is held.
func (kp *kubeletProcess) deviceHealth(uid string, c ContainerSpec) (all []AllocatedDeviceHealth) {
	for _, resource := range slices.Sorted(maps.Keys(c.Limits)) {
		for _, id := range slices.Sorted(maps.Keys(kp.allocations[allocatedTo{uid, c.Name, resource}].ids())) {
			d := AllocatedDeviceHealth{resource, id, pluginapi.Healthy}
			if device := kp.devices[resource][id]; device != nil && device.Health != pluginapi.Healthy {
				d.Health = pluginapi.Unhealthy
			}
			all = append(all, d)
		}
	}
	return all
}
