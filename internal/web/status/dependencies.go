package status

import (
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// dependency is the state of the driver or the kubelet. State continues a sentence; Grade is as in pageView.
type dependency struct{ Grade, State, Error string }

// ShortState returns the state as a phrase of its own.
func (d dependency) ShortState() string {
	return strings.TrimPrefix(strings.TrimPrefix(d.State, "is "), "was ")
}

var driverStates = map[string]dependency{
	"starting":      {"warning", "is starting", ""},
	"up":            {"well", "is up", ""},
	"failing":       {"bad", "lists no devices", ""},
	"absent":        {"bad", "is absent", ""},
	"not_answering": {"bad", "does not answer", ""},
	"replaced":      {"warning", "was replaced, and podgauge restarts", ""},
	"released":      {"bad", "is released", ""},
}

func (b *viewBuilder) driver() dependency {
	p := driverStates[b.node.Driver.State]
	p.Error = sanitize(b.node.Driver.Error)
	return p
}

func (b *viewBuilder) driverDetails() []nameValue {
	if len(b.node.Devices) == 0 {
		return nil
	}
	labels := b.node.Devices[0].InfoLabels // the same for all devices
	return addKnown(nil, nameValue{"Version", labels["driver_version"]}, nameValue{"CUDA", labels["cuda_version"]})
}

func (b *viewBuilder) kubelet() dependency {
	switch k := b.node.Kubelet; {
	case k.Up:
		return dependency{"well", "answers", ""}
	case k.Error == "":
		return dependency{"warning", "was not called yet", ""}
	default:
		return dependency{"bad", "does not answer", sanitize(k.Error)}
	}
}

func (b *viewBuilder) podsAPI() dependency {
	switch f := b.PodsAPI(); {
	case f.Synced:
		return dependency{"well", "followed", ""}
	case f.Reason == "":
		return dependency{"plain", "not called yet", ""}
	default:
		return dependency{"plain", "not followed", sanitize(f.Reason)}
	}
}

// resourceRow is a resource of the device plugin.
type resourceRow struct {
	Name, Sharing               string
	Registered                  bool
	Error                       string
	Devices, Healthy, Allocated int
	Replicated, AllocatedKnown  bool
}

func (b *viewBuilder) resourceRows() (all []resourceRow) {
	for _, resource := range b.pluginResources {
		row := resourceRow{
			Name: sanitize(resource.Resource), Sharing: resource.Sharing, Registered: resource.Registered, Error: sanitize(resource.Err),
			Healthy: resource.Healthy, Devices: len(resource.IDs), AllocatedKnown: b.allocations.Complete,
		}
		ids := b.allocations.DeviceIDs(resource.Resource)
		slices.Sort(ids)
		row.Allocated = len(slices.Compact(ids))
		row.Replicated = slices.ContainsFunc(resource.IDs, func(id device.AdvertisedID) bool { return strings.Contains(string(id), "::") })
		all = append(all, row)
	}
	return all
}
