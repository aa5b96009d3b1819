package incident

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// sameWithin is how long after a report another one of the same is the same incident.
	sameWithin = time.Minute
	// trustAfter is how long a process runs before it believes by the clock that something is
	// old: a clock that is ahead when the node boots must not erase the history.
	trustAfter = 24 * time.Hour
	// mostNamed bounds the holders of all incidents together, and so the size of the file.
	mostNamed = 8192
)

// book is all that is remembered. It has no lock and reads no clock: its owner brings both.
type book struct {
	most  int           // of incidents
	keep  time.Duration // since the last report
	began time.Time     // when the process did

	entries []*entry // by ID
	latest  map[kind]*entry
	totals  tallies // by device and reason
	hits    tallies // and by owner
	last    uint64  // the newest ID
	named   int     // holders of all entries

	version uint64 // counts changes
	urgent  bool   // a device turned unhealthy since the last snapshot
}

// kind is what makes two reports the same.
type kind struct {
	device device.ID
	reason string
}

// entry is an incident, and what is known of it beside. What Holders and the pointers of
// the Incident point to is never written, since it was published.
type entry struct {
	Incident
	// rows are the device's holdings when it was taken down.
	rows []device.Holding
	// unnamed are those of them whose owner is looked for until amendBy.
	unnamed []device.Holding
	amendBy time.Time

	told  time.Time // when the newest report was taken down; zero: by an earlier process
	total *tally
	hits  []*tally // of each holder
	over  []bool   // whether more will be known of the end of each

	earlier bool // it is an earlier process's
}

func newBook(o Options, now time.Time) *book {
	return &book{most: o.MaxIncidents, keep: o.MaxAge, began: now, latest: map[kind]*entry{}}
}

// load takes what an earlier process has left. It is called once, before anything happens.
func (b *book) load(s snapshot) {
	for _, i := range slices.Backward(s.incidents) {
		b.entries = append(b.entries, &entry{Incident: i, over: make([]bool, len(i.Holders)), earlier: true})
		b.last, b.named = i.ID, b.named+len(i.Holders)
	}
	for _, c := range s.devices {
		*b.totals.of(tallied{device: c.Device, reason: c.Reason}) = tally{
			tallied{device: c.Device, reason: c.Reason}, c.GPU, c.Index, c.Count, c.Last,
		}
	}
	for _, h := range s.hits {
		what := tallied{h.Device, h.Owner, h.Reason}
		*b.hits.of(what) = tally{what, h.GPU, h.Index, h.Count, h.Last}
	}
	b.shrink()
	b.changed()
}

func (b *book) changed() { b.version++ }

// happened takes down an occurrence: once for each device that a container can hold. A
// partitioned GPU is none, unless it has no slice that could stand for it, or is held:
// NVIDIA's plugin gives it away where it offers no slices.
func (b *book) happened(o *device.Occurrence, h *device.Holders, now time.Time) {
	others := slices.ContainsFunc(o.Hit, func(d device.Device) bool { return !d.MIG })
	for i := range o.Hit {
		if d := &o.Hit[i]; !d.MIG || !others || len(h.Rows(d.ID)) > 0 {
			b.hit(o, d, h, now)
		}
	}
}

func (b *book) hit(o *device.Occurrence, d *device.Device, h *device.Holders, now time.Time) {
	e := b.latest[kind{d.ID, o.Reason}]
	if e != nil && len(e.unnamed) > 0 {
		b.amend(e, h, now)
	}
	if e == nil || !e.continues(o, h) {
		e = b.begin(o, d, h, now)
	}
	b.count(e, o, now)
}

// continues tells whether a report is of the same as the entry.
func (e *entry) continues(o *device.Occurrence, h *device.Holders) bool {
	return !e.earlier && e.Past == o.Past && e.Healed == nil && o.At.Sub(e.Last) <= sameWithin &&
		slices.Equal(h.Rows(e.Device), e.rows) && !e.replaced(o, h)
}

// replaced tells whether a holder has got the device since the last report: one of the same
// name as before, as a StatefulSet's next pod has it.
func (e *entry) replaced(o *device.Occurrence, h *device.Holders) bool {
	return slices.ContainsFunc(seenWith(h.Recent, e.Device), func(s device.Seen) bool {
		return s.Ended.IsZero() && s.First.After(e.Last) && !s.First.After(o.At)
	})
}

// begin takes down a new incident, without its first report.
func (b *book) begin(o *device.Occurrence, d *device.Device, h *device.Holders, now time.Time) *entry {
	b.last = max(b.last+1, uint64(max(now.UnixMilli(), 0)))
	e := &entry{Incident: Incident{
		ID: b.last, First: o.At, Last: o.At,
		Device: d.ID, GPU: d.GPU, Index: d.Index, Profile: d.Profile, Model: d.Model, PCI: d.PCI,
		Reason: o.Reason, Xid: o.Xid, Class: o.Class, Action: o.Action, Witness: o.Witness, Past: o.Past,
	}}
	e.total = b.totals.of(tallied{device: d.ID, reason: o.Reason})
	e.rows = slices.Clone(h.Rows(d.ID))
	b.attribute(e, h, now)
	b.entries = append(b.entries, e)
	b.latest[kind{d.ID, o.Reason}] = e
	b.shrink()
	return e
}

