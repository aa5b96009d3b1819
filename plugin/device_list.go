package plugin

import (
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// removalDelay is how long an unallocated withdrawn id stays listed as Unhealthy. Kubelets from 1.37 on crash if a device vanishes
	// during its Allocate (pkg/kubelet/cm/devicemanager/manager.go).
	removalDelay = 2 * time.Second
	// reasonAllocatedElsewhere marks a healthy device that is allocated by another id or as another resource.
	reasonAllocatedElsewhere = "allocated_elsewhere"
	// maxMessageBytes is the longest message that the kubelet reads, gRPC's default; it ends the stream over a longer one.
	maxMessageBytes = 4 << 20
	// maxListBytes leaves room for allocated ids that are withdrawn.
	maxListBytes = maxMessageBytes - 64<<10
)

// deviceList is the list of one resource. It is immutable once it is published.
type deviceList struct {
	rules     Rules
	items     []listItem // ordered by id
	withdrawn bool       // the rules do not have the resource: all items are withdrawn
	foreign   bool       // withdrawn, and podgauge no longer owns the resource
	// idCount is the number of ids by the rules. listBytes is the size of their message with all devices unhealthy, which is the longest.
	idCount, listBytes int
}

// listItem is one id of a list. A list may have tens of thousands, so items share their device.
type listItem struct {
	id              device.AdvertisedID
	device          *device.Device // never written
	healthy         bool
	replica         bool
	onePerContainer bool      // no container may have several such ids
	allocated       bool      // withdrawn and still allocated
	unusableReason  string    // of a healthy device
	removeAt        time.Time // of a withdrawn id; zero otherwise
}

func (l *deviceList) sort() {
	slices.SortFunc(l.items, func(a, b listItem) int { return strings.Compare(string(a.id), string(b.id)) })
}

func (l *deviceList) find(id device.AdvertisedID) (listItem, bool) {
	n, found := slices.BinarySearchFunc(l.items, id, func(i listItem, id device.AdvertisedID) int {
		return strings.Compare(string(i.id), string(id))
	})
	if !found {
		return listItem{}, false
	}
	return l.items[n], true
}

func (l *deviceList) has(id device.AdvertisedID) bool {
	_, found := l.find(id)
	return found
}

func (l *deviceList) healthyCount() (n int) {
	for _, i := range l.items {
		if i.healthy {
			n++
		}
	}
	return n
}

func findStatus(statuses []device.Status, id device.ID) (s device.Status, known bool) {
	n := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == id })
	if n < 0 {
		return device.Status{}, false
	}
	return statuses[n], true
}

// retainedIDs are the reasons to keep withdrawn ids in a list.
type retainedIDs struct {
	allocated []device.AdvertisedID
	sent      *deviceList // newest list that the kubelet has; nil: none
}

// carryOver adds withdrawn ids to a newer list that is not published yet. It returns the time of the next removal; zero: never.
//
//	withdrawn id                        is listed
//	allocated, device listed by NVML    with the device's health, until it is released
//	allocated, device gone              Unhealthy, until it is released
//	unallocated, sent to the kubelet    Unhealthy, for removalDelay
//	unallocated, never sent             no longer
//
// The kubelet reports an allocated device that is not listed as healthy in the pod's status, so allocated ids stay. They include ids that
// an earlier process listed.
func (l *deviceList) carryOver(newer *deviceList, statuses []device.Status, retained retainedIDs, now time.Time) (next time.Time) {
	carried := slices.DeleteFunc(retained.allocatedNotListed(l, statuses), func(i listItem) bool { return newer.has(i.id) })
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
		i := &carried[n]
		if i.removeAt.IsZero() {
			i.removeAt = now.Add(removalDelay)
		}
		if !i.allocated {
			next = earlier(next, i.removeAt)
		}
	}
	newer.dropToFit(carried, l)
	newer.items = append(newer.items, carried...)
	newer.sort()
	return next
}

