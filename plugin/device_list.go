package plugin

import (
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// removalDelay is how long an unallocated withdrawn id stays listed as
	// Unhealthy. Kubelets from 1.37 on crash if a device vanishes during
	// Allocate (pkg/kubelet/cm/devicemanager/manager.go).
	removalDelay = 2 * time.Second
	// reasonAllocatedElsewhere marks a healthy device with an allocation by a
	// different id or resource.
	reasonAllocatedElsewhere = "allocated_elsewhere"
	// maxMessageBytes is the kubelet's limit, gRPC's default. The kubelet ends
	// the stream at a longer message.
	maxMessageBytes = 4 << 20
	// maxListBytes leaves room for a thousand withdrawn ids.
	maxListBytes = maxMessageBytes - 64<<10
)

// deviceList is the list of a resource. A published list is immutable.
type deviceList struct {
	rules     Rules
	items     []listItem // ordered by id
	withdrawn bool       // the rules do not have the resource: all items are withdrawn
	idCount   int        // ids by the rules
	listBytes int        // an upper bound of the message with these ids
}

// listItem is an id of a list. A list may have tens of thousands of items, so
// replicas share the device.
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

func (l *deviceList) find(id device.AdvertisedID) (i listItem, found bool) {
	n, found := slices.BinarySearchFunc(l.items, id, func(i listItem, id device.AdvertisedID) int {
		return strings.Compare(string(i.id), string(id))
	})
	if found {
		i = l.items[n]
	}
	return i, found
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
	if n := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == id }); n >= 0 {
		return statuses[n], true
	}
	return s, false
}

// carryOver adds withdrawn ids to a newer, unpublished list, while containers
// have the allocated ids. The result is the time of the next removal; zero:
// never.
//
//	withdrawn id                        is listed
//	allocated, device listed by NVML    with the device's health, until released
//	allocated, device gone              Unhealthy, until released
//	unallocated                         Unhealthy, for removalDelay
//	unallocated, never registered       no longer
//
// Without an allocated id in the list, the kubelet reports the device as
// healthy in the pod's status, so allocated ids stay. Some were listed by an
// earlier process.
func (l *deviceList) carryOver(
	newer *deviceList, statuses []device.Status, allocated []device.AdvertisedID, wasRegistered bool, now time.Time,
) (next time.Time) {
	carried := l.missingItems(allocated, statuses)
	carried = slices.DeleteFunc(carried, func(i listItem) bool { return newer.has(i.id) })
	for _, i := range l.items {
		if newer.has(i.id) {
			continue
		}
		s, known := findStatus(statuses, i.device.ID)
		i.allocated = slices.Contains(allocated, i.id)
		isNew := i.removeAt.IsZero()
		switch {
		case !i.allocated && !wasRegistered:
			continue
		case i.allocated && known:
			i.device = &s.Device
			i.healthy = s.Healthy
			i.removeAt = now.Add(removalDelay)
		case i.allocated, isNew, i.healthy: // a withdrawn id is only healthy while allocated
			i.healthy = false
			i.removeAt = now.Add(removalDelay)
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

// missingItems returns items for allocated ids without an item, each once: the
// kubelet counts a repeated id twice.
//
// A device without a status was lost before this process started, and is
// unhealthy.
func (l *deviceList) missingItems(allocated []device.AdvertisedID, statuses []device.Status) (items []listItem) {
	for _, id := range slices.Compact(slices.Sorted(slices.Values(allocated))) {
		if l.has(id) {
			continue
		}
		s, known := findStatus(statuses, id.Device())
		if uuid := string(id.Device()); !known && !strings.HasPrefix(uuid, "GPU-") && !strings.HasPrefix(uuid, "MIG-") {
			continue // of a foreign plugin
		}
		if !known {
			s.Device = device.Device{ID: id.Device(), GPU: device.GPU(id.Device()), NUMANode: -1}
		}
		replica := id != s.ID.Advertised()
		items = append(items, listItem{
			id: id, device: &s.Device, healthy: s.Healthy, replica: replica, allocated: true,
		})
	}
	return items
}

// markConflicts marks devices with conflicts unhealthy: a change of the rules
// may leave allocations by old ids or resources.
//
// With an own allocation as well, the device stays healthy: the kubelet does
// not allocate the id twice, and the pod's status shows the health of the id.
func (l *deviceList) markConflicts(resource string, allocations allocation.Snapshot) {
	for n := range l.items {
		i := &l.items[n]
		if i.replica || !i.removeAt.IsZero() {
			continue
		}
		if conflicts, own := l.rules.conflicts(allocations, resource, i.device.ID, i.id); len(conflicts) > 0 && !own {
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

// listedIDSize returns the bytes of an unhealthy id in a message.
func listedIDSize(id device.AdvertisedID, d device.Device) int {
	listed := &api.Device{ID: string(id), Health: api.Unhealthy, Topology: numaTopology(d)}
	return proto.Size(&api.ListAndWatchResponse{Devices: []*api.Device{listed}})
}

// numaTopology returns nil for an unknown NUMA node: with an empty topology,
// the kubelet's responses lack the device.
func numaTopology(d device.Device) *api.TopologyInfo {
	if d.NUMANode < 0 {
		return nil
	}
	return &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(d.NUMANode)}}}
}