// count takes one report down. It allocates nothing: there may be many.
func (b *book) count(e *entry, o *device.Occurrence, now time.Time) {
	e.Count++
	e.told = now
	if o.At.Before(e.First) {
		e.First = o.At
	}
	if o.At.After(e.Last) {
		e.Last = o.At
	}
	e.Condemned = e.Condemned || o.Condemned
	b.urgent = b.urgent || o.Condemned
	if !e.Past { // history is no increase
		e.total.add(e, 1, o.At)
	}
	for _, t := range e.hits {
		t.add(e, 1, o.At)
	}
	b.changed()
}

// add gives an incident another holder.
func (b *book) add(e *entry, h Holder) {
	e.Holders = append(slices.Clone(e.Holders), h)
	e.over = append(e.over, false)
	b.named++
	t := b.hits.of(tallied{e.Device, h.owner(), e.Reason})
	e.hits = append(e.hits, t)
	if e.Count > 0 {
		t.add(e, e.Count, e.Last)
	}
	b.changed()
}

func (h Holder) owner() device.Owner {
	return device.Owner{Namespace: h.Namespace, Pod: h.Pod, Container: h.Container}
}

// drop forgets an incident, but not what it has added to the counts.
func (b *book) drop(e *entry) {
	if b.latest[kind{e.Device, e.Reason}] == e {
		delete(b.latest, kind{e.Device, e.Reason})
	}
	b.named -= len(e.Holders)
}

// shrink drops the oldest of too many; those of devices that are not healthy again go
// last, and the newest stays.
func (b *book) shrink() {
	for len(b.entries) > b.most || b.named > mostNamed {
		i := max(0, slices.IndexFunc(b.entries[:len(b.entries)-1], func(e *entry) bool { return !e.open() }))
		b.drop(b.entries[i])
		b.entries = slices.Delete(b.entries, i, i+1)
	}
}

// open tells whether the device is still what the incident made of it.
func (e *entry) open() bool { return e.Condemned && e.Healed == nil }

// prune drops what is too old. Counts of devices that are there stay.
func (b *book) prune(there func(device.ID) bool, now time.Time) {
	before := len(b.entries)
	b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool {
		if !b.old(e.Last, now) {
			return false
		}
		b.drop(e)
		return true
	})
	totals := b.totals.prune(func(t *tally) bool { return b.old(t.last, now) && !there(t.what.device) })
	hits := b.hits.prune(func(t *tally) bool { return b.old(t.last, now) })
	if totals || hits || len(b.entries) != before {
		b.changed()
	}
}

// old reports whether something that last happened at a time is to be forgotten. A clock that
// is ahead when the process starts, or is set ahead later, does not make anything old: the
// process must have run for a while, and its own time must agree.
func (b *book) old(last, now time.Time) bool {
	ran := now.Sub(b.began) // by the monotonic clock
	return ran >= min(b.keep, trustAfter) && earliest(now.Round(0), b.began.Round(0).Add(ran)).Sub(last) > b.keep
}

// heal notes which devices are healthy again.
func (b *book) heal(statuses []device.Status, now time.Time) {
	for _, e := range b.entries {
		if !e.open() {
			continue
		}
		i := slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == e.Device })
		if i < 0 || !statuses[i].Healthy {
			continue
		}
		// What is on the board may be from before the report; of an earlier process' report
		// it is not.
		switch since := statuses[i].Since; {
		case since.After(latest(e.Last, e.told)):
			e.Healed = &since
		case e.earlier:
			e.Healed = &now
		default:
			continue
		}
		b.changed()
	}
}

// snapshot is all that is remembered, at one moment. It is never written.
func (b *book) snapshot() (s snapshot) {
	s.incidents = make([]Incident, len(b.entries))
	for i, e := range b.entries {
		s.incidents[len(s.incidents)-1-i] = e.Incident
	}
	s.devices = make([]Count, 0, len(b.totals.rows))
	for _, t := range b.totals.rows {
		if !t.last.IsZero() { // else there were incidents of the past alone
			s.devices = append(s.devices, Count{Device: t.what.device, GPU: t.gpu, Index: t.index, Reason: t.what.reason, Count: t.count, Last: t.last})
		}
	}
	s.hits = make([]Hit, len(b.hits.rows))
	for i, t := range b.hits.rows {
		s.hits[i] = Hit{Device: t.what.device, GPU: t.gpu, Index: t.index, Owner: t.what.owner, Reason: t.what.reason, Count: t.count, Last: t.last}
	}
	return s
}
