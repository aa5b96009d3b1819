package app

import (
	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/podresources"
)

// pluginHooks passes the events of the device plugin to podgauge's metrics, to
// the allocations, and to the readings at an Allocate.
type pluginHooks struct {
	*exporter.SelfMetrics
	podResources *podresources.Client
	exporter     *exporter.Exporter
}

func (h pluginHooks) OnRegistered(resource string, err error) {
	h.SelfMetrics.OnRegistered(resource, err)
	if err == nil {
		h.podResources.OnRegistered()
	}
}

func (h pluginHooks) OnListSent(resource string, devices, healthy int) {
	h.SelfMetrics.OnListSent(resource, devices, healthy)
	h.podResources.OnListSent()
}

func (h pluginHooks) OnAllocated(resource string, ids []device.AdvertisedID) {
	devices := make([]device.ID, len(ids))
	for i, id := range ids {
		devices[i] = id.Device()
	}
	defer h.exporter.BeginAllocate(devices...)()
	h.podResources.OnAllocated(resource, ids)
}
