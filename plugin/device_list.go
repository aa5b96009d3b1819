package plugin

import (
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// removalDelay is how long an id that is offered no more stays in the list as
// Unhealthy. A kubelet from 1.37 on crashes when a device is gone at the end of an
// Allocate that it began with it (pkg/kubelet/cm/devicemanager/manager.go).
const removalDelay = 2 * time.Second

// reasonAllocatedElsewhere is why an id cannot be used whose device is held by another id or as another
// resource.
const reasonAllocatedElsewhere = "held"

// maxMessageBytes is the longest message that the kubelet reads, gRPC's default: it ends the stream
// over a longer one. maxListBytes leaves room for what containers hold from before.
const (
	maxMessageBytes = 4 << 20
	maxListBytes    = maxMessageBytes - 64<<10
)

// deviceList is what is offered under one resource name. It is never written once it
// was published.
type deviceList struct {
	rules Rules
	items []listItem // ordered by id
	// withdrawn says that the rules do not offer the resource: there is what containers have from
	// before, if anything.
	withdrawn bool
	foreign   bool // it is past, and may be another plugin's by now
	// idCount are how many the rules offer, and bytes the length of their list when all devices
	// have failed, which is when it is the longest.
	idCount, listBytes int
}

// listItem is one offered id. There are tens of thousands, so the replicas of a device share what
// is known of it.
type listItem struct {
	id              device.AdvertisedID
	device          *device.Device // never written
	healthy         bool
	replica         bool   // one of several replicas
	unusableReason  string // why it cannot be used, though its device is healthy
	onePerContainer bool   // not to be given to a container together with another
	// removeAt is when an id that is offered no more goes; zero where it is offered.
	removeAt  time.Time
	allocated bool // by a container, though it is offered no more
}

func (l *deviceList) sort() {
	slices.SortFunc(l.items, func(a, b listItem) int { return strings.Compare(string(a.id), string(b.id)) })
}

func (l *deviceList) find(id device.AdvertisedID) (listItem, bool) {
	i, found := slices.BinarySearchFunc(l.items, id, func(i listItem, id device.AdvertisedID) int {
		return strings.Compare(string(i.id), string(id))
	})
	if !found {
		return listItem{}, false
	}
	return l.items[i], true
}

// findStatus is what the board says of a device.
func findStatus(statuses []device.Status, id device.ID) (s device.Status, known bool) {
	i := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == id })
	if i < 0 {
		return device.Status{}, false
	}
	return statuses[i], true
}

func (l *deviceList) has(id device.AdvertisedID) bool {
	_, found := l.find(id)
	return found
}

// retainedIDs tie ids to the list that are offered no more.
type retainedIDs struct {
	allocated []device.AdvertisedID // by containers
	sent      *deviceList           // what the kubelet was last sent; nil: nothing
}

// carryOver hands on to a newer offer, which nobody has seen yet, the ids that are not
// in it: for as long as a container holds them, as healthy as their devices are,
// since the kubelet reports a device that it is not told of as healthy in the
// status of the pod that holds it; and else for a moment, unhealthy. What is held
// from before this process began is among them. It returns when the first of those goes that
// no container holds; never is zero.
func (l *deviceList) carryOver(newer *deviceList, statuses []device.Status, retained retainedIDs, now time.Time) (first time.Time) {
	var carried []listItem
	for _, i := range retained.allocatedNotListed(l, statuses) {
		if !newer.has(i.id) {
			carried = append(carried, i)
		}
	}
	for _, i := range l.items {
		if newer.has(i.id) {
			continue
		}
		s, known := findStatus(statuses, i.device.ID)
		i.allocated = slices.Contains(retained.allocated, i.id)
		switch {
		case i.allocated && known:
			d := s.Device // so that s stays on the stack for all other ids
			i.device, i.healthy, i.removeAt = &d, s.Healthy, now.Add(removalDelay)
		case i.allocated || i.removeAt.IsZero() && retained.sent != nil && retained.sent.has(i.id) || !i.removeAt.IsZero() && i.healthy:
			i.healthy, i.removeAt = false, now.Add(removalDelay)
		case !i.removeAt.After(now):
			continue
		}
		carried = append(carried, i)
	}
	for n := range carried {
		if carried[n].removeAt.IsZero() {
			carried[n].removeAt = now.Add(removalDelay)
		}
		if !carried[n].allocated {
			first = earlier(first, carried[n].removeAt)
		}
	}
	newer.dropToFit(carried, l)
	newer.items = append(newer.items, carried...)
	newer.sort()
	return first
}

