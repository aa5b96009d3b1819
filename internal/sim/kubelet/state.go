package kubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// KubeletState is what a Kubelet knows at one moment. It is a copy.
type KubeletState struct {
	// Bound says whether the registration socket of this life exists, and Serving whether both
	// sockets answer.
	Bound, Serving bool
	// Starts counts the kubelet's starts.
	Starts int
	// PodsRead says whether all of the node's pods are known since the start: from here on List
	// is to be believed.
	PodsRead bool
	// Registrations are the attempts to register, in their order, over all lives; of very many
	// only the latest.
	Registrations []Registration
	// Registering is how many have come in and are not answered yet.
	Registering int
	// Resources are those that plugins have registered, in this life or in an earlier one; by
	// name.
	Resources map[string]ResourceState
	// Pods are the node's, in the order of their arrival, the ended ones too.
	Pods []PodStatus
	// Calls counts the calls of PodResources and the Pods API by method ("List"), over all lives.
	Calls map[string]int
}

// Registration is an attempt to register.
type Registration struct {
	Resource, Endpoint string
	Err                error // nil where it was taken
}

// ResourceState is what a Kubelet knows of a resource.
type ResourceState struct {
	// Registered is true until five minutes after its last plugin left, and after a restart of
	// the kubelet.
	Registered bool
	// Capacity and Allocatable are those of the node's status.
	Capacity, Allocatable int
	// Devices are those of the last list, sorted by id.
	Devices []DeviceState
	// Sockets are the file names of the plugins whose ListAndWatch stream is open now, sorted;
	// one for each stream.
	Sockets []string
	// Updates counts the lists received, over all lives, and Repeats those that said nothing
	// new to the stream they came on.
	Updates, Repeats int
}

// DeviceState is a device as the kubelet sees it.
type DeviceState struct {
	ID string
	// Health is what the plugin said last; Healthy is what the kubelet makes of it: false as
	// well when the plugin has gone.
	Health  string
	Healthy bool
	// NUMANodes are its NUMA nodes.
	NUMANodes []int64
}

// PodStatus is what the kubelet says of a pod.
type PodStatus struct {
	Namespace, Name, UID string
	// Phase is Pending, Running, Succeeded or Failed, and Reason and Message say why it Failed.
	Phase, Reason, Message string
	// InList says whether List shows it.
	InList bool
	// Containers are its regular ones: the status of init containers, sidecars among them, does
	// not speak of devices.
	Containers []PodContainerStatus
}

// PodContainerStatus is what the kubelet says of a container.
type PodContainerStatus struct {
	Name    string
	Running bool
	// WaitingReason is why it does not run.
	WaitingReason string
	// Starts counts its starts.
	Starts int
	// Devices is its allocatedResourcesStatus, sorted.
	Devices []AllocatedDeviceHealth
}

// AllocatedDeviceHealth is what the kubelet says of a device that a container holds.
type AllocatedDeviceHealth struct{ Resource, ID, Health string }

// State returns what the kubelet knows now.
func (k *Kubelet) State() KubeletState {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state()
}

// Wait returns when the state is as wanted: wanted is asked now and after each change.
func (k *Kubelet) Wait(ctx context.Context, cond func(KubeletState) bool) error {
	for {
		k.mu.Lock()
		state, changed := k.state(), k.changed
		k.mu.Unlock()
		if cond(state) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the kubelet's state: %w; it is %+v", context.Cause(ctx), state)
		}
	}
}

// Resource returns what the kubelet knows of a resource.
func (k *Kubelet) Resource(name string) ResourceState { return k.State().Resources[name] }

// Devices returns a resource's devices as the kubelet sees them, sorted by id.
func (k *Kubelet) Devices(resource string) []DeviceState { return k.Resource(resource).Devices }

// Capacity returns how many devices of a resource the node has.
func (k *Kubelet) Capacity(resource string) int { return k.Resource(resource).Capacity }

// Allocatable returns how many devices of a resource are healthy, held or not.
func (k *Kubelet) Allocatable(resource string) int { return k.Resource(resource).Allocatable }

// Pod returns what the kubelet says of a pod, or ErrNoPod.
func (k *Kubelet) Pod(p PodSpec) (PodStatus, error) {
	full := k.fullName(p)
	for _, status := range k.State().Pods {
		if status.Namespace == full.Namespace && status.Name == full.Name {
			return status, nil
		}
	}
	return PodStatus{}, fmt.Errorf("%s/%s: %w", full.Namespace, full.Name, ErrNoPod)
}

