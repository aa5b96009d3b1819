package plugin

import (
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// vanishAfter is how long an id that is offered no more stays in the list as
// Unhealthy. A kubelet from 1.37 on crashes when a device is gone at the end of an
// Allocate that it began with it (pkg/kubelet/cm/devicemanager/manager.go).
const vanishAfter = 2 * time.Second

// elsewhere is why an id cannot be used whose device is held by another id or as another
// resource.
const elsewhere = "held"

// maxMessage is the longest message that the kubelet reads, gRPC's default: it ends the stream
// over a longer one. mostBytes leaves room for what containers hold from before.
const (
	maxMessage = 4 << 20
	mostBytes  = maxMessage - 64<<10
)

// offer is what is offered under one resource name. It is never written once it
// was published.
type offer struct {
	rules Rules
	items []item // ordered by id
	// past says that the rules do not offer the resource: there is what containers have from
	// before, if anything.
	past    bool
	foreign bool // it is past, and may be another plugin's by now
	// ids are how many the rules offer, and bytes the length of their list when all devices
	// have failed, which is when it is the longest.
	ids, bytes int
}

// item is one offered id. There are tens of thousands, so the replicas of a device share what
// is known of it.
type item struct {
	id      device.OfferedID
	device  *device.Device // never written
	healthy bool
	shared  bool   // one of several replicas
	down    string // why it cannot be used, though its device is healthy
	onlyOne bool   // not to be given to a container together with another
	// until is when an id that is offered no more goes; zero where it is offered.
	until time.Time
	held  bool // by a container, though it is offered no more
}

func (o *offer) sort() {
	slices.SortFunc(o.items, func(a, b item) int { return strings.Compare(string(a.id), string(b.id)) })
}

func (o *offer) find(id device.OfferedID) (item, bool) {
	i, found := slices.BinarySearchFunc(o.items, id, func(i item, id device.OfferedID) int {
		return strings.Compare(string(i.id), string(id))
	})
	if !found {
		return item{}, false
	}
	return o.items[i], true
}

// find is what the board says of a device.
func find(statuses []device.Status, id device.ID) (s device.Status, known bool) {
	at := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == id })
	if at < 0 {
		return device.Status{}, false
	}
	return statuses[at], true
}

func (o *offer) has(id device.OfferedID) bool {
	_, found := o.find(id)
	return found
}

// bonds tie ids to the list that are offered no more.
type bonds struct {
	held []device.OfferedID // by containers
	told *offer             // what the kubelet was last sent; nil: nothing
}

// leave hands on to a newer offer, which nobody has seen yet, the ids that are not
// in it: for as long as a container holds them, as healthy as their devices are,
// since the kubelet reports a device that it is not told of as healthy in the
// status of the pod that holds it; and else for a moment, unhealthy. What is held
// from before this process began is among them. It returns when the first of those goes that
// no container holds; never is zero.
func (o *offer) leave(newer *offer, statuses []device.Status, b bonds, now time.Time) (first time.Time) {
	var left []item
	for _, i := range b.strangers(o, statuses) {
		if !newer.has(i.id) {
			left = append(left, i)
		}
	}
	for _, i := range o.items {
		if newer.has(i.id) {
			continue
		}
		s, known := find(statuses, i.device.ID)
		i.held = slices.Contains(b.held, i.id)
		switch {
		case i.held && known:
			d := s.Device // so that s stays on the stack for all other ids
			i.device, i.healthy, i.until = &d, s.Healthy, now.Add(vanishAfter)
		case i.held || i.until.IsZero() && b.told != nil && b.told.has(i.id) || !i.until.IsZero() && i.healthy:
			i.healthy, i.until = false, now.Add(vanishAfter)
		case !i.until.After(now):
			continue
		}
		left = append(left, i)
	}
	for n := range left {
		if left[n].until.IsZero() {
			left[n].until = now.Add(vanishAfter)
		}
		if !left[n].held {
			first = earlier(first, left[n].until)
		}
	}
	newer.makeRoom(left, o)
	newer.items = append(newer.items, left...)
	newer.sort()
	return first
}

