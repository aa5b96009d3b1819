package kubelet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// State is what a Kubelet knows at one moment. It is a copy.
type State struct {
	// Bound says whether the registration socket of this life exists, and Serving whether both
	// sockets answer.
	Bound, Serving bool
	// Lives counts the kubelet's starts.
	Lives int
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
	Resources map[string]Resource
	// Pods are the node's, in the order of their arrival, the ended ones too.
	Pods []PodStatus
	// Calls counts the calls of PodResources and the Pods API by method ("List"), over all
	// lives, and Limited those that the rate limits turned away.
	Calls   map[string]int
	Limited int
}

// Registration is an attempt to register.
type Registration struct {
	Resource, Endpoint string
	Err                error // nil where it was taken
}

// Resource is what a Kubelet knows of a resource.
type Resource struct {
	// Registered is true until five minutes after its last plugin left, and after a restart of
	// the kubelet.
	Registered bool
	// Capacity and Allocatable are those of the node's status.
	Capacity, Allocatable int
	// Devices are those of the last list, sorted by id.
	Devices []Device
	// Sockets are the file names of the plugins whose ListAndWatch stream is open now, sorted;
	// one for each stream.
	Sockets []string
	// Updates counts the lists received, over all lives, and Repeats those that said nothing
	// new to the stream they came on.
	Updates, Repeats int
}

// Device is a device as the kubelet sees it.
type Device struct {
	ID string
	// Health is what the plugin said last; Healthy is what the kubelet makes of it: false as
	// well when the plugin has gone.
	Health  string
	Healthy bool
	// Nodes are its NUMA nodes.
	Nodes []int64
}

// PodStatus is what the kubelet says of a pod.
type PodStatus struct {
	Namespace, Name, UID string
	// Phase is Pending, Running, Succeeded or Failed, and Reason and Message say why it Failed.
	Phase, Reason, Message string
	// Listed says whether List shows it.
	Listed bool
	// Containers are its regular ones: the status of init containers, sidecars among them, does
	// not speak of devices.
	Containers []ContainerStatus
}

// ContainerStatus is what the kubelet says of a container.
type ContainerStatus struct {
	Name    string
	Running bool
	// Waiting is why it does not run.
	Waiting string
	// Starts counts its starts.
	Starts int
	// Devices is its allocatedResourcesStatus, sorted.
	Devices []DeviceHealth
}

// DeviceHealth is what the kubelet says of a device that a container holds.
type DeviceHealth struct{ Resource, ID, Health string }

// State returns what the kubelet knows now.
func (k *Kubelet) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state()
}

// Wait returns when the state is as wanted: wanted is asked now and after each change.
func (k *Kubelet) Wait(ctx context.Context, wanted func(State) bool) error {
	for {
		k.mu.Lock()
		state, changed := k.state(), k.changed
		k.mu.Unlock()
		if wanted(state) {
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
func (k *Kubelet) Resource(name string) Resource { return k.State().Resources[name] }

// Devices returns a resource's devices as the kubelet sees them, sorted by id.
func (k *Kubelet) Devices(resource string) []Device { return k.Resource(resource).Devices }

// Capacity returns how many devices of a resource the node has.
func (k *Kubelet) Capacity(resource string) int { return k.Resource(resource).Capacity }

// Allocatable returns how many devices of a resource are healthy, held or not.
func (k *Kubelet) Allocatable(resource string) int { return k.Resource(resource).Allocatable }

// Pod returns what the kubelet says of a pod, or ErrNoPod.
func (k *Kubelet) Pod(p Pod) (PodStatus, error) {
	full := k.fullName(p)
	for _, status := range k.State().Pods {
		if status.Namespace == full.Namespace && status.Name == full.Name {
			return status, nil
		}
	}
	return PodStatus{}, fmt.Errorf("%s/%s: %w", full.Namespace, full.Name, ErrNoPod)
}

// state needs mu.
func (k *Kubelet) state() State {
	s := State{
		Lives:         k.lives,
		Registrations: slices.Clone(k.registrations),
		Registering:   k.registering,
		Resources:     map[string]Resource{},
		Calls:         maps.Clone(k.calls),
		Limited:       k.limited,
	}
	for resource, log := range k.lists {
		s.Resources[resource] = Resource{Updates: log.updates, Repeats: log.repeats}
	}
	if l := k.life; l != nil {
		s.Bound, s.Serving, s.PodsRead = l.bound, l.serving, l.ready
		if l.collect() {
			l.writeCheckpoint()
		}
		for resource := range l.healthy {
			s.Resources[resource] = l.resource(resource, s.Resources[resource])
		}
	}
	for _, p := range k.pods {
		s.Pods = append(s.Pods, k.status(p))
	}
	return s
}

// resource fills in what this life knows. mu is held.
func (l *life) resource(name string, r Resource) Resource {
	r.Registered = true
	r.Allocatable = len(l.healthy[name])
	r.Capacity = r.Allocatable + len(l.unhealthy[name])
	for id, device := range l.devices[name] {
		r.Devices = append(r.Devices, Device{ID: id, Health: device.Health, Healthy: l.healthy[name].has(id), Nodes: nodeIDs(device)})
	}
	slices.SortFunc(r.Devices, func(a, b Device) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range l.conns {
		if c.resource == name && c.watched {
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

// status needs mu.
func (k *Kubelet) status(p *pod) PodStatus {
	s := PodStatus{Namespace: p.Namespace, Name: p.Name, UID: p.uid, Phase: p.phase, Reason: p.reason, Message: p.message}
	s.Listed = k.life != nil && k.life.lists(p)
	for _, c := range p.Containers {
		state := p.state[c.Name]
		status := ContainerStatus{Name: c.Name, Running: state.running, Waiting: state.waiting, Starts: state.starts}
		if k.life != nil {
			status.Devices = k.life.health(p, c.Name)
		}
		s.Containers = append(s.Containers, status)
	}
	return s
}

// health is a container's allocatedResourcesStatus: what plugins said last of its devices. One
// that has vanished from the list is Healthy (manager.go:1169), and so is everything when the
// plugin has gone before it said otherwise. mu is held.
func (l *life) health(p *pod, container string) []DeviceHealth {
	all := []DeviceHealth{}
	for resource, h := range l.held[p.uid][container] {
		for _, id := range h.ids() {
			d := DeviceHealth{resource, id, pluginapi.Healthy}
			if device := l.devices[resource][id]; device != nil && device.Health != pluginapi.Healthy {
				d.Health = pluginapi.Unhealthy
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b DeviceHealth) int {
		return strings.Compare(a.Resource+" "+a.ID, b.Resource+" "+b.ID)
	})
	return all
}

// listLog counts a resource's lists.
type listLog struct{ updates, repeats int }

// listed needs mu.
func (k *Kubelet) listed(resource string, repeats bool) {
	log := k.lists[resource]
	if log == nil {
		log = &listLog{}
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
