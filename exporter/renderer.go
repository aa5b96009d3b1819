package exporter

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/web/status"
	dto "github.com/prometheus/client_model/go"
)

// renderer makes the metric families of snapshots. A registry would check, sort and copy them, 5 ms for 64 GPUs.
type renderer struct {
	options     *Options
	node        Node
	attribution *attribution
	families    []*family // ordered by name
	byName      map[string]*family
	rows        []rowSeries // by row of Sources.Metrics
	processes   processUsage
	dcgm        dcgmSeries
	snapshot    *nodeSnapshot
	// seriesLeft is how many more series may be added, and seriesDropped how many were not.
	seriesLeft, seriesDropped int
}

// family is a metric family with its series in the current snapshot.
type family struct {
	Family
	metrics  []*dto.Metric
	excluded bool // by the command line
}

// rowSeries is what series of a row have in common.
type rowSeries struct {
	device.Metric
	family   *family
	labels   []*dto.LabelPair
	export   rowExport
	quantity status.Quantity // on the status page; empty: not shown
}

func newRenderer(s *Sources, o *Options, a *attribution) *renderer {
	r := &renderer{options: o, node: s.Node, attribution: a, processes: processUsage{resolver: s.Processes}, byName: map[string]*family{}}
	for _, m := range s.Metrics {
		f := gauge(m.Set, m.Name, m.Help)
		if m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter {
			f.Type = dto.MetricType_COUNTER
		}
		row := rowSeries{m, r.addFamily(f, false), labelPairs(slices.Clone(m.Labels)), o.Filter.row(&m), ""} // export decides
		if q := status.Quantity(m.RowName()); slices.Contains(status.Quantities, q) {
			row.quantity = q
		}
		r.rows = append(r.rows, row)
	}
	for _, f := range Families {
		r.addFamily(f, !o.Filter.Matches(f.Name))
	}
	if o.DCGM {
		for _, f := range DCGMFields {
			r.addFamily(f.family(), !o.Filter.Matches(f.Name))
		}
		r.dcgm = newDCGMSeries(s.Metrics)
	}
	slices.SortFunc(r.families, func(a, b *family) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

func (r *renderer) addFamily(f Family, excluded bool) *family {
	if r.byName[f.Name] == nil {
		r.byName[f.Name] = &family{Family: f, excluded: excluded}
		r.families = append(r.families, r.byName[f.Name])
	}
	return r.byName[f.Name]
}

// render returns the families of a snapshot. Each snapshot is rendered once: rates and shares of owners change with it.
func (r *renderer) render(s *nodeSnapshot) (families []*dto.MetricFamily) {
	r.snapshot, r.seriesLeft, r.seriesDropped = s, r.options.SeriesLimit, 0
	for gpu := range byGPU(s.statuses) {
		r.renderDevices(gpu)
	}
	r.renderIncidents(s.incidents)
	r.renderAllocatable(s.allocations.Resources)
	r.renderAllocated(&s.allocations.Resources.Allocated)
	r.renderNode(s) // counts the series before, and is exempt from the limit
	r.dcgm.rates.prune(s.end)
	for _, f := range r.families {
		if len(f.metrics) > 0 {
			families = append(families, &dto.MetricFamily{Name: &f.Name, Help: &f.Help, Type: f.Type.Enum(), Metric: f.metrics})
			f.metrics = make([]*dto.Metric, 0, len(f.metrics))
		}
	}
	return families
}

// renderDevices renders the series of a GPU and its MIG devices.
func (r *renderer) renderDevices(statuses []device.Status) {
	reading := &device.Reading{}
	for i := range r.snapshot.readings {
		if other := &r.snapshot.readings[i]; other.GPU == statuses[0].GPU && other.Err == nil {
			reading = other
		}
	}
	for i, s := range statuses {
		d := newDeviceRendering(r, s, statuses)
		d.renderStatus()
		d.renderHealth()
		if i == 0 {
			d.renderGPU(reading.GPU != "")
		}
		d.renderAllocations()
		d.renderReading(reading.Samples)
		r.processes.render(&d, reading)
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
	node.set("podgauge_nvml_up", boolValue(s.driver.State == device.DriverUp))
	node.set("podgauge_kubelet_up", boolValue(s.allocations.Err == nil && !s.allocations.At.IsZero()))
	node.set("podgauge_collection_begin_timestamp_seconds", unixSeconds(s.begin))
	node.set("podgauge_collection_end_timestamp_seconds", unixSeconds(s.end))
	if !s.allocations.At.IsZero() {
		node.set("podgauge_allocations_age_seconds", max(0, s.end.Sub(s.allocations.At).Seconds()))
	}
	if s.healthStored {
		node.set("podgauge_state_up", boolValue(s.healthErr == nil))
	}
	if s.expectedGPUs > 0 {
		node.set("podgauge_expected_gpus", float64(s.expectedGPUs))
		if s.statuses != nil {
			node.set("podgauge_missing_gpus", float64(device.MissingGPUs(s.statuses, s.expectedGPUs)))
		}
	}
	node.set("podgauge_series_dropped", float64(dropped))
	node.set("podgauge_series", float64(count+maxNodeSeries-r.seriesLeft+1))
}

// seriesGroup adds series that have labels in common.
type seriesGroup struct {
	*renderer
	labels []*dto.LabelPair
}

func (r *renderer) group(labels []device.Label) seriesGroup {
	return seriesGroup{r, labelPairs(labels)}
}

// setRow adds the series of a row, if the row is exported.
func (g seriesGroup) setRow(row int, value float64) {
	if s := &g.rows[row]; s.export == alwaysExported || s.export == exportedIfSet && value != 0 {
		g.add(s.family, value, s.labels)
	}
}

// set adds a series of a family. The values are those of the family's own labels.
func (g seriesGroup) set(name string, value float64, values ...string) {
	f, own := g.byName[name], make([]device.Label, len(values))
	if f.excluded {
		return
	}
	for i, v := range values {
		own[i] = device.Label{Name: f.Labels[i], Value: v}
	}
	g.add(f, value, labelPairs(own))
}

// add adds a series, unless its family is excluded or the limit is reached.
func (g seriesGroup) add(f *family, value float64, own []*dto.LabelPair) {
	switch {
	case f.excluded:
	case g.seriesLeft == 0:
		g.seriesDropped++
	default:
		g.seriesLeft--
		labels := g.labels
		if len(own) > 0 {
			labels = slices.Concat(labels, own)
			sortPairs(labels)
		}
		m := &dto.Metric{Label: labels}
		if f.Type == dto.MetricType_COUNTER {
			m.Counter = &dto.Counter{Value: &value}
		} else {
			m.Gauge = &dto.Gauge{Value: &value}
		}
		f.metrics = append(f.metrics, m)
	}
}
