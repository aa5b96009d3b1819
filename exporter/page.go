package exporter

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/device"
	dto "github.com/prometheus/client_model/go"
)

// snapshot is what one flight brought.
type snapshot struct {
	begin, end time.Time
	statuses   []device.Status
	readings   []device.Reading
	holders    device.Holders
	driver     device.Driver
	stalled    func(device.GPU) bool
}

// page is a rendered snapshot: metric families that are kept, with their series
// and label strings, from one rendering to the next. A scrape costs the writing
// of values, not the making of series (docs/benchmarks.md).
type page struct {
	families []*family // all that there can be, ordered by name
	rows     []*family // the family of each row of Sources.Metrics
	metrics  []device.Metric
	own      ownFamilies
	series   map[seriesKey]*labelled
	turn     uint64 // counts renderings
}

// family is one metric family and, after a rendering, its series.
type family struct {
	dto.MetricFamily
	// lines are the names and labels of its series, written out.
	lines                     [][]byte
	textHead, openMetricsHead []byte
}

// seriesKey is what the labels that all series of a device share are made of.
type seriesKey struct {
	set    labelSet
	device device.ID
	owner  device.Owner
}

// labelled are the series that share a set of labels.
type labelled struct {
	device device.Device // that the labels describe: a new driver may say other things of it
	pairs  []*dto.LabelPair
	kept   map[slot]*series
	turn   uint64 // of the last rendering that used it
}

// series is one series and its name and labels, written out.
type series struct {
	*dto.Metric
	line []byte
}

// slot tells the series of one labelled apart.
type slot struct {
	family *family
	row    int    // among the rows of one family
	more   string // the values of labels that are not known beforehand
}

// seriesKeptFor is how many renderings long the series of a holder that has gone
// are kept: it may be back, and making them anew costs little.
const seriesKeptFor = 100

func newPage(metrics []device.Metric) *page {
	p := &page{metrics: metrics, series: map[seriesKey]*labelled{}}
	byName := map[string]*family{}
	add := func(name, help string, kind dto.MetricType) *family {
		if f := byName[name]; f != nil {
			return f
		}
		f := &family{MetricFamily: dto.MetricFamily{Name: &name, Help: &help, Type: kind.Enum()}}
		f.textHead, f.openMetricsHead = f.head(false), f.head(true)
		byName[name] = f
		p.families = append(p.families, f)
		return f
	}
	for _, m := range metrics {
		kind := dto.MetricType_COUNTER
		if m.Kind == device.Gauge || m.Kind == device.State {
			kind = dto.MetricType_GAUGE
		}
		p.rows = append(p.rows, add(m.Name, m.Help, kind))
	}
	p.own.make(add)
	slices.SortFunc(p.families, func(a, b *family) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return p
}

// render replaces what is on the page.
func (p *page) render(s snapshot, l *ledger) {
	p.turn++
	for _, f := range p.families {
		f.Metric, f.lines = f.Metric[:0], f.lines[:0]
	}
	p.renderNode(s)
	for i, status := range s.statuses {
		hold, owner := s.holders.Of(status.ID)
		// Whoever holds slices shares their GPU: that needs no asking. It can be held
		// as a whole too, where slices are not offered.
		if status.MIG && len(s.holders.Rows(status.ID)) == 0 {
			hold, owner = device.Shared, device.Owner{}
		}
		d := rendering{
			page: p, status: status, hold: hold, owner: owner,
			itself: p.labelled(deviceLabels, status, device.Owner{}),
		}
		if hold != device.Unknown {
			d.held = p.labelled(deviceLabels, status, owner)
		}
		d.renderStatus(s, i == 0 || s.statuses[i-1].GPU != status.GPU)
		d.renderHoldings(s)
		d.renderReading(s, l)
	}
	for key, series := range p.series {
		if p.turn-series.turn > seriesKeptFor {
			delete(p.series, key)
		}
	}
}

// gather returns the families that have series.
func (p *page) gather() []*dto.MetricFamily {
	families := make([]*dto.MetricFamily, 0, len(p.families))
	for _, f := range p.families {
		if len(f.Metric) > 0 {
			families = append(families, &f.MetricFamily)
		}
	}
	return families
}

// rendering is the rendering of one device.
type rendering struct {
	page   *page
	status device.Status
	hold   device.Hold
	owner  device.Owner
	itself *labelled // for what belongs to the device: no holder
	held   *labelled // for what is due to its holder; nil while nobody knows who that is
}

// renderReading writes the values read of the device.
func (d rendering) renderReading(s snapshot, l *ledger) {
	i := slices.IndexFunc(s.readings, func(r device.Reading) bool { return r.GPU == d.status.GPU })
	if i < 0 || s.readings[i].Err != nil {
		return
	}
	for _, sample := range s.readings[i].Samples {
		if sample.Device != d.status.ID {
			continue
		}
		metric, f := d.page.metrics[sample.Metric], d.page.rows[sample.Metric]
		at := slot{family: f, row: sample.Metric}
		switch metric.Kind {
		case device.FaultCounter, device.State:
			d.itself.set(at, sample.Value, metric.Labels...)
		case device.Gauge:
			d.held.set(at, sample.Value, metric.Labels...)
		case device.HolderCounter:
			sum, ok := l.book(counter{sample.Device, sample.Metric}, sample.Value, d.hold, d.owner, s.end)
			if ok {
				d.held.set(at, sum, metric.Labels...)
			}
		}
	}
}

// labelled returns the series of a device and a holder.
func (p *page) labelled(set labelSet, s device.Status, owner device.Owner) *labelled {
	key := seriesKey{set, s.ID, owner}
	l := p.series[key]
	if l == nil || !l.device.Equal(s.Device) {
		l = &labelled{device: s.Device, pairs: set.pairs(s, owner), kept: map[slot]*series{}}
		p.series[key] = l
	}
	l.turn = p.turn
	return l
}

// set writes a value and puts its series on the page. On a nil labelled it does
// nothing: who holds the device is not known. More labels are looked at only when
// the series is new.
func (l *labelled) set(at slot, value float64, more ...device.Label) {
	if l == nil {
		return
	}
	m := l.kept[at]
	if m == nil {
		m = newSeries(at.family, l.pairs, more)
		l.kept[at] = m
	}
	if m.Gauge != nil {
		*m.Gauge.Value = value
	} else {
		*m.Counter.Value = value
	}
	at.family.Metric = append(at.family.Metric, m.Metric)
	at.family.lines = append(at.family.lines, m.line)
}

func newSeries(f *family, shared []*dto.LabelPair, more []device.Label) *series {
	m := &dto.Metric{Label: shared}
	if len(more) > 0 {
		m.Label = slices.Clone(shared)
		for _, label := range more {
			m.Label = append(m.Label, pair(label.Name, label.Value))
		}
		sortPairs(m.Label)
	}
	if f.GetType() == dto.MetricType_COUNTER {
		m.Counter = &dto.Counter{Value: new(float64)}
	} else {
		m.Gauge = &dto.Gauge{Value: new(float64)}
	}
	return &series{m, line(f.GetName(), m.Label)}
}
