package kubelet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// deviceManager is what the kubelet knows of plugins, their devices and who holds them:
// devicemanager.ManagerImpl without its gRPC. Its fields and methods need Kubelet.mu.
type deviceManager struct {
	version  Version
	now      func() time.Time
	podsRead bool // all pods have been read from their sources since the start

	// clients are those who are looked up when a stream ends; by resource.
	clients map[string][]*pluginClient
	// endpoints are whom Allocate goes to; by resource.
	endpoints map[string]*pluginEndpoint
	// connected are all that a resource has, by resource and socket. Only 1.37 knows more than
	// one.
	connected map[string]map[string]*pluginEndpoint

	devices     map[string]map[string]*pluginapi.Device // as last listed, by resource and id
	healthy     map[string]idSet                        // a resource is registered when it has an entry here
	unhealthy   map[string]idSet
	allocated   map[string]idSet // includes what is being allocated
	allocations allocationsByPod
}

// allocationsByPod are by pod uid, container and resource.
type allocationsByPod map[string]map[string]map[string]containerAllocation

// containerAllocation is what a container has of a resource.
type containerAllocation struct {
	devices  map[int64][]string // by NUMA node, as told by the plugin at the time of the allocation
	response *pluginapi.ContainerAllocateResponse
}

// noNUMANode is where holdings keep devices without a NUMA node (manager.go:56).
const noNUMANode = -1

// pluginEndpoint is a plugin to which calls can be made.
type pluginEndpoint struct {
	resource, socket string
	client           *pluginClient // nil where the endpoint was read from the checkpoint
	options          *pluginapi.DevicePluginOptions
	stoppedAt        time.Time // zero while it is connected
}

// endpointGracePeriod is for how long a resource outlives its last plugin (types.go:125).
const endpointGracePeriod = 5 * time.Minute

func newManager(version Version, now func() time.Time) deviceManager {
	return deviceManager{
		version:     version,
		now:         now,
		clients:     map[string][]*pluginClient{},
		endpoints:   map[string]*pluginEndpoint{},
		connected:   map[string]map[string]*pluginEndpoint{},
		devices:     map[string]map[string]*pluginapi.Device{},
		healthy:     map[string]idSet{},
		unhealthy:   map[string]idSet{},
		allocated:   map[string]idSet{},
		allocations: allocationsByPod{},
	}
}

// addClient, dropClient and findClient are where the versions differ: until 1.36 a client is
// its resource, so that a stream that ends takes down whoever has the resource by then; since
// 1.37 it is its resource and its socket's path (plugin/v1beta1/handler.go:101-156).
func (m *deviceManager) addClient(c *pluginClient) {
	if m.version == V136 {
		m.clients[c.resource] = nil
	}
	m.clients[c.resource] = append(m.clients[c.resource], c)
}

// dropClient removes every client of that name. So a registration that fails takes away the one
// that works: nobody will be found when its stream ends, and its devices stay healthy for ever.
func (m *deviceManager) dropClient(resource, socket string) {
	m.clients[resource] = slices.DeleteFunc(slices.Clone(m.clients[resource]), func(c *pluginClient) bool {
		return m.version == V136 || c.socket == socket
	})
}

func (m *deviceManager) findClient(resource, socket string) *pluginClient {
	for _, c := range m.clients[resource] {
		if m.version == V136 || c.socket == socket {
			return c
		}
	}
	return nil
}

// pluginConnected is manager.go:227.
func (m *deviceManager) pluginConnected(c *pluginClient, options *pluginapi.DevicePluginOptions) error {
	e := &pluginEndpoint{resource: c.resource, socket: c.socket, client: c, options: options}
	if m.version != V136 {
		if m.connected[c.resource] == nil {
			m.connected[c.resource] = map[string]*pluginEndpoint{}
		}
		if m.connected[c.resource][c.socket] != nil {
			return fmt.Errorf("device plugin already connected: %s", c.socket)
		}
		m.connected[c.resource][c.socket] = e
	}
	m.endpoints[c.resource] = e
	return nil
}

// pluginDisconnected is manager.go:256, and before 1.37 the shorter one: the resource's
// endpoint is stopped, whichever it is.
func (m *deviceManager) pluginDisconnected(resource, socket string) {
	if m.version == V136 {
		if e := m.endpoints[resource]; e != nil {
			m.markUnhealthy(resource)
			e.stoppedAt = m.now()
		}
		return
	}
	e := m.connected[resource][socket]
	if e == nil {
		return
	}
	e.stoppedAt = m.now()
	delete(m.connected[resource], socket)
	for _, other := range m.connected[resource] { // any one, as maps go
		m.endpoints[resource] = other
		return
	}
	m.markUnhealthy(resource)
}