// state needs mu.
func (k *Kubelet) state() KubeletState {
	s := KubeletState{
		Starts:        k.starts,
		Registrations: slices.Clone(k.registrations),
		Registering:   k.registering,
		Resources:     map[string]ResourceState{},
		Calls:         maps.Clone(k.calls),
	}
	for resource, log := range k.lists {
		s.Resources[resource] = ResourceState{Updates: log.updates, Repeats: log.repeats}
	}
	if l := k.process; l != nil {
		s.Bound, s.Serving, s.PodsRead = l.bound, l.serving, l.podsRead
		if l.removeExpired() {
			l.writeCheckpoint()
		}
		for resource := range l.healthy {
			s.Resources[resource] = l.fillResource(resource, s.Resources[resource])
		}
	}
	for _, p := range k.pods {
		s.Pods = append(s.Pods, k.podStatus(p))
	}
	return s
}

// fillResource fills in what this life knows. mu is held.
func (kp *kubeletProcess) fillResource(name string, r ResourceState) ResourceState {
	r.Registered = true
	r.Allocatable = len(kp.healthy[name])
	r.Capacity = r.Allocatable + len(kp.unhealthy[name])
	for id, device := range kp.devices[name] {
		r.Devices = append(r.Devices, DeviceState{ID: id, Health: device.Health, Healthy: kp.healthy[name].has(id), NUMANodes: nodeIDs(device)})
	}
	slices.SortFunc(r.Devices, func(a, b DeviceState) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range kp.conns {
		if c.resource == name && c.streamOpen {
			r.Sockets = append(r.Sockets, c.socket[strings.LastIndexByte(c.socket, '/')+1:])
		}
	}
	slices.Sort(r.Sockets)
	return r
}

func nodeIDs(d *pluginapi.Device) (nodes []int64) {
	for _, node := range d.GetTopology().GetNodes() {
		nodes = append(nodes, node.GetID())
	}
	return nodes
}

// podStatus needs mu.
func (k *Kubelet) podStatus(p *pod) PodStatus {
	s := PodStatus{Namespace: p.Namespace, Name: p.Name, UID: p.uid, Phase: p.phase, Reason: p.reason, Message: p.message}
	s.InList = k.process != nil && k.process.isListed(p)
	for _, c := range p.Containers {
		state := p.state[c.Name]
		status := PodContainerStatus{Name: c.Name, Running: state.running, WaitingReason: state.waitingReason, Starts: state.starts}
		if k.process != nil {
			status.Devices = k.process.deviceHealth(p, c.Name)
		}
		s.Containers = append(s.Containers, status)
	}
	return s
}

// deviceHealth is a container's allocatedResourcesStatus: what plugins said last of its devices. One
// that has vanished from the list is Healthy (manager.go:1169), and so is everything when the
// plugin has gone before it said otherwise. mu is held.
func (kp *kubeletProcess) deviceHealth(p *pod, container string) []AllocatedDeviceHealth {
	all := []AllocatedDeviceHealth{}
	for resource, h := range kp.allocations[p.uid][container] {
		for _, id := range h.deviceIDs() {
			d := AllocatedDeviceHealth{resource, id, pluginapi.Healthy}
			if device := kp.devices[resource][id]; device != nil && device.Health != pluginapi.Healthy {
				d.Health = pluginapi.Unhealthy
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b AllocatedDeviceHealth) int {
		return strings.Compare(a.Resource+" "+a.ID, b.Resource+" "+b.ID)
	})
	return all
}

// listCounter counts a resource's lists.
type listCounter struct{ updates, repeats int }

// countList needs mu.
func (k *Kubelet) countList(resource string, repeats bool) {
	log := k.lists[resource]
	if log == nil {
		log = &listCounter{}
		k.lists[resource] = log
	}
	log.updates++
	if repeats {
		log.repeats++
	}
}

// sameDevices says whether two lists say the same, in whatever order.
func sameDevices(a, b []*pluginapi.Device) bool {
	says := func(list []*pluginapi.Device) []string {
		all := []string{}
		for _, d := range list {
			all = append(all, fmt.Sprintf("%q %q %t %v", d.ID, d.Health, d.Topology == nil, nodeIDs(d)))
		}
		slices.Sort(all)
		return all
	}
	return slices.Equal(says(a), says(b))
}