// earlier returns the earlier of two times; a zero time is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// allocatedNotListed returns items for allocated ids that a list lacks, each once: the kubelet counts a repeated id twice.
//
// A device without a status was lost before this process started, and is unhealthy.
func (r retainedIDs) allocatedNotListed(list *deviceList, statuses []device.Status) (items []listItem) {
	for _, id := range slices.Compact(slices.Sorted(slices.Values(r.allocated))) {
		if list.has(id) {
			continue
		}
		s, known := findStatus(statuses, id.Device())
		if uuid := string(id.Device()); !known && !strings.HasPrefix(uuid, "GPU-") && !strings.HasPrefix(uuid, "MIG-") {
			continue // another plugin's id
		}
		if !known {
			s.Device = device.Device{ID: id.Device(), GPU: device.GPU(id.Device()), NUMANode: -1}
		}
		items = append(items, listItem{id: id, device: &s.Device, healthy: s.Healthy, replica: id != s.ID.Advertised(), allocated: true})
	}
	return items
}

// dropToFit removes new ids until the list and the carried ids fit the kubelet's message. New ids can wait until carried ids are
// removed; an id that is removed too soon may crash the kubelet.
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

// conflicts returns the allocations by another id or resource that keep a device from other containers.
//
// An allocation by the id itself is reported as own: the kubelet is the first to know when it ends.
func (r Rules) conflicts(allocations device.Allocations, resource string, i listItem) (conflicts []device.Allocation, own bool) {
	for _, a := range allocations.ForDevice(i.device.ID) {
		if a.Resource == resource && a.DeviceID == i.id {
			own = true
		} else if r.ReserveClaimed || !a.Claimed() {
			conflicts = append(conflicts, a)
		}
	}
	return conflicts, own
}

// markConflicts marks devices unhealthy that are allocated by another id or as another resource, as before a change of the rules.
//
// A device that is allocated by its own id stays healthy: the kubelet gives it to no other container, and shows its health in the
// pod's status.
func (l *deviceList) markConflicts(resource string, allocations device.Allocations) {
	for n := range l.items {
		i := &l.items[n]
		if i.replica || !i.removeAt.IsZero() {
			continue
		}
		if conflicts, own := l.rules.conflicts(allocations, resource, *i); len(conflicts) > 0 && !own {
			i.unusableReason, i.healthy = reasonAllocatedElsewhere, false
		}
	}
}

// toResponse returns the message for the kubelet.
func (l *deviceList) toResponse() *api.ListAndWatchResponse {
	resp := &api.ListAndWatchResponse{Devices: make([]*api.Device, len(l.items))}
	for n, i := range l.items {
		health := api.Unhealthy
		if i.healthy {
			health = api.Healthy
		}
		resp.Devices[n] = &api.Device{ID: string(i.id), Health: health, Topology: numaTopology(*i.device)}
	}
	return resp
}

// listSize returns the bytes of a device's ids in a message: of its own id, or of replicas. It makes no ids: a wrong configuration may
// ask for millions.
func listSize(d device.Device, replicas int) (bytes int) {
	if replicas < 1 {
		return listedIDSize(d.ID.Advertised(), d)
	}
	for from, to := 0, 10; from < replicas; from, to = to, 10*to { // numbers with the same count of digits
		bytes += (min(to, replicas) - from) * listedIDSize(d.ID.Replica(from), d)
	}
	return bytes
}

// listedIDSize returns the bytes of an unhealthy id in a message.
func listedIDSize(id device.AdvertisedID, d device.Device) int {
	return proto.Size(&api.ListAndWatchResponse{Devices: []*api.Device{{ID: string(id), Health: api.Unhealthy, Topology: numaTopology(d)}}})
}

// numaTopology returns nil for an unknown NUMA node: with an empty topology, the kubelet leaves the device out of its responses.
func numaTopology(d device.Device) *api.TopologyInfo {
	if d.NUMANode < 0 {
		return nil
	}
	return &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
}
