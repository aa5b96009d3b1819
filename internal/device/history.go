package device

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

const (
	// rememberedMost bounds the records of absent devices. Age does not: a clock that is
	// ahead must not erase them.
	rememberedMost = 256
	// rememberEvery is how often the odometers of those that wait for a reset are noted.
	rememberEvery = time.Minute
	// provenBy is how long the first post waits for those on probation.
	provenBy = 30 * time.Second
)

// History is what one process tells the next of the devices' health. It is never written
// after it was handed over.
type History struct {
	Records []Record
	// Rebooted says that the node was booted since: a reset of all that is in it.
	Rebooted bool
	// Lost says that something was remembered and cannot be told: then no device is trusted
	// before it has passed its checks. It is handed on until they have.
	Lost bool
}

// Record is what is remembered of a GPU with all that it has, or of a slice by itself.
type Record struct {
	GPU    GPU
	Device ID // the slice; empty: the GPU
	// Reason is why it cannot be used; empty where it can, and the next ones are, too.
	Reason, Action, Class string
	Since                 time.Time // when it turned so
	At                    time.Time // when the newest fault of that kind came
	Seen                  time.Time // when it was last there, or, of a slice, there and so
	ByReset               bool      // only a reset mends it
	ByPolicy              bool      // since the operator wants it so
	Reset                 bool      // and one was seen since
	Odometer              uint64    // the GPU's, of Vitals, since then; 0 where it is not known
	Flaps                 uint64    // as in Status
	Turns                 []time.Time
	// Again is the last fault that asked for a reset, and how many have followed it.
	Again Relapse
	// Listed is what the newest listing had of a GPU, without its Nodes and Facts; the zero
	// Device if that is not known. Gone is since when no listing has had it; zero: it was
	// there when the record was made.
	Listed Device
	Gone   time.Time
	// booted says that the node was since it was written.
	booted bool
	// Xids are the GPU's counts. They, and Flaps, continue from the process before: none may be
	// less than a scrape has shown, unless it is 0, since Prometheus takes all of a counter that
	// fell for an increase.
	Xids []Xid
}

type recordKey struct {
	gpu    GPU
	device ID
}

// recall takes what was remembered, until a listing shows whom it is about.
func (m *Monitor) recall() {
	for _, r := range m.Remembered.Records {
		if r.booted = m.Remembered.Rebooted; r.booted {
			r.mend()
		}
		m.recalled[recordKey{r.GPU, r.Device}] = r
	}
	m.recount()
	m.careful = m.Remembered.Rebooted || m.Remembered.Lost
	m.lost = m.Remembered.Lost
	m.changed = m.lost // who set it aside has told nobody else
}

// mend notes a reset.
func (r *Record) mend() {
	if !r.ByReset || r.Reset {
		return
	}
	r.Reset = true
	if r.Again.Reason == r.Reason {
		r.Again.Resets++
	}
}

// mendAbsent notes a reset of a GPU, which its odometer shows, on what is remembered of its
// slices that are not there. It tells whether there is any: a reset takes them all away, and
// when one is back the odometer may be as far as before.
func (m *Monitor) mendAbsent(gpu GPU, odometer uint64) (any bool) {
	for key, r := range m.recalled {
		if key.gpu == gpu && odometer != 0 && odometer < r.Odometer && r.ByReset && !r.Reset {
			r.mend()
			m.recalled[key], any = r, true
		}
	}
	return any
}

