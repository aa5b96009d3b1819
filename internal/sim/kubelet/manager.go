package kubelet

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// manager is what the kubelet knows of plugins, their devices and who holds them:
// devicemanager.ManagerImpl without its gRPC. Its fields and methods need Kubelet.mu.
type manager struct {
	version Version
	now     func() time.Time
	ready   bool // all pods have been read from their sources since the start

	// clients are those who are looked up when a stream ends; by resource.
	clients map[string][]*client
	// endpoints are whom Allocate goes to; by resource.
	endpoints map[string]*endpoint
	// connected are all that a resource has, by resource and socket. Only 1.37 knows more than
	// one.
	connected map[string]map[string]*endpoint

	devices   map[string]map[string]*pluginapi.Device // as last listed, by resource and id
	healthy   map[string]ids                          // a resource is registered when it has an entry here
	unhealthy map[string]ids
	allocated map[string]ids // includes what is being allocated
	held      holdings
}

// holdings are by pod uid, container and resource.
type holdings map[string]map[string]map[string]holding

// holding is what a container has of a resource.
type holding struct {
	devices map[int64][]string // by NUMA node, as told by the plugin at the time of the allocation
	answer  *pluginapi.ContainerAllocateResponse
}

// noNode is where holdings keep devices without a NUMA node (manager.go:56).
const noNode = -1

// endpoint is a plugin to which calls can be made.
type endpoint struct {
	resource, socket string
	client           *client // nil where the endpoint was read from the checkpoint
	options          *pluginapi.DevicePluginOptions
	stopped          time.Time // zero while it is connected
}

// grace is for how long a resource outlives its last plugin (types.go:125).
const grace = 5 * time.Minute

func newManager(version Version, now func() time.Time) manager {
	return manager{
		version:   version,
		now:       now,
		clients:   map[string][]*client{},
		endpoints: map[string]*endpoint{},
		connected: map[string]map[string]*endpoint{},
		devices:   map[string]map[string]*pluginapi.Device{},
		healthy:   map[string]ids{},
		unhealthy: map[string]ids{},
		allocated: map[string]ids{},
		held:      holdings{},
	}
}

// addClient, dropClient and findClient are where the versions differ: until 1.36 a client is
// its resource, so that a stream that ends takes down whoever has the resource by then; since
// 1.37 it is its resource and its socket's path (plugin/v1beta1/handler.go:101-156).
func (m *manager) addClient(c *client) {
	if m.version == V136 {
		m.clients[c.resource] = nil
	}
	m.clients[c.resource] = append(m.clients[c.resource], c)
}

// dropClient removes every client of that name. So a registration that fails takes away the one
// that works: nobody will be found when its stream ends, and its devices stay healthy for ever.
func (m *manager) dropClient(resource, socket string) {
	m.clients[resource] = slices.DeleteFunc(slices.Clone(m.clients[resource]), func(c *client) bool {
		return m.version == V136 || c.socket == socket
	})
}

func (m *manager) findClient(resource, socket string) *client {
	for _, c := range m.clients[resource] {
		if m.version == V136 || c.socket == socket {
			return c
		}
	}
	return nil
}

// pluginConnected is manager.go:227.
func (m *manager) pluginConnected(c *client, options *pluginapi.DevicePluginOptions) error {
	e := &endpoint{resource: c.resource, socket: c.socket, client: c, options: options}
	if m.version != V136 {
		if m.connected[c.resource] == nil {
			m.connected[c.resource] = map[string]*endpoint{}
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
func (m *manager) pluginDisconnected(resource, socket string) {
	if m.version == V136 {
		if e := m.endpoints[resource]; e != nil {
			m.markUnhealthy(resource)
			e.stopped = m.now()
		}
		return
	}
	e := m.connected[resource][socket]
	if e == nil {
		return
	}
	e.stopped = m.now()
	delete(m.connected[resource], socket)
	for _, other := range m.connected[resource] { // any one, as maps go
		m.endpoints[resource] = other
		return
	}
	m.markUnhealthy(resource)
}

// markUnhealthy leaves devices alone, and with it what pods' statuses say of their health
// (manager.go:447).
func (m *manager) markUnhealthy(resource string) {
	unhealthy := ids{}
	maps.Copy(unhealthy, m.unhealthy[resource])
	maps.Copy(unhealthy, m.healthy[resource])
	m.healthy[resource], m.unhealthy[resource] = ids{}, unhealthy
}

// pluginListed takes a list from any live stream of a resource; the last one wins. An id that
// is listed twice with different healths is in both sets, and counted twice (manager.go:293).
func (m *manager) pluginListed(resource string, list []*pluginapi.Device) {
	devices, healthy, unhealthy := map[string]*pluginapi.Device{}, ids{}, ids{}
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

// collect forgets the resources whose last plugin left five minutes ago, and says whether there
// were any. The real one does so when it updates the node's status, every ten seconds
// (manager.go:472); here it is done whenever somebody looks.
func (m *manager) collect() bool {
	before := len(m.healthy)
	for resource := range m.healthy {
		e := m.endpoints[resource]
		if e == nil || !e.stopped.IsZero() && m.now().Sub(e.stopped) > grace {
			delete(m.endpoints, resource)
			delete(m.healthy, resource)
			delete(m.unhealthy, resource)
		}
	}
	return len(m.healthy) < before
}

// isDeviceResource says whether a resource is the device manager's business: a plugin has
// registered it, or a pod holds some of it (manager.go:1109).
func (m *manager) isDeviceResource(resource string) bool {
	_, registered := m.healthy[resource]
	_, allocated := m.allocated[resource]
	return registered || allocated
}

func (m *manager) hold(uid, container, resource string, h holding) {
	if m.held[uid] == nil {
		m.held[uid] = map[string]map[string]holding{}
	}
	if m.held[uid][container] == nil {
		m.held[uid][container] = map[string]holding{}
	}
	m.held[uid][container][resource] = h
}

// recount derives what is allocated from what is held. Allocations under way are forgotten by
// it, as in the real one.
func (m *manager) recount() {
	m.allocated = map[string]ids{}
	for _, containers := range m.held {
		for _, resources := range containers {
			for resource, h := range resources {
				if m.allocated[resource] == nil {
					m.allocated[resource] = ids{}
				}
				m.allocated[resource].add(h.ids()...)
			}
		}
	}
}

// ids of a holding, each once.
func (h holding) ids() []string {
	all := ids{}
	for _, some := range h.devices {
		all.add(some...)
	}
	return all.list()
}

// nodes are those of each held device that has any. They are indexed once: a holding may have thousands of ids.
func (h holding) nodes() map[string][]int64 {
	all := map[string][]int64{}
	for node, some := range h.devices {
		if node == noNode {
			continue
		}
		for _, id := range some {
			all[id] = append(all[id], node)
		}
	}
	return all
}

// ids is a set of device ids.
type ids map[string]struct{}

func (s ids) add(list ...string) {
	for _, id := range list {
		s[id] = struct{}{}
	}
}

func (s ids) has(id string) bool {
	_, ok := s[id]
	return ok
}

func (s ids) without(other ids) ids {
	rest := maps.Clone(s)
	maps.DeleteFunc(rest, func(id string, _ struct{}) bool { return other.has(id) })
	return rest
}

// list is in any order, and another one each time: nothing in the kubelet sorts ids.
func (s ids) list() []string {
	list := slices.Collect(maps.Keys(s))
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
