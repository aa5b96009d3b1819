package exporter

import (
	"cmp"
	"maps"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// maxUnusedRenderings is how many renderings the series of an owner outlive its allocation, in case the owner returns.
// Making series is cheap, and on a node with short-lived pods unused series would outweigh the others.
const maxUnusedRenderings = 10

// seriesStore holds the series of one rendering after the other. Label text is kept, so a scrape costs the writing of values and
// not the making of series (docs/contributing/benchmarks.md).
type seriesStore struct {
	sources     *Sources
	options     *Options
	families    []*family // all, ordered by name
	rowFamilies []*family // of each row of Sources.Metrics
	rowExports  []rowExport
	byName      map[string]*family
	groups      map[groupKey]*seriesGroup
	renderings  uint64 // counts renderings
	// seriesLeft is how many more series may be shown, and seriesDropped how many were not.
	seriesLeft, seriesDropped int
}

// family is a metric family with its series in the current rendering.
type family struct {
	Family
	series                        []*series
	textHeader, openMetricsHeader []byte
	excluded                      bool // by the command line
}

// series is one series of a family.
type series struct {
	labels []byte // as text
	value  float64
}

// seriesGroup holds the series of one device and owner.
type seriesGroup struct {
	store         *seriesStore
	device        device.Device  // described by the labels; a new driver may describe a device differently
	meta          device.PodMeta // likewise
	labels        []device.Label
	labelText     []byte
	rows          []*series // by row of Sources.Metrics, up to the last row in use
	byID          map[seriesID]*series
	lastRendering uint64 // the last one with series of this group
}

type groupKey struct {
	set    labelSet
	device device.ID
	owner  device.Owner
}

// seriesID identifies a series of a group by its family and the values of the family's own labels.
type seriesID struct {
	family string // name
	values [2]string
}

// newSeriesStore returns a store for the rows of readings and for the families of descs.
func newSeriesStore(s *Sources, o *Options, descs []Family) seriesStore {
	st := seriesStore{sources: s, options: o, byName: map[string]*family{}, groups: map[groupKey]*seriesGroup{}}
	add := func(d Family) *family {
		f := st.byName[d.Name]
		if f == nil {
			f = &family{Family: d, textHeader: d.header(false), openMetricsHeader: d.header(true), excluded: !o.Filter.Matches(d.Name)}
			st.byName[d.Name] = f
			st.families = append(st.families, f)
		}
		return f
	}
	for _, m := range s.Metrics {
		f := add(rowDesc(m))
		f.excluded = false // rowExports decides
		st.rowFamilies, st.rowExports = append(st.rowFamilies, f), append(st.rowExports, o.Filter.row(&m))
	}
	for _, d := range descs {
		add(d)
	}
	slices.SortFunc(st.families, func(a, b *family) int { return cmp.Compare(a.Name, b.Name) })
	return st
}

// begin starts a rendering.
func (st *seriesStore) begin() {
	st.renderings++
	st.seriesLeft, st.seriesDropped = st.options.SeriesLimit, 0
	for _, f := range st.families {
		f.series = f.series[:0]
	}
}

// end drops groups out of use.
func (st *seriesStore) end() {
	maps.DeleteFunc(st.groups, func(_ groupKey, g *seriesGroup) bool { return st.renderings-g.lastRendering > maxUnusedRenderings })
}

// group returns the series of a device and an owner.
func (st *seriesStore) group(set labelSet, s device.Status, owner device.Owner) *seriesGroup {
	key := groupKey{set, s.ID, owner}
	group := st.groups[key]
	var meta device.PodMeta
	if set == allocationInfoLabels {
		meta = st.sources.Node.PodMeta(owner.Namespace, owner.Pod)
	}
	if group == nil || !group.device.Equal(s.Device) || group.meta.UID != meta.UID || !slices.Equal(group.meta.Labels, meta.Labels) {
		group = &seriesGroup{store: st, device: s.Device, meta: meta, labels: set.labels(s, owner, meta, st.options), byID: map[seriesID]*series{}}
		group.labelText = formatLabels(group.labels)
		st.groups[key] = group
	}
	group.lastRendering = st.renderings
	return group
}

// setRow shows the series of a row with a value, if the row is exported.
func (g *seriesGroup) setRow(row int, value float64) {
	f := g.store.rowFamilies[row]
	if export := g.store.rowExports[row]; export == neverExported || export == exportedIfSet && value == 0 || !g.store.admit(f) {
		return
	}
	if row >= len(g.rows) { // MIG devices have only the first of hundreds of rows
		g.rows = append(g.rows, make([]*series, row+1-len(g.rows))...)
	}
	if g.rows[row] == nil {
		g.rows[row] = g.newSeries(g.store.sources.Metrics[row].Labels)
	}
	g.rows[row].value = value
	g.store.show(f, g.rows[row])
}

// set shows a series of a family. The values are those of the family's own labels.
func (g *seriesGroup) set(family string, value float64, values ...string) {
	key := seriesID{family: family}
	copy(key.values[:], values)
	g.setSeries(key, value, func() []device.Label { return g.store.byName[family].labelled(values) })
}

// setSeries shows a series. It calls newLabels only for a new series.
func (g *seriesGroup) setSeries(id seriesID, value float64, newLabels func() []device.Label) {
	f := g.store.byName[id.family]
	if !g.store.admit(f) {
		return
	}
	s := g.byID[id]
	if s == nil {
		s = g.newSeries(newLabels())
		g.byID[id] = s
	}
	s.value = value
	g.store.show(f, s)
}

func (g *seriesGroup) newSeries(more []device.Label) *series {
	if len(more) == 0 {
		return &series{labels: g.labelText}
	}
	labels := slices.Concat(g.labels, more)
	sortLabels(labels)
	return &series{labels: formatLabels(labels)}
}

// admit reports whether a series of the family may be shown, and counts the series as dropped at the limit.
func (st *seriesStore) admit(f *family) bool {
	if f.excluded {
		return false
	}
	if st.seriesLeft == 0 {
		st.seriesDropped++
		return false
	}
	return true
}

func (st *seriesStore) show(f *family, s *series) {
	st.seriesLeft--
	f.series = append(f.series, s)
}

// cachedSeries are series that stay the same until their input changes.
type cachedSeries struct {
	store   *seriesStore
	entries []cachedEntry
	dropped int // beyond the limit
}

type cachedEntry struct {
	family *family
	*series
}

// add adds a series, with labels of an owner and of a device if given. It makes no series of an excluded family or beyond the
// limit: a device plugin may have some hundred thousand devices.
func (c *cachedSeries) add(name string, value float64, owner *device.Owner, d *device.Device, values ...string) {
	f := c.store.byName[name]
	if f.excluded {
		return
	}
	if len(c.entries) == c.store.options.SeriesLimit {
		c.dropped++
		return
	}
	labels := f.labelled(values)
	if owner != nil {
		labels = append(labels, ownerLabels(*owner)...)
	}
	if d != nil {
		labels = append(labels, deviceIDLabels(*d)...)
	}
	sortLabels(labels)
	c.entries = append(c.entries, cachedEntry{f, &series{labels: formatLabels(labels), value: value}})
}

// show shows the series as far as the limit allows.
func (c *cachedSeries) show() {
	for _, entry := range c.entries {
		if c.store.admit(entry.family) {
			c.store.show(entry.family, entry.series)
		}
	}
	c.store.seriesDropped += c.dropped
}

// sameSlice reports whether two slices are the same memory. Publishers keep a slice as long as its content stays the same.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}
