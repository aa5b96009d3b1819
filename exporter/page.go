package exporter

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/incident"
	"github.com/podgauge/podgauge/internal/web/status"
)

// snapshot is what one flight brought.
type snapshot struct {
	begin, end time.Time
	statuses   []device.Status
	readings   []device.Reading
	holders    device.Holders
	driver     device.Driver
	stalled    func(device.GPU) bool
	// visible tells whether the processes that a reading names can be looked up.
	visible   bool
	incidents incident.Known
}

// page is a rendered snapshot: metric families that are kept, with their series
// and label strings, from one rendering to the next. A scrape costs the writing
// of values, not the making of series (docs/benchmarks.md).
type page struct {
	sources  *Sources
	options  *Options
	families []*family // all that there can be, ordered by name
	rows     []*family // the family of each row of Sources.Metrics
	own      ownFamilies
	dcgm     dcgm
	series   map[seriesKey]*labelled
	node     nodeSeries
	memory   memorySeries
	turn     uint64 // counts renderings
	// room is how many more series may be put on the page, and dropped how many were not.
	room, dropped int

	// memoryUsed is the row of that name; -1 where there is none.
	memoryUsed int
	tallies    []tally // scratch
	holders    []device.Owner

	// glances are what was read at readAt, as far as people are shown it, and quantities
	// the rows that these are of.
	glances    []status.Reading
	readAt     time.Time
	quantities []status.Quantity
}

// family is one metric family and, after a rendering, its series.
type family struct {
	description
	series                    []*series
	textHead, openMetricsHead []byte
	// unwanted families have no series: the command line says so.
	unwanted bool
}

// seriesKey is what the labels that all series of a device share are made of.
type seriesKey struct {
	set    labelSet
	device device.ID
	owner  device.Owner
}

// labelled are the series that share a set of labels.
type labelled struct {
	page   *page
	device device.Device  // that the labels describe: a new driver may say other things of it
	meta   device.PodMeta // likewise, where the labels have it
	labels []device.Label
	text   []byte    // the labels, written out
	rows   []*series // by row of Sources.Metrics, up to the last that was wanted
	kept   map[slot]*series
	turn   uint64 // of the last rendering that used it
}

// series is one series of a family.
type series struct {
	labels []byte // written out
	value  float64
}

// slot tells the series of one labelled apart that no row makes: by the values of
// labels that are not known beforehand.
type slot struct {
	family     *family
	more, most string
}

// seriesKeptFor is how many renderings long the series of a holder that has gone
// are kept: it may be back. Making them anew costs little, and where pods come and go they
// would outweigh those that are shown.
const seriesKeptFor = 10

func newPage(s *Sources, o *Options) *page {
	p := &page{sources: s, options: o, series: map[seriesKey]*labelled{}, memoryUsed: -1, quantities: status.Quantities(s.Metrics)}
	byName := map[string]*family{}
	add := func(d description) *family {
		if f := byName[d.name]; f != nil {
			return f
		}
		f := &family{description: d, unwanted: !o.Choice.Takes(d.name)}
		f.textHead, f.openMetricsHead = f.head(false), f.head(true)
		byName[d.name] = f
		p.families = append(p.families, f)
		return f
	}
	for i, m := range s.Metrics {
		p.rows = append(p.rows, add(describe(m)))
		if m.Name == "nvidia_gpu_memory_used_bytes" && len(m.Labels) == 0 {
			p.memoryUsed = i
		}
	}
	p.own.make(add)
	if o.DCGM {
		p.dcgm.make(s.Metrics, add)
	}
	slices.SortFunc(p.families, func(a, b *family) int { return cmp.Compare(a.name, b.name) })
	return p
}

// render replaces what is on the page.
func (p *page) render(s snapshot, l *ledger) {
	p.turn++
	p.room, p.dropped = p.options.SeriesLimit, 0
	p.dcgm.rates = l.rates
	p.keepGlances(s.readings, s.end)
	for _, f := range p.families {
		f.series = f.series[:0]
	}
	for i := 0; i < len(s.statuses); {
		n := i + 1
		for n < len(s.statuses) && s.statuses[n].GPU == s.statuses[i].GPU { // a GPU's slices lie behind it
			n++
		}
		p.renderGPU(s, s.statuses[i:n], l)
		i = n
	}
	p.renderIncidents(s)
	p.renderResources(s.holders.Resources)
	p.renderNode(s) // last, since it counts the others, and exempt from the limit
	l.rates.forget(s.end)
	for key, series := range p.series {
		if p.turn-series.turn > seriesKeptFor {
			delete(p.series, key)
		}
	}
}

// renderGPU writes a GPU and its slices.
func (p *page) renderGPU(s snapshot, statuses []device.Status, l *ledger) {
	reading := &device.Reading{}
	for i := range s.readings {
		if r := &s.readings[i]; r.GPU == statuses[0].GPU && r.Err == nil {
			reading = r
		}
	}
	for i, status := range statuses {
		d := p.rendering(s, status, statuses)
		d.renderStatus(statuses)
		d.renderHealth()
		if i == 0 {
			d.renderGPU(s, reading.GPU != "")
		}
		d.renderHoldings(s)
		d.renderReading(reading.Samples, l)
		d.renderUses(s, reading, statuses)
		if reading.GPU != "" {
			d.renderDCGM(reading.Samples, statuses, s.end)
		}
	}
}

