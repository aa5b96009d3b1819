package exporter

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/status"
)

// nodeSnapshot is what one flight brought.
type nodeSnapshot struct {
	begin, end  time.Time
	statuses    []device.Status
	readings    []device.Reading
	allocations device.Allocations
	driver      device.Driver
	stalled     func(device.GPU) bool
	// processesVisible tells whether the processes that a reading names can be looked up.
	processesVisible bool
	incidents        incident.Snapshot
	healthStored     bool
	healthErr        error // of the store
}

// renderedMetrics is a rendered snapshot: metric families that are kept, with their series
// and label strings, from one rendering to the next. A scrape costs the writing
// of values, not the making of series (docs/benchmarks.md).
type renderedMetrics struct {
	sources     *Sources
	options     *Options
	families    []*family // all that there can be, ordered by name
	rowFamilies []*family // the family of each row of Sources.Metrics
	builtin     builtinFamilies
	dcgm        dcgmSeries
	groups      map[groupKey]*seriesGroup
	resources   resourceSeries
	incidents   incidentSeries
	renderings  uint64 // counts renderings
	// seriesLeft is how many more series may be put on the page, and dropped how many were not.
	seriesLeft, seriesDropped int

	// memoryUsedRow is the row of that name; -1 where there is none.
	memoryUsedRow int
	usages        []ownerUsage // scratch
	owners        []device.Owner

	// pageReadings are what was read at readAt, as far as people are shown it, and quantities
	// the rows that these are of.
	pageReadings []status.DeviceReading
	readAt       time.Time
	quantities   []status.Quantity
}

// family is one metric family and, after a rendering, its series.
type family struct {
	familyDesc
	series                        []*series
	textHeader, openMetricsHeader []byte
	// excluded families have no series: the command line says so.
	excluded bool
}

// groupKey is what the labels that all series of a device share are made of.
type groupKey struct {
	set    labelSet
	device device.ID
	owner  device.Owner
}

// seriesGroup are the series that share a set of labels.
type seriesGroup struct {
	rendered      *renderedMetrics
	device        device.Device  // that the labels describe: a new driver may say other things of it
	meta          device.PodMeta // likewise, where the labels have it
	labels        []device.Label
	labelText     []byte    // the labels, written out
	rows          []*series // by row of Sources.Metrics, up to the last that was wanted
	byID          map[seriesID]*series
	lastRendering uint64 // of the last rendering that used it
}

// series is one series of a family.
type series struct {
	labels []byte // written out
	value  float64
}

// seriesID tells the series of one labelled apart that no row makes: by the values of
// labels that are not known beforehand.
type seriesID struct {
	family         *family
	value1, value2 string
}

// maxUnusedRenderings is how many renderings long the series of a holder that has gone
// are kept: it may be back. Making them anew costs little, and where pods come and go they
// would outweigh those that are shown.
const maxUnusedRenderings = 10

