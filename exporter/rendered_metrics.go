package exporter

import (
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
)

// renderedMetrics is a rendered snapshot.
type renderedMetrics struct {
	seriesStore
	processes processUsage
	dcgm      dcgmSeries
	resources resourceSeries
	incidents incidentSeries
	page      pageReadings
}

// pageReadings are the readings shown on the status page.
type pageReadings struct {
	quantities []status.Quantity // by row of Sources.Metrics; empty: not shown
	devices    map[device.ID]status.DeviceReading
	at         time.Time
	history    *status.ReadingHistory
}

func newRenderedMetrics(s *Sources, o *Options) *renderedMetrics {
	page := pageReadings{quantities: make([]status.Quantity, len(s.Metrics)), devices: map[device.ID]status.DeviceReading{}, history: &status.ReadingHistory{}}
	for i, m := range s.Metrics {
		if q := status.Quantity(m.RowName()); slices.Contains(status.Quantities, q) {
			page.quantities[i] = q
		}
	}
	memoryUsedRow := slices.Index(page.quantities, status.MemoryUsed)
	rm := &renderedMetrics{processes: processUsage{resolver: s.Processes, memoryUsedRow: memoryUsedRow}, page: page}
	descs := Families()
	if o.DCGM {
		for _, f := range DCGMFamilies {
			descs = append(descs, f.Family)
		}
		rm.dcgm = newDCGMSeries(s.Metrics)
	}
	rm.seriesStore = newSeriesStore(s, o, descs)
	return rm
}

// render replaces the rendered snapshot.
func (rm *renderedMetrics) render(s *nodeSnapshot, a *attribution) {
	rm.begin()
	rm.page.store(s.readings, s.end)
	for gpu := range byGPU(s.statuses) {
		rm.renderGPU(s, gpu, a)
	}
	rm.incidents.render(&rm.seriesStore, s.incidents, s.statuses)
	rm.resources.render(&rm.seriesStore, s.allocations.Resources)
	rm.renderNode(s) // counts the series before, and is exempt from the limit
	rm.dcgm.rates.prune(s.end)
	rm.end()
}

// renderGPU renders a GPU and its MIG devices.
func (rm *renderedMetrics) renderGPU(s *nodeSnapshot, statuses []device.Status, a *attribution) {
	reading := &device.Reading{}
	for i := range s.readings {
		if r := &s.readings[i]; r.GPU == statuses[0].GPU && r.Err == nil {
			reading = r
		}
	}
	for i, status := range statuses {
		d := newDeviceRendering(&rm.seriesStore, s, status, statuses)
		d.renderStatus()
		d.renderHealth()
		if i == 0 {
			d.renderGPU(reading.GPU != "")
		}
		d.renderAllocations()
		d.renderReading(reading.Samples, a)
		rm.processes.render(&d, reading)
		if reading.GPU != "" {
			rm.dcgm.render(&d, reading.Samples)
		}
	}
}

// store replaces the readings. The maps of known devices are used again: a collection without viewers allocates nothing.
func (p *pageReadings) store(readings []device.Reading, at time.Time) {
	p.at = at
	for _, values := range p.devices {
		clear(values)
	}
	for i := range readings {
		if readings[i].Err != nil {
			continue
		}
		for _, s := range readings[i].Samples {
			if quantity := p.quantities[s.Metric]; quantity != "" {
				if p.devices[s.Device] == nil {
					p.devices[s.Device] = status.DeviceReading{}
				}
				p.devices[s.Device][quantity] = s.Value
			}
		}
	}
	maps.DeleteFunc(p.devices, func(_ device.ID, values status.DeviceReading) bool { return len(values) == 0 })
	p.history.Record(at, p.devices)
}

// maxNodeSeries is above the number of series of renderNode.
const maxNodeSeries = 16

// renderNode renders the state of the node and of the collection.
func (rm *renderedMetrics) renderNode(s *nodeSnapshot) {
	count, dropped := rm.options.SeriesLimit-rm.seriesLeft, rm.seriesDropped
	rm.seriesLeft = maxNodeSeries
	group := rm.group(noLabels, device.Status{}, device.Owner{})
	group.set("podgauge_nvml_up", boolValue(s.driver.State == device.DriverUp))
	group.set("podgauge_kubelet_up", boolValue(s.allocations.Err == nil && !s.allocations.At.IsZero()))
	group.set("podgauge_collection_begin_timestamp_seconds", unixSeconds(s.begin))
	group.set("podgauge_collection_end_timestamp_seconds", unixSeconds(s.end))
	if !s.allocations.At.IsZero() {
		group.set("podgauge_allocations_age_seconds", max(0, s.end.Sub(s.allocations.At).Seconds()))
	}
	if s.healthStored {
		group.set("podgauge_state_up", boolValue(s.healthErr == nil))
	}
	if s.expectedGPUs > 0 {
		group.set("podgauge_expected_gpus", float64(s.expectedGPUs))
		if s.statuses != nil {
			group.set("podgauge_missing_gpus", float64(device.MissingGPUs(s.statuses, s.expectedGPUs)))
		}
	}
	group.set("podgauge_series_dropped", float64(dropped))
	group.set("podgauge_series", float64(count+maxNodeSeries-rm.seriesLeft+1))
}