// takeRecord has a GPU or a slice that is listed for the first time go on where it was.
func (m *Monitor) takeRecord(p *patient, c *condition, id ID, now time.Time) {
	key := recordKey{p.gpu, id}
	r, known := m.recalled[key]
	if r.Reason == "" && m.Remembered.Lost && c == &p.condition { // a known record may be old
		c.health, c.verdict = Probation, verdict{reason: "unproven", quiet: true, since: now}
	}
	if !known {
		return
	}
	delete(m.recalled, key)
	c.flaps = r.Flaps
	c.turns = slices.DeleteFunc(slices.Clone(r.Turns), func(at time.Time) bool { return at.After(now) })
	if r.Since.After(now) { // the clock was set
		r.Since = now
	}
	c.relapse = r.Again
	if c == &p.condition {
		for _, x := range r.Xids {
			if x.Last.After(now) { // the clock was set
				x.Last = now
			}
			if t := p.tally(Event{Xid: x.Code}); t != nil {
				t.Xid = x
			}
		}
		m.publish(p)
	}
	if r.Reason == "" {
		return
	}
	c.health, c.mended = Unhealthy, r.ByReset && r.Reset
	c.verdict = verdict{
		reason: r.Reason, action: r.Action, class: r.Class, byReset: r.ByReset, byPolicy: r.ByPolicy,
		since: r.Since, at: r.At, noted: now, checks: p.checks, odometer: r.Odometer,
	}
	if r.booted { // else it is for a check to say that it is over: a repair may still wait
		c.health = Probation
	}
	if c == &p.condition && c.health == Unhealthy {
		p.answered = true
	}
	m.log.Info("health is remembered", "gpu", p.gpu, "device", id, "is", r.Reason, "since", r.Since, "reset", r.Reset)
}

// takeAbsent puts on the Board each GPU that is remembered and that the listing lacks: an
// earlier process had it, and a kubelet that is not told of it takes it for healthy. It is
// forgotten as any that is gone; one that was gone for long before comes if it is held.
func (m *Monitor) takeAbsent(now time.Time) {
	for key, r := range m.recalled {
		if r.Gone.IsZero() || r.Gone.After(now) { // the clock was set
			r.Gone = now
		}
		id := r.Listed.ID
		old := now.Sub(r.Gone) >= gpuKeptFor
		if key.device != "" || id == "" || m.patients[r.GPU] != nil || old && !m.held(id) {
			continue
		}
		p := &patient{gpu: r.GPU, number: len(m.patients), first: now, device: r.Listed, hit: []Device{r.Listed}, goneAt: r.Gone}
		m.patients[r.GPU] = p
		m.takeRecord(p, &p.condition, "", now)
		m.wards = append(m.wards, &ward{Device: r.Listed, patient: p, goneAt: r.Gone})
		m.log.Warn("GPU is not listed, and was there before", "gpu", r.GPU, "index", r.Listed.Index, "pci", r.Listed.PCI, "gone", r.Gone)
	}
}

// record is what is to be remembered of a GPU or a slice; false where nothing is.
func (p *patient) record(c *condition, id ID, now time.Time) (r Record, any bool) {
	r = Record{GPU: p.gpu, Device: id, Flaps: c.flaps, Turns: slices.Clone(c.turns), Again: c.relapse}
	if v := c.verdict; v.reason != "" && !v.quiet {
		r.Reason, r.Action, r.Class, r.Since, r.At, r.Seen = v.reason, v.action, v.class, v.since, v.at, now
		r.ByReset, r.ByPolicy, r.Reset, r.Odometer = v.byReset, v.byPolicy, c.mended, v.odometer
		// What was read before the fault may be from before a reset that came before it, too.
		if p.odometer != 0 && v.resets != nil {
			r.Odometer = p.odometer
		}
	}
	if c == &p.condition {
		for _, t := range p.tallies {
			if t.Code != 0 {
				r.Xids = append(r.Xids, t.Xid)
			}
		}
		r.Listed, r.Gone, r.Seen = p.device, p.goneAt, now
		if !p.goneAt.IsZero() {
			r.Seen = p.goneAt
		}
	}
	return r, r.Listed.ID != "" || r.Reason != "" || r.Flaps > 0 || len(r.Turns) > 0 || r.Again.Reason != "" || len(r.Xids) > 0
}

// last is when anything was last heard of it. How old a verdict is says nothing of that.
func (r Record) last() time.Time {
	last := r.At
	for _, at := range append(slices.Clone(r.Turns), r.Again.At, r.Seen) {
		last = latest(last, at)
	}
	for _, x := range r.Xids {
		last = latest(last, latest(x.Last, x.Past))
	}
	return last
}