func newRenderedMetrics(s *Sources, o *Options) *renderedMetrics {
	rm := &renderedMetrics{sources: s, options: o, groups: map[groupKey]*seriesGroup{}, memoryUsedRow: -1, quantities: status.QuantitiesByRow(s.Metrics)}
	families := map[string]*family{}
	add := func(d familyDesc) *family {
		if f := families[d.name]; f != nil {
			return f
		}
		f := &family{familyDesc: d, excluded: !o.Filter.Matches(d.name)}
		f.textHeader, f.openMetricsHeader = f.header(false), f.header(true)
		families[d.name] = f
		rm.families = append(rm.families, f)
		return f
	}
	for i, m := range s.Metrics {
		rm.rowFamilies = append(rm.rowFamilies, add(rowDesc(m)))
		if m.Name == "nvidia_gpu_memory_used_bytes" && len(m.Labels) == 0 {
			rm.memoryUsedRow = i
		}
	}
	rm.builtin.register(add)
	if o.DCGM {
		rm.dcgm.register(s.Metrics, add)
	}
	slices.SortFunc(rm.families, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	return rm
}

// render replaces what is on the page.
func (rm *renderedMetrics) render(s nodeSnapshot, a *attribution) {
	rm.renderings++
	rm.seriesLeft, rm.seriesDropped = rm.options.SeriesLimit, 0
	rm.dcgm.rates = a.rates
	rm.storePageReadings(s.readings, s.end)
	for _, f := range rm.families {
		f.series = f.series[:0]
	}
	for i := 0; i < len(s.statuses); {
		n := i + 1
		for n < len(s.statuses) && s.statuses[n].GPU == s.statuses[i].GPU { // a GPU's slices lie behind it
			n++
		}
		rm.renderGPU(s, s.statuses[i:n], a)
		i = n
	}
	rm.renderIncidents(s)
	rm.renderResources(s.allocations.Resources)
	rm.renderNode(s) // last, since it counts the others, and exempt from the limit
	a.rates.prune(s.end)
	for key, group := range rm.groups {
		if rm.renderings-group.lastRendering > maxUnusedRenderings {
			delete(rm.groups, key)
		}
	}
}

// renderGPU writes a GPU and its slices.
func (rm *renderedMetrics) renderGPU(s nodeSnapshot, statuses []device.Status, a *attribution) {
	reading := &device.Reading{}
	for i := range s.readings {
		if r := &s.readings[i]; r.GPU == statuses[0].GPU && r.Err == nil {
			reading = r
		}
	}
	for i, status := range statuses {
		d := rm.newDeviceRendering(s, status, statuses)
		d.renderStatus(statuses)
		d.renderHealth()
		if i == 0 {
			d.renderGPU(s, reading.GPU != "")
		}
		d.renderAllocations(s)
		d.renderReading(reading.Samples, a)
		d.renderProcessUsage(s, reading, statuses)
		if reading.GPU != "" {
			d.renderDCGM(reading.Samples, statuses, s.end)
		}
	}
}

// deviceRendering is the rendering of one device.
type deviceRendering struct {
	rendered     *renderedMetrics
	status       device.Status
	state        device.AllocationState
	owner        device.Owner
	deviceSeries *seriesGroup // for what belongs to the device: no holder
	ownerSeries  *seriesGroup // for what is due to its owner; without labels while that is unknown
	// readingSeries is like held, for what is read: of slices that share a GPU instance it is
	// read of all of them at once.
	readingSeries *seriesGroup
	readingState  device.AllocationState
	readingOwner  device.Owner
}

func (rm *renderedMetrics) newDeviceRendering(s nodeSnapshot, status device.Status, gpu []device.Status) deviceRendering {
	d := deviceRendering{rendered: rm, status: status, deviceSeries: rm.group(deviceLabels, status, device.Owner{})}
	d.state, d.owner = s.allocations.State(status.ID)
	// Whoever holds slices shares their GPU: that needs no asking. It can be held
	// as a whole too, where slices are not offered.
	if status.MIGEnabled && len(s.allocations.ForDevice(status.ID)) == 0 {
		d.state, d.owner = device.AllocatedShared, device.Owner{}
	}
	d.ownerSeries = rm.ownerSeries(status, d.owner)
	d.readingState, d.readingOwner = d.state, d.owner
	for _, other := range gpu {
		if other.ID != status.ID && sameGPUInstance(status, other) {
			d.readingState, d.readingOwner = combineAllocations(s.allocations, d.readingState, d.readingOwner, other.ID)
		}
	}
	d.readingSeries = d.ownerSeries
	if d.readingOwner != d.owner {
		d.readingSeries = rm.ownerSeries(status, d.readingOwner)
	}
	return d
}

// ownerSeries are the series of what is due to a device's owner. They are without labels also while the
// owner is unknown, and where owners are shown elsewhere only.
func (rm *renderedMetrics) ownerSeries(s device.Status, owner device.Owner) *seriesGroup {
	if rm.options.StableSeries {
		owner = device.Owner{}
	}
	return rm.group(deviceLabels, s, owner)
}

// sameGPUInstance tells whether two slices are compute instances of one GPU instance:
// what the driver says of either is true of both together. One that is gone shares
// nothing: the driver gives its instance's number to the next one that is made.
func sameGPUInstance(a, b device.Status) bool {
	return !a.WholeGPU() && !b.WholeGPU() && !a.Gone && !b.Gone && a.GPU == b.GPU && a.GI >= 0 && a.GI == b.GI
}

// combineAllocations returns the state and the owner of what is read of several slices at once: what
// their owners share.
func combineAllocations(h device.Allocations, state device.AllocationState, owner device.Owner, other device.ID) (device.AllocationState, device.Owner) {
	otherState, otherOwner := h.State(other)
	switch {
	case state == device.AllocationUnknown || otherState == device.AllocationUnknown:
		return device.AllocationUnknown, device.Owner{}
	case otherState == device.Unallocated:
		return state, owner
	case state == device.Unallocated:
		return otherState, otherOwner
	case state == otherState && owner == otherOwner:
		return state, owner
	default:
		return device.AllocatedShared, owner.Common(otherOwner)
	}
}

// renderReading writes the values read of the device.
func (d deviceRendering) renderReading(samples []device.Sample, a *attribution) {
	for _, sample := range samples {
		if sample.Device != d.status.ID {
			continue
		}
		switch metric := &d.rendered.sources.Metrics[sample.Metric]; {
		case metric.Kind == device.FaultCounter || metric.Kind == device.StateGauge:
			d.deviceSeries.setRow(sample.Metric, sample.Value)
		case metric.Kind == device.Gauge || d.rendered.options.StableSeries:
			d.readingSeries.setRow(sample.Metric, sample.Value)
		default:
			d.readingSeries.setRow(sample.Metric, a.add(sample.Device, sample.Metric, sample.Value, d.readingState, d.readingOwner))
		}
	}
}

// group returns the series of a device and a holder.
func (rm *renderedMetrics) group(set labelSet, s device.Status, owner device.Owner) *seriesGroup {
	key := groupKey{set, s.ID, owner}
	group := rm.groups[key]
	var meta device.PodMeta
	if set == allocationInfoLabels {
		meta = rm.podMeta(owner)
	}
	if group == nil || !group.device.Equal(s.Device) || !equalPodMeta(group.meta, meta) {
		group = &seriesGroup{rendered: rm, device: s.Device, meta: meta, labels: set.labels(s, owner, meta, rm.options), byID: map[seriesID]*series{}}
		group.labelText = formatLabels(group.labels)
		rm.groups[key] = group
	}
	group.lastRendering = rm.renderings
	return group
}

// setRow writes the value of a row and puts its series on the page.
func (g *seriesGroup) setRow(row int, value float64) {
	rm := g.rendered
	if !rm.admit(rm.rowFamilies[row]) {
		return
	}
	if row >= len(g.rows) { // slices have the first rows alone, of hundreds
		g.rows = append(g.rows, make([]*series, row+1-len(g.rows))...)
	}
	if g.rows[row] == nil {
		g.rows[row] = g.newSeries(rm.sources.Metrics[row].Labels)
	}
	g.rows[row].value = value
	rm.addSeries(rm.rowFamilies[row], g.rows[row])
}

// set does so for a series that no row makes. More labels are looked at only when it
// is new.
func (g *seriesGroup) set(id seriesID, value float64, more ...device.Label) {
	if !g.rendered.admit(id.family) {
		return
	}
	s := g.byID[id]
	if s == nil {
		s = g.newSeries(more)
		g.byID[id] = s
	}
	s.value = value
	g.rendered.addSeries(id.family, s)
}

// admit tells whether there is room for one more series of a family that is wanted.
func (rm *renderedMetrics) admit(f *family) bool {
	if f.excluded {
		return false
	}
	if rm.seriesLeft == 0 {
		rm.seriesDropped++
		return false
	}
	return true
}

func (rm *renderedMetrics) addSeries(f *family, s *series) {
	rm.seriesLeft--
	f.series = append(f.series, s)
}

// newSeries makes one with these labels besides.
func (g *seriesGroup) newSeries(more []device.Label) *series {
	if len(more) == 0 {
		return &series{labels: g.labelText}
	}
	labels := slices.Concat(g.labels, more)
	sortLabels(labels)
	return &series{labels: formatLabels(labels)}
}
