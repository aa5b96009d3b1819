package kubelet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// endpointGracePeriod is the lifetime of a resource without a plugin
// (types.go:125).
const endpointGracePeriod = 5 * time.Minute

// noNUMANode is the key of devices without a NUMA node in allocations
// (manager.go:56).
const noNUMANode = -1

// deviceManager has the plugins, devices and allocations:
// devicemanager.ManagerImpl without gRPC. Guarded by nodeState.mu.
type deviceManager struct {
	version  Version
	now      func() time.Time
	podsRead bool // all pods have been read since the start; devices are freed only then

	clients   map[clientKey]*pluginClient // disconnected at the end of a stream
	connected map[clientKey]*pluginClient
	endpoints map[string]*pluginClient // receive Allocate, by resource

	devices     map[string]map[string]*pluginapi.Device // the latest list, by resource and id
	healthy     map[string]idSet                        // has a key for each registered resource
	allocated   map[string]idSet                        // includes allocations in progress
	allocations map[allocatedTo]containerAllocation
}

// clientKey identifies a plugin. Until 1.36 the resource identifies the plugin,
// and socket is empty: the end of any stream disconnects the resource's current
// plugin (plugin/v1beta1/handler.go:101-156).
type clientKey struct{ resource, socket string }

type allocatedTo struct{ podUID, container, resource string }

// containerAllocation is a container's allocation of a resource.
type containerAllocation struct {
	devices  map[int64][]string // ids by NUMA node, as listed at the time of the allocation
	response *pluginapi.ContainerAllocateResponse
}

func newDeviceManager(version Version, now func() time.Time) deviceManager {
	return deviceManager{
		version: version, now: now,
		clients: map[clientKey]*pluginClient{}, connected: map[clientKey]*pluginClient{},
		endpoints: map[string]*pluginClient{},
		devices:   map[string]map[string]*pluginapi.Device{}, healthy: map[string]idSet{},
		allocated: map[string]idSet{}, allocations: map[allocatedTo]containerAllocation{},
	}
}

func (m *deviceManager) key(c *pluginClient) clientKey {
	if m.version == V136 {
		return clientKey{resource: c.resource}
	}
	return clientKey{c.resource, c.socket}
}

// pluginConnected implements manager.go:227.
func (m *deviceManager) pluginConnected(c *pluginClient, options *pluginapi.DevicePluginOptions) error {
	if m.version != V136 && m.connected[m.key(c)] != nil {
		return fmt.Errorf("device plugin already connected: %s", c.socket)
	}
	c.options = options
	m.connected[m.key(c)], m.endpoints[c.resource] = c, c
	return nil
}

// pluginDisconnected implements manager.go:256. A resource with a second plugin
// stays healthy.
func (m *deviceManager) pluginDisconnected(key clientKey) {
	c := m.connected[key]
	if c == nil {
		return
	}
	c.stoppedAt = m.now()
	delete(m.connected, key)
	for _, other := range m.connected {
		if other.resource == c.resource {
			m.endpoints[c.resource] = other
			return
		}
	}
	m.healthy[c.resource] = idSet{} // devices, and so the health in pods' status, does not change (manager.go:447)
}

// pluginListed stores a list from any stream of a resource: the last list wins.
func (m *deviceManager) pluginListed(resource string, list []*pluginapi.Device) {
	devices, healthy := map[string]*pluginapi.Device{}, idSet{}
	for _, device := range list {
		devices[device.ID] = device
		if device.Health == pluginapi.Healthy { // the exact string
			healthy.add(device.ID)
		}
	}
	m.devices[resource], m.healthy[resource] = devices, healthy
}

// removeExpired deletes resources after the grace period and reports whether
// there were any. The real kubelet does so every ten seconds, together with the
// update of the node's status (manager.go:472).
func (m *deviceManager) removeExpired() bool {
	before := len(m.healthy)
	for resource := range m.healthy {
		e := m.endpoints[resource]
		if e == nil || !e.stoppedAt.IsZero() && m.now().Sub(e.stoppedAt) > endpointGracePeriod {
			delete(m.endpoints, resource)
			delete(m.healthy, resource)
		}
	}
	return len(m.healthy) < before
}

// isDeviceResource reports whether a resource has a plugin or an allocation
// (manager.go:1109).
func (m *deviceManager) isDeviceResource(resource string) bool {
	return m.healthy[resource] != nil || m.allocated[resource] != nil
}

// endpoint returns the plugin of a resource, with an error if the plugin has
// left.
func (m *deviceManager) endpoint(resource string) (*pluginClient, error) {
	e := m.endpoints[resource]
	switch {
	case e == nil:
		return nil, fmt.Errorf("endpoint not found in cache for a registered resource: %s", resource)
	case !e.stoppedAt.IsZero():
		return e, fmt.Errorf("endpoint %s has been stopped", resource)
	}
	return e, nil
}

// recountAllocated derives allocated from the allocations. Like in the real
// kubelet, allocations in progress are lost.
func (m *deviceManager) recountAllocated() {
	m.allocated = map[string]idSet{}
	for to, a := range m.allocations {
		m.allocated[to.resource] = m.allocated[to.resource].union(a.ids())
	}
}

// groupByNode returns ids by NUMA node. A device may have several nodes; an
// empty Topology is like nil.
func (m *deviceManager) groupByNode(resource string, ids idSet) map[int64][]string {
	byNode := map[int64][]string{}
	for id := range ids {
		nodes := m.devices[resource][id].GetTopology().GetNodes()
		if len(nodes) == 0 {
			byNode[noNUMANode] = append(byNode[noNUMANode], id)
		}
		for _, node := range nodes {
			byNode[node.ID] = append(byNode[node.ID], id)
		}
	}
	return byNode
}

func (a containerAllocation) ids() idSet {
	all := idSet{}
	for _, ids := range a.devices {
		all.add(ids...)
	}
	return all
}

// idSet is a set of device ids.
type idSet map[string]struct{}

func (s idSet) add(ids ...string) {
	for _, id := range ids {
		s[id] = struct{}{}
	}
}

func (s idSet) has(id string) bool {
	_, ok := s[id]
	return ok
}

func (s idSet) union(other idSet) idSet {
	all := idSet{}
	maps.Copy(all, s)
	maps.Copy(all, other)
	return all
}

func (s idSet) without(other idSet) idSet {
	rest := maps.Clone(s)
	maps.DeleteFunc(rest, func(id string, _ struct{}) bool { return other.has(id) })
	return rest
}

// list returns the ids in random order: the kubelet sorts no ids.
func (s idSet) list() []string { return shuffled(slices.Collect(maps.Keys(s))) }

// shuffled returns a copy in random order, nil if there are no items.
func shuffled[T any](list []T) []T {
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