// dropToFit removes new ids from an offer until its list and the ids that the older offer leaves
// fit the kubelet's message. A new id can wait until those have gone; an id that vanishes too
// soon may crash the kubelet.
func (l *deviceList) dropToFit(carried []listItem, older *deviceList) {
	excess := l.listBytes - maxMessageBytes
	for _, i := range carried {
		excess += listedIDSize(i.id, *i.device)
	}
	l.items = slices.DeleteFunc(l.items, func(i listItem) bool {
		if excess <= 0 || older.has(i.id) {
			return false
		}
		excess -= listedIDSize(i.id, *i.device)
		return true
	})
}

// blocksDevice reports whether an allocation keeps its device from other containers.
func (r Rules) blocksDevice(h device.Allocation) bool { return r.ReserveClaimed || !h.Claimed() }

// conflicts returns the allocations that keep a device from being given away by one id of a
// resource: those by another id or resource. That of the id itself is not among them: the
// kubelet knows first when it ends.
func (r Rules) conflicts(allocations device.Allocations, resource string, i listItem) (conflicts []device.Allocation, own bool) {
	for _, h := range allocations.ForDevice(i.device.ID) {
		if h.Resource == resource && h.DeviceID == i.id {
			own = true
		} else if r.blocksDevice(h) {
			conflicts = append(conflicts, h)
		}
	}
	return conflicts, own
}

// markConflicts keeps a device that is to be had alone from being given away while a
// container has it by another id or as another resource, as it was offered before
// the rules changed. One that its own id is held of is left alone: it is given away
// already, and its pod's status is not to be wrong.
func (l *deviceList) markConflicts(resource string, allocations device.Allocations) {
	for n := range l.items {
		i := &l.items[n]
		if i.replica || !i.removeAt.IsZero() {
			continue
		}
		if conflicts, own := l.rules.conflicts(allocations, resource, *i); len(conflicts) == 0 || own {
			continue
		}
		i.unusableReason, i.healthy = reasonAllocatedElsewhere, false
	}
}

// allocatedNotListed are held ids that an offer does not have. One of a device that no listing has is
// unhealthy: the device was lost before this process began. Each is there once, whoever
// holds it: a list that names an id twice is counted twice.
func (r retainedIDs) allocatedNotListed(list *deviceList, statuses []device.Status) (items []listItem) {
	for _, id := range slices.Compact(slices.Sorted(slices.Values(r.allocated))) {
		if list.has(id) {
			continue
		}
		s, known := findStatus(statuses, id.Device())
		if !known && !isUUID(id.Device()) {
			continue // another plugin has served the resource
		}
		if !known {
			s.Device = device.Device{ID: id.Device(), GPU: device.GPU(id.Device()), NUMANode: -1}
		}
		items = append(items, listItem{id: id, device: &s.Device, healthy: s.Healthy, replica: id != s.ID.Advertised(), allocated: true})
	}
	return items
}

// isUUID reports whether an id has the form of those that the plugin offers.
func isUUID(id device.ID) bool {
	return strings.HasPrefix(string(id), "GPU-") || strings.HasPrefix(string(id), "MIG-")
}

// toResponse names every id, the unhealthy too: the kubelet reports one that is missing
// as healthy in the status of the pod that holds it. The order is that of the ids,
// so that a change of the board's order is none.
func (l *deviceList) toResponse() *api.ListAndWatchResponse {
	list := &api.ListAndWatchResponse{Devices: make([]*api.Device, len(l.items))}
	for n, i := range l.items {
		health := api.Unhealthy
		if i.healthy {
			health = api.Healthy
		}
		list.Devices[n] = &api.Device{ID: string(i.id), Health: health, Topology: numaTopology(*i.device)}
	}
	return list
}

// listSize is the length of what a list has of a device: its own id, or so many replicas. It
// makes no ids, of which a wrong configuration may ask for millions.
func listSize(d device.Device, replicas int) (bytes int) {
	if replicas < 1 {
		return listedIDSize(d.ID.Advertised(), d)
	}
	for from, to := 0, 10; from < replicas; from, to = to, 10*to { // numbers of as many digits
		bytes += (min(to, replicas) - from) * listedIDSize(d.ID.Replica(from), d)
	}
	return bytes
}

// listedIDSize is the length of what a list has of an id when it is unhealthy.
func listedIDSize(id device.AdvertisedID, d device.Device) int {
	return proto.Size(&api.ListAndWatchResponse{Devices: []*api.Device{{ID: string(id), Health: api.Unhealthy, Topology: numaTopology(d)}}})
}

// numaTopology is nil where the NUMA node is not known: one that is there but empty
// makes the device vanish from the kubelet's answers.
func numaTopology(d device.Device) *api.TopologyInfo {
	if d.NUMANode < 0 {
		return nil
	}
	return &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
}

func (l *deviceList) healthyCount() (n int) {
	for _, i := range l.items {
		if i.healthy {
			n++
		}
	}
	return n
}
