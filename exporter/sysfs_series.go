package exporter

import (
	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// renderSysfs renders RDMA ports and the sensors of CPU sockets.
func (r *snapshotSeries) renderSysfs(s *nodeSnapshot) {
	if s.sysfs == nil {
		return
	}
	owners := r.renderRDMAAllocations(s)
	for _, p := range s.sysfs.Ports {
		unowned, owner := r.group(ownerLabels(allocation.Owner{})), owners[p.Device]
		owned := r.group(ownerLabels(owner))
		if p.LinkLayer != "" { // otherwise a NIC that hangs would have another series
			unowned.set("podgauge_rdma_port_info", 1, p.Device, p.Port, p.LinkLayer, p.PCI)
		}
		for _, sample := range p.Samples {
			group, value := owned, sample.Value
			switch m := &r.portMetrics[sample.Metric]; {
			case m.Kind == device.FaultCounter:
				group = unowned
			case m.Kind == device.OwnerCounter && !r.options.StableSeries:
				value = r.portTraffic.add(sample, allocation.Allocated, owner)
			}
			group.set(r.portMetrics[sample.Metric].Name, value, p.Device, p.Port)
		}
	}
	for _, sensor := range s.sysfs.Sensors {
		r.group(nil).set(sensor.Metric, sensor.Value, sensor.Socket, sensor.Sensor)
	}
}

// renderRDMAAllocations renders the allocations of RDMA devices, and returns
// the common owner of each device.
func (r *snapshotSeries) renderRDMAAllocations(s *nodeSnapshot) map[string]allocation.Owner {
	owners := map[string]allocation.Owner{}
	for _, a := range s.sysfs.Allocations(&s.Allocations.Resources.Allocated) {
		r.group(ownerLabels(a.Owner)).set("podgauge_rdma_allocation_info", 1, a.Device, a.Resource, a.ID)
		if other, shared := owners[a.Device]; shared {
			a.Owner = other.Common(a.Owner)
		}
		if r.options.StableSeries {
			a.Owner = allocation.Owner{}
		}
		owners[a.Device] = a.Owner
	}
	return owners
}
