package app

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/kmsg"
	"github.com/podgauge/podgauge/internal/text"
	"github.com/podgauge/podgauge/podresources"
)

// kernelXids passes the Xids of the kernel log to the Monitor.
type kernelXids struct {
	*health.Monitor
	library DriverLibrary
	history health.History // of earlier processes
}

func (k kernelXids) EventOf(l kmsg.XidLine) (device.Event, bool) {
	return k.library.XidEventAt(l.PCI, l.Xid, l.GI, l.CI)
}

// LastReported returns the time of the last such event in an earlier process;
// zero: no such event.
func (k kernelXids) LastReported(e device.Event) (last time.Time) {
	for _, r := range k.history.Records {
		for _, x := range r.Xids {
			if r.GPU == e.GPU && r.Device == "" && x.Code == e.Xid {
				last = slices.MaxFunc([]time.Time{last, x.Last, x.LastHistorical}, time.Time.Compare)
			}
		}
	}
	return last
}

// pluginHooks passes the events of the device plugin to podgauge's metrics, to
// the allocations, and to the readings at an Allocate.
type pluginHooks struct {
	*exporter.SelfMetrics
	*podresources.Client
	exporter *exporter.Exporter
}

func (h pluginHooks) OnAllocated(resource string, ids []device.AdvertisedID) {
	defer h.exporter.BeginAllocate(text.Each(ids, device.AdvertisedID.Device)...)()
	h.Client.OnAllocated(resource, ids)
}
