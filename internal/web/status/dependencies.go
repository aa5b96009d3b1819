package status

import (
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/internal/web/api"
)

// dependency is the state of the driver or the kubelet. State continues a sentence; Grade is as in pageView.
type dependency struct{ Grade, State, Error string }

// ShortState returns the state as a phrase of its own.
func (d dependency) ShortState() string {
	return strings.TrimPrefix(strings.TrimPrefix(d.State, "is "), "was ")
}

var driverStates = map[string]dependency{
	"starting":       {"warning", "is starting", ""},
	"up":             {"well", "is up", ""},
	"failing":        {"bad", "fails", ""},
	"absent":         {"bad", "was not found", ""},
	"not_responding": {"bad", "does not respond", ""},
	"replaced":       {"warning", "was replaced, and podgauge restarts", ""},
	"released":       {"bad", "is released", ""},
}

func (b *viewBuilder) driver() dependency {
	d := driverStates[b.node.Driver.State]
	d.Error = b.node.Driver.Error
	return d
}

func (b *viewBuilder) driverDetails() []nameValue {
	if len(b.node.Devices) == 0 {
		return nil
	}
	labels := b.node.Devices[0].InfoLabels // the same for all devices
	return addKnown(addKnown(nil, "Version", labels["driver_version"]), "CUDA", labels["cuda_version"])
}

func (b *viewBuilder) kubelet() dependency {
	switch k := b.node.Kubelet; {
	case k.Up:
		return dependency{"well", "responds", ""}
	case k.Error == "":
		return dependency{"warning", "is not connected yet", ""}
	default:
		return dependency{"bad", "does not respond", k.Error}
	}
}

func (b *viewBuilder) podsAPI() dependency {
	switch synced, err := b.PodsAPI(); {
	case synced:
		return dependency{"well", "connected", ""}
	case err == nil:
		return dependency{"plain", "not connected yet", ""}
	default:
		return dependency{"plain", "not connected", err.Error()}
	}
}

// resourceRow is a resource of the device plugin.
type resourceRow struct {
	PluginResource
	Allocated      int
	AllocatedKnown bool
	Noun           string // of the ids: "GPU", "MIG device", "device" or "replica"
	Devices        string // of the replicas: "8 GPUs"
}

func (b *viewBuilder) resourceRows() (rows []resourceRow) {
	for _, resource := range b.pluginResources {
		ids := b.allocations.DeviceIDs(resource.Resource)
		slices.Sort(ids)
		row := resourceRow{PluginResource: resource, Allocated: len(slices.Compact(ids)), AllocatedKnown: b.allocations.Complete}
		listed := b.devicesOf(resource.IDs)
		if row.Noun = deviceNoun(listed); slices.ContainsFunc(resource.IDs, func(id device.AdvertisedID) bool { return id != id.Device().Advertised() }) {
			row.Noun, row.Devices = "replica", text.Plural(len(listed), row.Noun)
		}
		rows = append(rows, row)
	}
	return rows
}

// devicesOf returns the devices of ids.
func (b *viewBuilder) devicesOf(ids []device.AdvertisedID) []api.DeviceJSON {
	listed := make(map[device.ID]bool, len(ids))
	for _, id := range ids {
		listed[id.Device()] = true
	}
	return slices.DeleteFunc(slices.Clone(b.node.Devices), func(d api.DeviceJSON) bool { return !listed[d.ID] })
}