// makeRoom removes new ids from an offer until its list and the ids that the older offer leaves
// fit the kubelet's message. A new id can wait until those have gone; an id that vanishes too
// soon may crash the kubelet.
func (o *offer) makeRoom(left []item, older *offer) {
	over := o.bytes - maxMessage
	for _, i := range left {
		over += listedID(i.id, *i.device)
	}
	o.items = slices.DeleteFunc(o.items, func(i item) bool {
		if over <= 0 || older.has(i.id) {
			return false
		}
		over -= listedID(i.id, *i.device)
		return true
	})
}

// reserves reports whether an allocation keeps its device from other containers.
func (r Rules) reserves(h device.Holding) bool { return r.ReserveClaimed || !h.Claimed() }

// others returns the allocations that keep a device from being given away by one id of a
// resource: those by another id or resource. That of the id itself is not among them: the
// kubelet knows first when it ends.
func (r Rules) others(holders device.Holders, resource string, i item) (others []device.Holding, own bool) {
	for _, h := range holders.Rows(i.device.ID) {
		if h.Resource == resource && h.Offered == i.id {
			own = true
		} else if r.reserves(h) {
			others = append(others, h)
		}
	}
	return others, own
}

// reserve keeps a device that is to be had alone from being given away while a
// container has it by another id or as another resource, as it was offered before
// the rules changed. One that its own id is held of is left alone: it is given away
// already, and its pod's status is not to be wrong.
func (o *offer) reserve(resource string, holders device.Holders) {
	for n := range o.items {
		i := &o.items[n]
		if i.shared || !i.until.IsZero() {
			continue
		}
		if others, own := o.rules.others(holders, resource, *i); len(others) == 0 || own {
			continue
		}
		i.down, i.healthy = elsewhere, false
	}
}

// strangers are held ids that an offer does not have. One of a device that no listing has is
// unhealthy: the device was lost before this process began. Each is there once, whoever
// holds it: a list that names an id twice is counted twice.
func (b bonds) strangers(o *offer, statuses []device.Status) (items []item) {
	for _, id := range slices.Compact(slices.Sorted(slices.Values(b.held))) {
		if o.has(id) {
			continue
		}
		s, known := find(statuses, id.Device())
		if !known && !isUUID(id.Device()) {
			continue // another plugin has served the resource
		}
		if !known {
			s.Device = device.Device{ID: id.Device(), GPU: device.GPU(id.Device()), NUMANode: -1}
		}
		items = append(items, item{id: id, device: &s.Device, healthy: s.Healthy, shared: id != s.ID.Offered(), held: true})
	}
	return items
}

// isUUID reports whether an id has the form of those that the plugin offers.
func isUUID(id device.ID) bool {
	return strings.HasPrefix(string(id), "GPU-") || strings.HasPrefix(string(id), "MIG-")
}

// list names every id, the unhealthy too: the kubelet reports one that is missing
// as healthy in the status of the pod that holds it. The order is that of the ids,
// so that a change of the board's order is none.
func (o *offer) list() *api.ListAndWatchResponse {
	list := &api.ListAndWatchResponse{Devices: make([]*api.Device, len(o.items))}
	for n, i := range o.items {
		health := api.Unhealthy
		if i.healthy {
			health = api.Healthy
		}
		list.Devices[n] = &api.Device{ID: string(i.id), Health: health, Topology: topology(*i.device)}
	}
	return list
}

// listed is the length of what a list has of a device: its own id, or so many replicas. It
// makes no ids, of which a wrong configuration may ask for millions.
func listed(d device.Device, replicas int) (bytes int) {
	if replicas < 1 {
		return listedID(d.ID.Offered(), d)
	}
	for from, to := 0, 10; from < replicas; from, to = to, 10*to { // numbers of as many digits
		bytes += (min(to, replicas) - from) * listedID(d.ID.Replica(from), d)
	}
	return bytes
}

// listedID is the length of what a list has of an id when it is unhealthy.
func listedID(id device.OfferedID, d device.Device) int {
	return proto.Size(&api.ListAndWatchResponse{Devices: []*api.Device{{ID: string(id), Health: api.Unhealthy, Topology: topology(d)}}})
}

// topology is nil where the NUMA node is not known: one that is there but empty
// makes the device vanish from the kubelet's answers.
func topology(d device.Device) *api.TopologyInfo {
	if d.NUMANode < 0 {
		return nil
	}
	return &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
}

func (o *offer) healthy() (n int) {
	for _, i := range o.items {
		if i.healthy {
			n++
		}
	}
	return n
}