// put keeps what is remembered of a device that is forgotten: it may come back, and what
// was wrong with it has not gone by that.
func (m *Monitor) put(p *patient, c *condition, id ID, now time.Time) {
	if r, any := p.record(c, id, now); any {
		m.recalled[recordKey{p.gpu, id}] = r
	}
	for len(m.recalled) > rememberedMost {
		m.forgetOldest()
	}
}

// forgetOldest forgets the absent device of which nothing was heard for the longest time.
func (m *Monitor) forgetOldest() {
	absent := slices.Collect(maps.Values(m.recalled))
	r := slices.MinFunc(absent, func(a, b Record) int { return cmp.Or(a.last().Compare(b.last()), a.compare(b)) })
	delete(m.recalled, recordKey{r.GPU, r.Device})
}

// remember hands over what the next process has to know: at once where a verdict has
// changed, and a moment later what is but a count, of which there may be many.
func (m *Monitor) remember(now time.Time) {
	due := m.changed || m.tallied && now.Sub(m.rememberedAt) >= tickEvery ||
		now.Sub(m.rememberedAt) >= rememberEvery && m.awaitsReset()
	if m.Remember == nil || !due {
		return
	}
	m.changed, m.tallied, m.rememberedAt = false, false, now
	m.Remember(m.history(now))
}

// rememberLast hands over how it all ended, counts included, and with what was told but not
// read: to the next process that is past, and condemns nobody.
func (m *Monitor) rememberLast() {
	now := time.Now()
	select {
	case r := <-m.events:
		m.reported(r, now)
	default:
	}
	m.readUntil(now, now)
	m.changed = true
	m.remember(now)
}

// awaitsReset tells whether a verdict would be lifted by a reset that only the odometer
// shows to a later process.
func (m *Monitor) awaitsReset() bool {
	for _, w := range m.wards {
		for _, c := range []*condition{&w.own, &w.patient.condition} {
			if c.verdict.byReset && !c.mended {
				return true
			}
		}
	}
	return false
}

// history is what is remembered now, ordered by GPU and device.
func (m *Monitor) history(now time.Time) History {
	records := slices.Collect(maps.Values(m.recalled))
	for _, p := range m.patients {
		if r, any := p.record(&p.condition, "", now); any {
			records = append(records, r)
		}
		for _, w := range p.slices {
			if r, any := p.record(&w.own, w.ID, now); any {
				records = append(records, r)
			}
		}
	}
	slices.SortFunc(records, Record.compare)
	return History{Records: records, Lost: m.lost}
}

// record finds a device's; the zero Record if there is none. Records are in order.
func (h *History) record(gpu GPU, id ID) Record {
	if h == nil {
		return Record{}
	}
	i, found := slices.BinarySearchFunc(h.Records, Record{GPU: gpu, Device: id}, Record.compare)
	if !found {
		return Record{}
	}
	return h.Records[i]
}

// count finds an Xid's.
func (r Record) count(code uint64) uint64 {
	i := slices.IndexFunc(r.Xids, func(x Xid) bool { return x.Code == code })
	if i < 0 {
		return 0
	}
	return r.Xids[i].Count
}

func (r Record) compare(o Record) int {
	return cmp.Or(cmp.Compare(r.GPU, o.GPU), cmp.Compare(r.Device, o.Device))
}

// proving tells whether the first post is to wait for a device: after a boot, and where
// nobody knows what was wrong before, those on probation are soon known to be well or not.
// A kubelet that is told of one as unhealthy in its first list turns the pods away that
// hold it. One that has flapped takes longer, and is not waited for.
func (m *Monitor) proving(w *ward, now time.Time) bool {
	if !m.careful || now.Sub(w.patient.first) >= provenBy {
		return false
	}
	c := &w.own
	if w.patient.health != Well {
		c = &w.patient.condition
	}
	return c.health == Probation && c.probation(now) < provenBy-5*time.Second
}
