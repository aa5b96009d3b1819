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

// MIGStrategy selects the resources of partitioned GPUs, with the names of NVIDIA's device plugin.
type MIGStrategy uint8

// Unlike NVIDIA's none, MIGNone does not offer a partitioned GPU as a whole (docs/adr/0008-mig-on-the-board.md).
//
//	          whole GPU        MIG device
//	MIGNone   nvidia.com/gpu   not offered
//	MIGSingle nvidia.com/gpu   nvidia.com/gpu, if all MIG devices have the same profile and no GPU is whole
//	MIGMixed  nvidia.com/gpu   nvidia.com/mig-<profile>
const (
	MIGNone MIGStrategy = iota
	MIGSingle
	MIGMixed
)

const gpuResource = "nvidia.com/gpu"

// Sharing is how a device is shared. The zero Sharing is not shared.
type Sharing struct {
	Resource        string // of the replicas; empty: the device's
	Replicas        int    // below 1: a single id without a replica number
	OnePerContainer bool   // a container with several replicas is rejected
}

// Rules map devices to resources. The zero Rules offer each whole GPU once, as nvidia.com/gpu. Rules are immutable.
type Rules struct {
	MIGStrategy MIGStrategy
	// Select reports whether a device is offered. Nil: each is.
	Select func(device.Device) bool
	// ResourceName returns the resource of a device. Nil: the default of the MIG strategy.
	ResourceName func(d device.Device) string
	// Sharing returns the sharing of each device of a resource, in the order of the node. Nil: not shared.
	Sharing func(resource string, devices []device.Device) []Sharing
	// UnusableReason returns a reason, as a label value, why replicas of healthy devices are unusable. Nil func or empty result: usable.
	UnusableReason func(resource string) (reason string)
	// ResponseOptions returns the options of Allocate for a resource. Nil: the zero Options.
	ResponseOptions func(resource string) response.Options
	// Policy is the order of replicas and MIG devices. With preferred.Distinct, a container with two replicas of a GPU is rejected.
	Policy preferred.AllocationPolicy
	// ReserveClaimed treats a device of a claim (Dynamic Resource Allocation) as allocated. The PodResources API does not show
	// whether a claim has admin access, so claims do not reserve devices by default.
	ReserveClaimed bool
	// PreStartCheck checks a container's devices before each start.
	PreStartCheck bool
}

// deviceLists returns a list for each resource, and warnings about devices without a resource.
func (r Rules) deviceLists(statuses []device.Status) (lists map[string]*deviceList, warnings []string) {
	byName := map[string][]device.Status{}
	selected, warnings := r.selectDevices(statuses)
	for _, s := range selected {
		name := r.resourceName(s.Device)
		byName[name] = append(byName[name], s)
	}
	lists = map[string]*deviceList{}
	for name, devices := range byName {
		r.addDevices(lists, name, devices)
	}
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		list := lists[name]
		if list.listBytes > maxListBytes {
			delete(lists, name)
			warnings = append(warnings, fmt.Sprintf("%s needs %d ids, but the kubelet's limit of %d MiB has room for %d: use fewer replicas",
				name, list.idCount, maxMessageBytes>>20, list.idCount*maxListBytes/list.listBytes))
			continue
		}
		list.sort()
	}
	return lists, warnings
}

// selectDevices returns the offered devices: either a GPU or the MIG devices of the GPU.
func (r Rules) selectDevices(statuses []device.Status) (selected []device.Status, warnings []string) {
	profiles := map[string]bool{}
	whole := false
	for _, s := range statuses {
		switch {
		case r.Select != nil && !r.Select(s.Device):
		case s.Unallocatable(statuses) == device.NoMIGDevices:
			warnings = append(warnings, fmt.Sprintf("%s has MIG mode on and no MIG device: create MIG devices, or turn MIG mode off", s.ID))
		case s.MIGEnabled && r.MIGStrategy == MIGNone:
			warnings = append(warnings, fmt.Sprintf("%s is partitioned: MIG strategy none offers neither the GPU nor its MIG devices", s.ID))
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
	warning := fmt.Sprintf("MIG strategy single needs the same profile on all GPUs: found %d profiles", len(profiles))
	if whole {
		warning = "MIG strategy single needs MIG devices on every GPU: some GPUs are whole"
	}
	return slices.DeleteFunc(selected, func(s device.Status) bool { return !s.WholeGPU() }), append(warnings, warning)
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

// addDevices adds the devices of a resource to the lists: under the resource, or under the resource of the replicas.
func (r Rules) addDevices(lists map[string]*deviceList, name string, statuses []device.Status) {
	sharings := make([]Sharing, len(statuses))
	if r.Sharing != nil {
		devices := make([]device.Device, len(statuses))
		for n, s := range statuses {
			devices[n] = s.Device
		}
		sharings = r.Sharing(name, devices)
	}
	for n, s := range statuses {
		sharing := sharings[n]
		if sharing.Resource == "" || sharing.Replicas < 1 {
			sharing.Resource = name
		}
		list := lists[sharing.Resource]
		if list == nil {
			list = &deviceList{rules: r}
			lists[sharing.Resource] = list
		}
		list.idCount += max(sharing.Replicas, 1)
		list.listBytes += listSize(s.Device, sharing.Replicas)
		if list.listBytes > maxListBytes {
			list.items = nil // deviceLists drops the list
			continue
		}
		item := listItem{id: s.ID.Advertised(), device: &statuses[n].Device, healthy: s.Healthy, replica: sharing.Replicas > 0}
		if !item.replica {
			list.items = append(list.items, item)
			continue
		}
		item.onePerContainer = sharing.OnePerContainer
		if r.UnusableReason != nil {
			item.unusableReason = r.UnusableReason(sharing.Resource)
		}
		item.healthy = s.Healthy && item.unusableReason == ""
		list.items = slices.Grow(list.items, sharing.Replicas)
		for replica := range sharing.Replicas {
			item.id = s.ID.Replica(replica)
			list.items = append(list.items, item)
		}
	}
}

// ResourceIDs has the ids of a resource.
type ResourceIDs struct {
	Resource string
	IDs      []device.AdvertisedID
}

// Preview returns the offered ids by resource, and warnings about devices without a resource.
func (r Rules) Preview(statuses []device.Status) (all []ResourceIDs, warnings []string) {
	lists, warnings := r.deviceLists(statuses)
	for _, resource := range slices.Sorted(maps.Keys(lists)) {
		ids := make([]device.AdvertisedID, len(lists[resource].items))
		for n, i := range lists[resource].items {
			ids[n] = i.id
		}
		all = append(all, ResourceIDs{resource, ids})
	}
	return all, warnings
}
