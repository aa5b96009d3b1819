package plugin

import (
	"fmt"
	"maps"
	"slices"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
)

// reasonMPSDown marks a healthy device without an MPS control daemon.
const reasonMPSDown = "mps_daemon"

// deviceLists returns a list for each resource, and warnings about devices
// without a resource.
func (r Rules) deviceLists(statuses []device.Status) (lists map[string]*deviceList, warnings []string) {
	byName := map[string][]device.Status{}
	selected, warnings := r.selectDevices(statuses)
	for _, s := range selected {
		name := r.Resources.GPU(s.Model)
		if !s.WholeGPU() {
			name = r.Resources.MIG(r.MIGStrategy, s.Profile)
		}
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
			warnings = append(warnings, fmt.Sprintf(
				"%s needs %d ids, but only %d fit into the kubelet's limit of %d MiB: use fewer replicas",
				name, list.idCount, list.idCount*maxListBytes/list.listBytes, maxMessageBytes>>20))
			continue
		}
		list.sort()
	}
	return lists, warnings
}

// selectDevices returns the offered devices: either a GPU or the MIG devices of
// the GPU.
func (r Rules) selectDevices(statuses []device.Status) (selected []device.Status, warnings []string) {
	profiles := map[string]bool{}
	whole := false
	strategyNone := r.MIGStrategy != config.MIGSingle && r.MIGStrategy != config.MIGMixed
	for _, s := range statuses {
		switch {
		case r.Select != nil && !r.Select(s.Device):
		case s.Unallocatable(statuses) == device.NoMIGDevices:
			warnings = append(warnings, fmt.Sprintf(
				"%s is MIG-enabled without a MIG device: create MIG devices, or disable MIG mode", s.ID))
		case s.MIGEnabled && strategyNone:
			warnings = append(warnings, fmt.Sprintf(
				"%s is partitioned: MIG strategy none lists neither the GPU nor its MIG devices", s.ID))
		case s.MIGEnabled || !s.WholeGPU() && strategyNone:
		default:
			selected = append(selected, s)
			if whole = whole || s.WholeGPU(); !s.WholeGPU() {
				profiles[s.Profile] = true
			}
		}
	}
	if r.MIGStrategy != config.MIGSingle || len(profiles) == 0 || len(profiles) == 1 && !whole {
		return selected, warnings
	}
	warning := fmt.Sprintf("MIG strategy single requires the same profile on all GPUs: found %d profiles",
		len(profiles))
	if whole {
		warning = "MIG strategy single requires MIG devices on all GPUs: some GPUs are not partitioned"
	}
	return slices.DeleteFunc(selected, func(s device.Status) bool { return !s.WholeGPU() }), append(warnings, warning)
}

// addDevices adds the devices of a resource to the lists: under the resource,
// or under the resource of the replicas.
func (r Rules) addDevices(lists map[string]*deviceList, name string, statuses []device.Status) {
	sharings := make([]config.DeviceSharing, len(statuses))
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
		ids, longest := max(sharing.Replicas, 1), s.ID.Advertised()
		if sharing.Replicas > 0 {
			longest = s.ID.Replica(sharing.Replicas - 1)
		}
		list.idCount += ids
		list.listBytes += ids * listedIDSize(longest, s.Device)
		if list.listBytes > maxListBytes {
			list.items = nil // deviceLists drops the list
			continue
		}
		item := listItem{
			id: s.ID.Advertised(), device: &statuses[n].Device, healthy: s.Healthy, replica: sharing.Replicas > 0,
		}
		if !item.replica {
			list.items = append(list.items, item)
			continue
		}
		item.onePerContainer = sharing.OnePerContainer
		if r.MPSErrors[sharing.Resource] != "" {
			item.unusableReason = reasonMPSDown
		}
		item.healthy = s.Healthy && item.unusableReason == ""
		for replica := range sharing.Replicas {
			item.id = s.ID.Replica(replica)
			list.items = append(list.items, item)
		}
	}
}

// Preview returns the resources with the offered ids, and warnings about
// devices without a resource.
func (r Rules) Preview(statuses []device.Status) (all []Resource, warnings []string) {
	lists, warnings := r.deviceLists(statuses)
	for _, name := range slices.Sorted(maps.Keys(lists)) {
		ids := text.Each(lists[name].items, func(i listItem) device.AdvertisedID { return i.id })
		all = append(all, Resource{Name: name, IDs: ids})
	}
	return all, warnings
}

// WithRegistrations returns the resources by the rules, with the published
// state of their registrations.
func (r Rules) WithRegistrations(statuses []device.Status, published []Resource) []Resource {
	all, _ := r.Preview(statuses)
	for i := range all {
		resource := &all[i]
		if n := slices.IndexFunc(published, func(p Resource) bool { return p.Name == resource.Name }); n >= 0 {
			ids := resource.IDs
			*resource = published[n]
			resource.IDs = ids
		}
		isReplica := func(id device.AdvertisedID) bool { return id != id.Device().Advertised() }
		switch {
		case !slices.ContainsFunc(resource.IDs, isReplica):
		case r.Response.MPSRoot != "":
			resource.Sharing = "MPS"
		default:
			resource.Sharing = "time-slicing"
		}
	}
	return all
}
