package exporter

import (
	"iter"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	dto "github.com/prometheus/client_model/go"
)

// renderer makes the metric families of snapshots.
type renderer struct {
	*snapshotSeries
	dcgm dcgmSeries
}

func newRenderer(s *Sources, o *Options, a *attribution) *renderer {
	return &renderer{newSnapshotSeries(s, o, a), newDCGMSeries(o.DCGM.Families, s.Metrics)}
}

// render returns the families of a snapshot. Each snapshot is rendered once: rates and shares of owners change with it.
func (r *renderer) render(s *nodeSnapshot) []*dto.MetricFamily {
	r.begin(s)
	for gpu := range byGPU(s.Statuses) {
		r.renderDevices(gpu)
	}
	r.renderIncidents(s.Incidents)
	r.renderAllocatable(s.Allocations.Resources)
	r.renderAllocated(&s.Allocations.Resources.Allocated)
	r.renderSysfs(s)
	r.renderNode(s) // counts the series before, and is exempt from the limit
	r.dcgm.rates.prune(s.end)
	return r.end()
}

// renderDevices renders the series of a GPU and its MIG devices.
func (r *renderer) renderDevices(statuses []device.Status) {
	reading := &health.Reading{}
	for i := range r.snapshot.readings {
		if other := &r.snapshot.readings[i]; other.GPU == statuses[0].GPU && other.Err == nil {
			reading = other
		}
	}
	usage := r.sumUsage(statuses, reading)
	for i, s := range statuses {
		d := newDeviceRendering(r.snapshotSeries, s, statuses)
		d.renderStatus()
		d.renderHealth()
		if i == 0 {
			d.renderGPU(reading.GPU != "")
		}
		d.renderAllocations()
		d.renderReading(reading.Samples)
		d.renderUsage(usage, reading.Samples)
		if reading.GPU != "" {
			r.dcgm.render(&d, reading.Samples)
		}
	}
}

// maxNodeSeries is above the number of series of renderNode.
const maxNodeSeries = 16

// renderNode renders the state of the node and of the collection.
func (r *renderer) renderNode(s *nodeSnapshot) {
	count, dropped := r.options.SeriesLimit-r.seriesLeft, r.seriesDropped
	r.seriesLeft = maxNodeSeries
	node := r.group(nil)
	node.set("podgauge_nvml_up", boolValue(s.Driver.State == device.DriverUp))
	node.set("podgauge_kubelet_up", boolValue(s.Allocations.Err == nil && !s.Allocations.At.IsZero()))
	node.set("podgauge_collection_begin_timestamp_seconds", unixSeconds(s.begin))
	node.set("podgauge_collection_end_timestamp_seconds", unixSeconds(s.end))
	if !s.Allocations.At.IsZero() {
		node.set("podgauge_allocations_age_seconds", max(0, s.end.Sub(s.Allocations.At).Seconds()))
	}
	if s.stateFile.Used {
		node.set("podgauge_state_up", boolValue(s.stateFile.Err == nil))
	}
	if s.ExpectedGPUs > 0 {
		node.set("podgauge_expected_gpus", float64(s.ExpectedGPUs))
		if s.Statuses != nil {
			node.set("podgauge_missing_gpus", float64(device.MissingGPUs(s.Statuses, s.ExpectedGPUs)))
		}
	}
	node.set("podgauge_series_dropped", float64(dropped))
	node.set("podgauge_series", float64(count+maxNodeSeries-r.seriesLeft+1))
}

// byGPU yields the devices of each GPU, in order.
func byGPU(statuses []device.Status) iter.Seq[[]device.Status] {
	return func(yield func([]device.Status) bool) {
		begin := 0
		for end := 1; end <= len(statuses); end++ {
			if end < len(statuses) && statuses[end].GPU == statuses[begin].GPU { // MIG devices follow their GPU
				continue
			}
			if !yield(statuses[begin:end]) {
				return
			}
			begin = end
		}
	}
}