// rendering is the rendering of one device.
type rendering struct {
	page   *page
	status device.Status
	hold   device.Hold
	owner  device.Owner
	itself *labelled // for what belongs to the device: no holder
	held   *labelled // for what is due to its owner; without labels while that is unknown
	// read is like held, for what is read: of slices that share a GPU instance it is
	// read of all of them at once.
	read      *labelled
	readHold  device.Hold
	readOwner device.Owner
}

func (p *page) rendering(s snapshot, status device.Status, gpu []device.Status) rendering {
	d := rendering{page: p, status: status, itself: p.labelled(deviceLabels, status, device.Owner{})}
	d.hold, d.owner = s.holders.Of(status.ID)
	// Whoever holds slices shares their GPU: that needs no asking. It can be held
	// as a whole too, where slices are not offered.
	if status.MIG && len(s.holders.Rows(status.ID)) == 0 {
		d.hold, d.owner = device.Shared, device.Owner{}
	}
	d.held = p.due(status, d.owner)
	d.readHold, d.readOwner = d.hold, d.owner
	for _, other := range gpu {
		if other.ID != status.ID && shareInstance(status, other) {
			d.readHold, d.readOwner = together(s.holders, d.readHold, d.readOwner, other.ID)
		}
	}
	d.read = d.held
	if d.readOwner != d.owner {
		d.read = p.due(status, d.readOwner)
	}
	return d
}

// due are the series of what is due to a device's owner. They are without labels also while the
// owner is unknown, and where owners are shown elsewhere only.
func (p *page) due(s device.Status, owner device.Owner) *labelled {
	if p.options.StableSeries {
		owner = device.Owner{}
	}
	return p.labelled(deviceLabels, s, owner)
}

// shareInstance tells whether two slices are compute instances of one GPU instance:
// what the driver says of either is true of both together. One that is gone shares
// nothing: the driver gives its instance's number to the next one that is made.
func shareInstance(a, b device.Status) bool {
	return !a.WholeGPU() && !b.WholeGPU() && !a.Gone && !b.Gone && a.GPU == b.GPU && a.GI >= 0 && a.GI == b.GI
}

// together returns the state and the owner of what is read of several slices at once: what
// their owners share.
func together(h device.Holders, hold device.Hold, owner device.Owner, other device.ID) (device.Hold, device.Owner) {
	also, who := h.Of(other)
	switch {
	case hold == device.Unknown || also == device.Unknown:
		return device.Unknown, device.Owner{}
	case also == device.Idle:
		return hold, owner
	case hold == device.Idle:
		return also, who
	case hold == also && owner == who:
		return hold, owner
	default:
		return device.Shared, owner.Common(who)
	}
}

// renderReading writes the values read of the device.
func (d rendering) renderReading(samples []device.Sample, l *ledger) {
	for _, sample := range samples {
		if sample.Device != d.status.ID {
			continue
		}
		switch metric := &d.page.sources.Metrics[sample.Metric]; {
		case metric.Kind == device.FaultCounter || metric.Kind == device.State:
			d.itself.setRow(sample.Metric, sample.Value)
		case metric.Kind == device.Gauge || d.page.options.StableSeries:
			d.read.setRow(sample.Metric, sample.Value)
		default:
			d.read.setRow(sample.Metric, l.book(sample.Device, sample.Metric, sample.Value, d.readHold, d.readOwner))
		}
	}
}

// labelled returns the series of a device and a holder.
func (p *page) labelled(set labelSet, s device.Status, owner device.Owner) *labelled {
	key := seriesKey{set, s.ID, owner}
	l := p.series[key]
	var meta device.PodMeta
	if set == holdingLabels {
		meta = p.meta(owner)
	}
	if l == nil || !l.device.Equal(s.Device) || !equalMeta(l.meta, meta) {
		l = &labelled{page: p, device: s.Device, meta: meta, labels: set.labels(s, owner, meta, p.options), kept: map[slot]*series{}}
		l.text = labelText(l.labels)
		p.series[key] = l
	}
	l.turn = p.turn
	return l
}

// setRow writes the value of a row and puts its series on the page.
func (l *labelled) setRow(row int, value float64) {
	p := l.page
	if !p.takes(p.rows[row]) {
		return
	}
	if row >= len(l.rows) { // slices have the first rows alone, of hundreds
		l.rows = append(l.rows, make([]*series, row+1-len(l.rows))...)
	}
	if l.rows[row] == nil {
		l.rows[row] = l.newSeries(p.sources.Metrics[row].Labels)
	}
	l.rows[row].value = value
	p.put(p.rows[row], l.rows[row])
}

// set does so for a series that no row makes. More labels are looked at only when it
// is new.
func (l *labelled) set(at slot, value float64, more ...device.Label) {
	if !l.page.takes(at.family) {
		return
	}
	s := l.kept[at]
	if s == nil {
		s = l.newSeries(more)
		l.kept[at] = s
	}
	s.value = value
	l.page.put(at.family, s)
}

// takes tells whether there is room for one more series of a family that is wanted.
func (p *page) takes(f *family) bool {
	if f.unwanted {
		return false
	}
	if p.room == 0 {
		p.dropped++
		return false
	}
	return true
}

func (p *page) put(f *family, s *series) {
	p.room--
	f.series = append(f.series, s)
}

// newSeries makes one with these labels besides.
func (l *labelled) newSeries(more []device.Label) *series {
	if len(more) == 0 {
		return &series{labels: l.text}
	}
	labels := slices.Concat(l.labels, more)
	sortLabels(labels)
	return &series{labels: labelText(labels)}
}
