package exporter

import (
	"slices"

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

func newRenderedMetrics(s *Sources, o *Options) *renderedMetrics {
	rm := &renderedMetrics{processes: newProcessUsage(s), page: pageReadings{quantities: status.QuantitiesByRow(s.Metrics)}}
	descs := slices.Concat(builtinDescs, usageDescs())
	if o.DCGM {
		descs = append(descs, dcgmDescs()...)
		rm.dcgm = newDCGMSeries(s.Metrics)
	}
	rm.seriesStore = newSeriesStore(s, o, descs)
	return rm
}

// render replaces the rendered snapshot.
func (rm *renderedMetrics) render(s *nodeSnapshot, a *attribution) {
	rm.begin()
	rm.page.store(s.readings, s.end)
	for i := 0; i < len(s.statuses); {
		n := i + 1
		for n < len(s.statuses) && s.statuses[n].GPU == s.statuses[i].GPU { // MIG devices follow their GPU
			n++
		}
		rm.renderGPU(s, s.statuses[i:n], a)
		i = n
	}
	rm.incidents.render(&rm.seriesStore, s.incidents, s.statuses)
	rm.resources.render(&rm.seriesStore, s.allocations.Resources)
	rm.renderNode(s) // counts the series before, and is exempt from the limit
	a.rates.prune(s.end)
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
			rm.dcgm.render(&d, reading.Samples, a.rates)
		}
	}
}

// maxNodeSeries is above the number of series of renderNode.
const maxNodeSeries = 16

// renderNode renders the state of the node and of the collection.
func (rm *renderedMetrics) renderNode(s *nodeSnapshot) {
	count, dropped := rm.options.SeriesLimit-rm.seriesLeft, rm.seriesDropped
	rm.seriesLeft = maxNodeSeries
	group := rm.nodeGroup()
	group.set("podgauge_nvml_up", boolValue(s.driver.State == device.DriverUp))
	group.set("podgauge_kubelet_up", boolValue(s.allocations.Err == nil && !s.allocations.At.IsZero()))
	group.set("podgauge_flight_begin_timestamp_seconds", unixSeconds(s.begin))
	group.set("podgauge_flight_end_timestamp_seconds", unixSeconds(s.end))
	if !s.allocations.At.IsZero() {
		group.set("podgauge_holders_age_seconds", max(0, s.end.Sub(s.allocations.At).Seconds()))
	}
	if s.healthStored {
		group.set("podgauge_state_up", boolValue(s.healthErr == nil))
	}
	group.set("podgauge_series_dropped", float64(dropped))
	group.set("podgauge_series", float64(count+maxNodeSeries-rm.seriesLeft+1))
}
