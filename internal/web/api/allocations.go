package api

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// HoldersResponse is the answer at HoldersPath.
type HoldersResponse struct {
	At      time.Time   `json:"at"`
	Node    string      `json:"node,omitempty"`
	Kubelet KubeletJSON `json:"kubelet"`
	// Complete says that a device which is not listed is held by nobody.
	Complete    bool             `json:"settled"`
	Allocations []AllocationJSON `json:"holders"`
}

// AllocationJSON is a container, and a device that it holds or held.
type AllocationJSON struct {
	Device  device.ID  `json:"device"`
	GPU     device.GPU `json:"gpu,omitempty"` // as are index and profile: of a device that is still there
	Index   *int       `json:"index,omitempty"`
	Profile string     `json:"profile,omitempty"`
	OwnerJSON
}

// OwnerJSON is a container that holds a device, or held it within the last hour.
type OwnerJSON struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Current   bool   `json:"holds"` // now
	// Resources are the resources and ids as which it has it; none where it holds it no more.
	Resources []ResourceIDJSON `json:"as"`
	FirstSeen time.Time        `json:"first,omitzero"` // seen with the device
	LastSeen  time.Time        `json:"last,omitzero"`
}

// ResourceIDJSON is what the kubelet has given the container.
type ResourceIDJSON struct {
	Resource string              `json:"resource"`
	ID       device.AdvertisedID `json:"id"`
}

func (n node) handleHolders(q Query, now time.Time) any {
	statuses, _ := n.Statuses()
	allocations, _ := n.Allocations()
	response := HoldersResponse{At: now.UTC(), Node: n.name, Kubelet: newKubeletJSON(allocations), Complete: allocations.Complete, Allocations: []AllocationJSON{}}
	matcher := q.deviceMatcher(statuses)
	for _, allocation := range allocationCandidates(statuses, allocations) {
		if !matcher.matches(allocation.Device, allocation.GPU, allocation.index()) {
			continue
		}
		for _, allocation.OwnerJSON = range ownersOf(allocation.Device, allocations) {
			if q.matchesPod(allocation.Namespace, allocation.Pod) {
				response.Allocations = append(response.Allocations, allocation)
			}
		}
	}
	return response
}

// index is the GPU's, or one that no GPU has.
func (a AllocationJSON) index() int {
	if a.Index == nil {
		return -1
	}
	return *a.Index
}

// allocationCandidates are the devices that may have a holder: those of the Board in its order,
// and then those that are not there any more.
func allocationCandidates(statuses []device.Status, allocations device.Allocations) []AllocationJSON {
	devices := make([]AllocationJSON, 0, len(statuses))
	present := make(map[device.ID]bool, len(statuses))
	for _, s := range statuses {
		present[s.ID] = true
		devices = append(devices, AllocationJSON{Device: s.ID, GPU: s.GPU, Index: &s.Index, Profile: s.Profile})
	}
	var others []device.ID
	for _, r := range allocations.All {
		others = append(others, r.DeviceID.Device())
	}
	for _, r := range allocations.Recent {
		others = append(others, r.Device)
	}
	slices.Sort(others)
	for _, id := range slices.Compact(others) {
		if !present[id] {
			devices = append(devices, AllocationJSON{Device: id})
		}
	}
	return devices
}

// ownersOf are the containers of a device: first those that hold it, by name, then those
// that did, newest first.
func ownersOf(id device.ID, allocations device.Allocations) []OwnerJSON {
	var current, past []OwnerJSON
	for _, r := range allocations.ForDevice(id) {
		if r.Owner == (device.Owner{}) { // nobody knows who
			continue
		}
		i := slices.IndexFunc(current, func(o OwnerJSON) bool { return o.owner() == r.Owner })
		if i < 0 {
			i = len(current)
			current = append(current, OwnerJSON{Namespace: r.Owner.Namespace, Pod: r.Owner.Pod, Container: r.Owner.Container, Current: true})
		}
		current[i].Resources = append(current[i].Resources, ResourceIDJSON{r.Resource, r.DeviceID})
	}
	for _, r := range allocations.Recent {
		if r.Device != id {
			continue
		}
		first, last := r.FirstSeen.UTC(), r.LastSeen.UTC()
		if i := slices.IndexFunc(current, func(o OwnerJSON) bool { return o.owner() == r.Owner }); i >= 0 {
			current[i].FirstSeen, current[i].LastSeen = first, last
			continue
		}
		past = append(past, OwnerJSON{
			Namespace: r.Owner.Namespace, Pod: r.Owner.Pod, Container: r.Owner.Container, Resources: []ResourceIDJSON{}, FirstSeen: first, LastSeen: last,
		})
	}
	slices.SortFunc(current, func(a, b OwnerJSON) int { return a.owner().Compare(b.owner()) })
	slices.SortStableFunc(past, func(a, b OwnerJSON) int { return b.LastSeen.Compare(a.LastSeen) })
	return append(current, past...)
}

func (o OwnerJSON) owner() device.Owner {
	return device.Owner{Namespace: o.Namespace, Pod: o.Pod, Container: o.Container}
}
