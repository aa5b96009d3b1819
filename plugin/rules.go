package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/plugin/response"
)

// MIGStrategy says how GPUs that are partitioned are offered. The words are those of
// NVIDIA's device plugin.
type MIGStrategy uint8

// What becomes of GPUs whose MIG mode is on.
const (
	// MIGNone offers GPUs that are whole, and no slice. (NVIDIA's plugin offers a
	// partitioned GPU as a whole too: docs/adr/0008-mig-on-the-board.md.)
	MIGNone MIGStrategy = iota
	// MIGSingle offers slices under the name of whole GPUs, on a node whose slices
	// are all of one profile and where no GPU is left whole.
	MIGSingle
	// MIGMixed offers each profile under a name of its own, beside the GPUs that
	// are whole.
	MIGMixed
)

// gpuResource is what every workload asks for.
const gpuResource = "nvidia.com/gpu"

// Sharing is how a device is shared. The zero Share is not at all.
type Sharing struct {
	Resource string // under which it is offered then; empty: the one it has
	Replicas int    // how often; below 1: once, under its own id
	// OnePerContainer refuses a container that asks for more than one replica.
	OnePerContainer bool
}

// Rules say under which names devices are offered, how often, and what a
// container gets with them. The zero Rules offer every whole GPU once, as
// nvidia.com/gpu. Rules are not written once they are handed over.
type Rules struct {
	MIGStrategy MIGStrategy
	// Select tells whether a device is offered at all. Nil: each is.
	Select func(device.Device) bool
	// ResourceName is the resource that a device is offered as. Nil: nvidia.com/gpu, and a
	// slice under MIGMixed by its profile.
	ResourceName func(d device.Device) string
	// Sharing says how the devices of one resource are shared, one answer for each,
	// in the node's order. Nil: not at all.
	Sharing func(resource string, devices []device.Device) []Sharing
	// UnusableReason says, in one word, why the replicas of a resource cannot be used though
	// their devices can; empty: they can. Nil: they always can.
	UnusableReason func(resource string) (reason string)
	// ResponseOptions says how the devices of a resource are passed on to the container's
	// runtime. Nil: by the zero Options.
	ResponseOptions func(resource string) response.Options
	// Policy chooses among replicas and slices. With preferred.Distinct a container
	// that would get two replicas of one GPU is refused.
	Policy preferred.AllocationPolicy
	// ReserveClaimed has a device that a container has by a claim (Dynamic Resource
	// Allocation) count as allocated. The PodResources API does not show whether a claim
	// has admin access, so it does not by default.
	ReserveClaimed bool
	// PreStartCheck has a container's devices asked before each of its starts.
	PreStartCheck bool
}

// deviceLists says what is offered of the devices, by resource, and in words what
// cannot be.
func (r Rules) deviceLists(statuses []device.Status) (lists map[string]*deviceList, warnings []string) {
	byName := map[string][]device.Status{}
	selected, warnings := r.selectDevices(statuses)
	for _, s := range selected {
		name := r.resourceName(s.Device)
		byName[name] = append(byName[name], s)
	}
	lists = map[string]*deviceList{}
	for name, all := range byName {
		r.addDevices(lists, name, all)
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		list := lists[name]
		if list.listBytes > maxListBytes {
			delete(lists, name)
			warnings = append(warnings, fmt.Sprintf("%s would have %d ids, and the kubelet reads a list of %d MiB, which is %d of these ids: use fewer replicas",
				name, list.idCount, maxMessageBytes>>20, list.idCount*maxListBytes/list.listBytes))
			continue
		}
		list.sort()
	}
	return lists, warnings
}

func (r Rules) resourceName(d device.Device) string {
	switch {
	case r.ResourceName != nil:
		return r.ResourceName(d)
	case !d.WholeGPU() && r.MIGStrategy == MIGMixed:
		return "nvidia.com/mig-" + strings.ReplaceAll(d.Profile, "+", ".")
	default:
		return gpuResource
	}
}

// ResourceIDs is a resource and the ids of it.
type ResourceIDs struct {
	Resource string
	IDs      []device.AdvertisedID
}

// Preview says what would be offered of these devices, by resource, and in words
// what cannot be.
func (r Rules) Preview(statuses []device.Status) (all []ResourceIDs, warnings []string) {
	lists, warnings := r.deviceLists(statuses)
	for _, resource := range slices.Sorted(maps.Keys(lists)) {
		o := ResourceIDs{Resource: resource}
		for _, i := range lists[resource].items {
			o.IDs = append(o.IDs, i.id)
		}
		all = append(all, o)
	}
	return all, warnings
}

// selectDevices leaves out what is not offered: a GPU and its own slices never are at
// the same time.
func (r Rules) selectDevices(statuses []device.Status) (selected []device.Status, warnings []string) {
	profiles := map[string]bool{}
	whole := false
	for _, s := range statuses {
		switch {
		case r.Select != nil && !r.Select(s.Device):
		case s.Unallocatable(statuses) == device.NoMIGDevices:
			warnings = append(warnings, fmt.Sprintf("%s has MIG mode on and no MIG device: create MIG devices, or turn MIG mode off", s.ID))
		case s.MIGEnabled && r.MIGStrategy == MIGNone:
			warnings = append(warnings, fmt.Sprintf("%s is partitioned, and the MIG strategy none offers neither it nor its slices", s.ID))
		case s.MIGEnabled || !s.WholeGPU() && r.MIGStrategy == MIGNone:
		default:
			selected = append(selected, s)
			if whole = whole || s.WholeGPU(); !s.WholeGPU() {
				profiles[s.Profile] = true
			}
		}
	}
	if r.MIGStrategy != MIGSingle || len(profiles) == 0 || len(profiles) == 1 && !whole {
		return selected, warnings
	}
	warning := fmt.Sprintf("MIG slices with the strategy single want one profile on the whole node, and it has %d", len(profiles))
	if whole {
		warning = "MIG slices with the strategy single want every GPU partitioned, and some are whole"
	}
	return slices.DeleteFunc(selected, func(s device.Status) bool { return !s.WholeGPU() }), append(warnings, warning)
}

// addDevices adds the devices of one resource to what is offered.
func (r Rules) addDevices(lists map[string]*deviceList, name string, all []device.Status) {
	sharings := make([]Sharing, len(all))
	if r.Sharing != nil {
		devices := make([]device.Device, len(all))
		for i, s := range all {
			devices[i] = s.Device
		}
		sharings = r.Sharing(name, devices)
	}
	for i, s := range all {
		share := sharings[i]
		if share.Resource == "" || share.Replicas < 1 {
			share.Resource = name
		}
		list := lists[share.Resource]
		if list == nil {
			list = &deviceList{rules: r}
			lists[share.Resource] = list
		}
		if list.idCount, list.listBytes = list.idCount+max(share.Replicas, 1), list.listBytes+listSize(s.Device, share.Replicas); list.listBytes > maxListBytes {
			list.items = nil // it is not offered, however many ids come yet
			continue
		}
		if share.Replicas < 1 {
			list.items = append(list.items, listItem{id: s.ID.Advertised(), device: &all[i].Device, healthy: s.Healthy})
			continue
		}
		list.items = slices.Grow(list.items, share.Replicas)
		replica := listItem{device: &all[i].Device, onePerContainer: share.OnePerContainer, replica: true}
		if r.UnusableReason != nil {
			replica.unusableReason = r.UnusableReason(share.Resource)
		}
		replica.healthy = s.Healthy && replica.unusableReason == ""
		for n := range share.Replicas {
			replica.id = s.ID.Replica(n)
			list.items = append(list.items, replica)
		}
	}
}
