package exporter

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/node"
	"github.com/podgauge/podgauge/internal/state"
	"github.com/podgauge/podgauge/internal/sysfs"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/internal/web/status"
	dto "github.com/prometheus/client_model/go"
)

// nodeSnapshot is the result of one collection.
type nodeSnapshot struct {
	api.Node
	begin, end time.Time
	readings   []health.Reading
	stalled    func(device.GPU) bool
	stateFile  state.WriteStatus
	sysfs      *sysfs.Reading // nil: not read
}

// snapshotSeries are the families with the series of a snapshot. A registry would
// check, sort and copy them, 5 ms for 64 GPUs.
type snapshotSeries struct {
	options     *Options
	node        *node.State
	attribution *attribution
	processes   ProcessResolver
	families    []*family // ordered by name
	byName      map[string]*family
	rows        []rowSeries     // by row of Sources.Metrics
	portMetrics []device.Metric // of RDMA ports
	portTraffic *attribution
	snapshot    *nodeSnapshot
	// replicas are the numbers of ids that a device plugin advertises for a device
	// of the newest listing. The kubelet lists only healthy ids, so an unhealthy
	// device keeps its number.
	replicas map[deviceResource]int
	// healthTimes are the exported times in health states: a collection may read
	// the statuses from before a change, with a later time than the change's.
	healthTimes map[healthState]time.Duration
	// seriesLeft is how many more series may be added, and seriesDropped how many
	// were not.
	seriesLeft, seriesDropped int
}

// deviceResource is a device of a resource.
type deviceResource struct {
	device   device.ID
	resource string
}

// healthState is a state of a device.
type healthState struct {
	device device.ID
	health device.Health
	reason string
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

func newSnapshotSeries(s *Sources, o *Options, a *attribution) *snapshotSeries {
	r := &snapshotSeries{
		options: o, node: s.State, attribution: a, processes: s.Processes, byName: map[string]*family{},
		portMetrics: sysfs.PortMetrics(),
		replicas:    map[deviceResource]int{}, healthTimes: map[healthState]time.Duration{},
	}
	r.portTraffic = newAttribution(r.portMetrics)
	for _, m := range s.Metrics {
		f := gauge(m.Set, m.Name, m.Help)
		if m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter {
			f.Type = dto.MetricType_COUNTER
		}
		row := rowSeries{Metric: m, labels: labelPairs(slices.Clone(m.Labels)), export: o.Filter.row(&m)}
		row.family = r.addFamily(f, false) // export decides
		if q := status.Quantity(m.RowName()); slices.Contains(status.Quantities, q) {
			row.quantity = q
		}
		r.rows = append(r.rows, row)
	}
	for _, f := range Families {
		r.addFamily(f, !o.Filter.Matches(f.Name))
	}
	for _, f := range o.DCGM.Families {
		if f.Type != dcgm.Label {
			r.addFamily(dcgmFamily(f), !o.Filter.Matches(f.Name))
		}
	}
	slices.SortFunc(r.families, func(a, b *family) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

func (r *snapshotSeries) addFamily(f Family, excluded bool) *family {
	if r.byName[f.Name] == nil {
		r.byName[f.Name] = &family{Family: f, excluded: excluded}
		r.families = append(r.families, r.byName[f.Name])
	}
	return r.byName[f.Name]
}

// begin begins the series of a snapshot.
func (r *snapshotSeries) begin(s *nodeSnapshot) {
	r.snapshot, r.seriesLeft, r.seriesDropped = s, r.options.SeriesLimit, 0
	listed, known := map[deviceResource]int{}, map[device.ID]bool{}
	for _, d := range s.Allocations.Resources.Allocatable.Devices {
		listed[deviceResource{device.AdvertisedID(d.ID).Device(), d.Resource}]++
	}
	for _, status := range s.Statuses {
		known[status.ID] = true
	}
	maps.Copy(r.replicas, listed)
	maps.DeleteFunc(r.replicas, func(d deviceResource, _ int) bool { return !known[d.device] })
	maps.DeleteFunc(r.healthTimes, func(h healthState, _ time.Duration) bool { return !known[h.device] })
}

// end returns the families with series.
func (r *snapshotSeries) end() (families []*dto.MetricFamily) {
	for _, f := range r.families {
		if len(f.metrics) > 0 {
			families = append(families, &dto.MetricFamily{
				Name: &f.Name, Help: &f.Help, Type: f.Type.Enum(), Metric: f.metrics,
			})
			f.metrics = make([]*dto.Metric, 0, len(f.metrics))
		}
	}
	return families
}

// seriesGroup adds series that have labels in common.
type seriesGroup struct {
	*snapshotSeries
	labels []*dto.LabelPair
}

func (r *snapshotSeries) group(labels []device.Label) seriesGroup {
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

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