// markUnhealthy leaves devices alone, and with it what pods' statuses say of their health
// (manager.go:447).
func (m *deviceManager) markUnhealthy(resource string) {
	unhealthy := idSet{}
	maps.Copy(unhealthy, m.unhealthy[resource])
	maps.Copy(unhealthy, m.healthy[resource])
	m.healthy[resource], m.unhealthy[resource] = idSet{}, unhealthy
}

// pluginListed takes a list from any live stream of a resource; the last one wins. An id that
// is listed twice with different healths is in both sets, and counted twice (manager.go:293).
func (m *deviceManager) pluginListed(resource string, list []*pluginapi.Device) {
	devices, healthy, unhealthy := map[string]*pluginapi.Device{}, idSet{}, idSet{}
	for _, device := range list {
		devices[device.ID] = device
		if device.Health == pluginapi.Healthy { // the exact word; anything else is unhealthy
			healthy.add(device.ID)
		} else {
			unhealthy.add(device.ID)
		}
	}
	m.devices[resource], m.healthy[resource], m.unhealthy[resource] = devices, healthy, unhealthy
}

// removeExpired forgets the resources whose last plugin left five minutes ago, and says whether there
// were any. The real one does so when it updates the node's status, every ten seconds
// (manager.go:472); here it is done whenever somebody looks.
func (m *deviceManager) removeExpired() bool {
	before := len(m.healthy)
	for resource := range m.healthy {
		e := m.endpoints[resource]
		if e == nil || !e.stoppedAt.IsZero() && m.now().Sub(e.stoppedAt) > endpointGracePeriod {
			delete(m.endpoints, resource)
			delete(m.healthy, resource)
			delete(m.unhealthy, resource)
		}
	}
	return len(m.healthy) < before
}

// isDeviceResource says whether a resource is the device manager's business: a plugin has
// registered it, or a pod holds some of it (manager.go:1109).
func (m *deviceManager) isDeviceResource(resource string) bool {
	_, registered := m.healthy[resource]
	_, allocated := m.allocated[resource]
	return registered || allocated
}

func (m *deviceManager) recordAllocation(uid, container, resource string, h containerAllocation) {
	if m.allocations[uid] == nil {
		m.allocations[uid] = map[string]map[string]containerAllocation{}
	}
	if m.allocations[uid][container] == nil {
		m.allocations[uid][container] = map[string]containerAllocation{}
	}
	m.allocations[uid][container][resource] = h
}

// recountAllocated derives what is allocated from what is held. Allocations under way are forgotten by
// it, as in the real one.
func (m *deviceManager) recountAllocated() {
	m.allocated = map[string]idSet{}
	for _, containers := range m.allocations {
		for _, resources := range containers {
			for resource, h := range resources {
				if m.allocated[resource] == nil {
					m.allocated[resource] = idSet{}
				}
				m.allocated[resource].add(h.deviceIDs()...)
			}
		}
	}
}

// deviceIDs of a holding, each once.
func (h containerAllocation) deviceIDs() []string {
	all := idSet{}
	for _, some := range h.devices {
		all.add(some...)
	}
	return all.list()
}

// numaNodes are those of each held device that has any. They are indexed once: a holding may have thousands of ids.
func (h containerAllocation) numaNodes() map[string][]int64 {
	all := map[string][]int64{}
	for node, some := range h.devices {
		if node == noNUMANode {
			continue
		}
		for _, id := range some {
			all[id] = append(all[id], node)
		}
	}
	return all
}

// idSet is a set of device ids.
type idSet map[string]struct{}

func (s idSet) add(list ...string) {
	for _, id := range list {
		s[id] = struct{}{}
	}
}

func (s idSet) has(id string) bool {
	_, ok := s[id]
	return ok
}

func (s idSet) without(other idSet) idSet {
	rest := maps.Clone(s)
	maps.DeleteFunc(rest, func(id string, _ struct{}) bool { return other.has(id) })
	return rest
}

// list is in any order, and another one each time: nothing in the kubelet sorts ids.
func (s idSet) list() []string {
	list := slices.Collect(maps.Keys(s))
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
