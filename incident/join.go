package incident

import (
	"slices"
	"time"
)

// sameReport is how far apart two processes may take down one report of the driver.
const sameReport = time.Second

// contents is what a store has.
type contents struct {
	incidents []Incident // by ID
	counts    []record
	// salvaged says that they are what could be read of a store that was broken, and that
	// the new one has nothing.
	salvaged bool
}

// join takes in what the store has. That may be what an earlier process has left, what
// another one has written while this one could not, or what this one has written itself
// before the disk failed it.
func (b *book) join(found contents) {
	there := map[*tally]bool{}
	for _, r := range found.counts {
		what := r.what()
		t := b.talliesOf(what).of(what)
		if t.tried > 0 && r.Count >= t.tried {
			t.stored = t.tried
		}
		t.count += max(r.Count, t.stored) - t.stored // it never falls, whatever file that is
		if !r.Last.Before(t.last) {
			t.gpu, t.index = r.GPU, r.Index
		}
		t.stored, t.tried, t.last = r.Count, 0, latest(t.last, r.Last)
		there[t] = true
	}
	for _, t := range slices.Concat(b.totals.rows, b.hits.rows) {
		if !there[t] {
			t.stored = 0
		}
	}
	joined := map[*entry]bool{}
	for _, i := range found.incidents {
		if !slices.Contains(b.gone, i.ID) {
			joined[b.joinIncident(i)] = true
		}
	}
	for _, e := range b.entries {
		e.stored = joined[e]
	}
	if found.salvaged {
		b.unstore()
	}
	for _, e := range b.entries {
		if !e.stored {
			b.touch(e)
		}
	}
	for _, ts := range []*tallies{&b.totals, &b.hits} {
		for _, t := range ts.rows {
			if t.count != t.stored {
				ts.touch(t)
			}
		}
	}
	b.shrink()
	b.changed()
}

// joinIncident takes in one of the store's, and returns what stands for it.
func (b *book) joinIncident(i Incident) *entry {
	b.last = max(b.last, i.ID)
	at, found := slices.BinarySearchFunc(b.entries, i.ID, byID)
	same := found && b.entries[at].Device == i.Device && b.entries[at].Reason == i.Reason
	switch {
	case same && b.entries[at].stored:
		b.touch(b.entries[at]) // it may be another by now
		return b.entries[at]
	case same:
		return b.combine(b.entries[at], i)
	case found: // another process took it down in the same millisecond
		b.renumber(b.entries[at])
		return b.joinIncident(i)
	}
	if twin := b.twin(i); twin != nil {
		return b.combine(twin, i)
	}
	e := &entry{Incident: i, over: make([]bool, len(i.Holders)), earlier: true, stored: true}
	b.entries = slices.Insert(b.entries, at, e)
	return e
}

// twin is what this process has taken down of the report that another one has in the store.
func (b *book) twin(i Incident) *entry {
	for _, e := range b.entries {
		if !e.stored && e.Device == i.Device && e.Reason == i.Reason &&
			!e.First.After(i.Last.Add(sameReport)) && !i.First.After(e.Last.Add(sameReport)) {
			return e
		}
	}
	return nil
}

// combine makes one of both: it was counted twice.
func (b *book) combine(e *entry, i Incident) *entry {
	both := min(e.Count, i.Count)
	if e.Past { // neither was counted
		both = 0
	}
	e.total.count -= min(both, e.total.count-e.total.stored)
	for k, h := range e.Holders {
		if slices.ContainsFunc(i.Holders, func(o Holder) bool { return o.owner() == h.owner() }) {
			t := e.hits[k]
			t.count -= min(both, t.count-t.stored)
		}
	}
	e.First, e.Last, e.Count = earliest(e.First, i.First), latest(e.Last, i.Last), max(e.Count, i.Count)
	e.Condemned = e.Condemned || i.Condemned
	for _, h := range i.Holders {
		if !slices.ContainsFunc(e.Holders, func(o Holder) bool { return o.owner() == h.owner() }) {
			e.Holders = append(slices.Clone(e.Holders), h)
			e.over = append(e.over, false)
			e.hits = append(e.hits, b.hits.of(tallied{e.Device, h.owner(), e.Reason}))
		}
	}
	b.entries = slices.DeleteFunc(b.entries, func(o *entry) bool { return o == e })
	e.ID, e.stored = i.ID, true
	at, _ := slices.BinarySearchFunc(b.entries, e.ID, byID)
	b.entries = slices.Insert(b.entries, at, e)
	b.touch(e)
	return e
}

// renumber gives an incident an ID that is free.
func (b *book) renumber(e *entry) {
	b.last++
	b.entries = append(slices.DeleteFunc(b.entries, func(o *entry) bool { return o == e }), e)
	e.ID = b.last
	b.touch(e)
}

// unstore notes that the store has nothing.
func (b *book) unstore() {
	for _, e := range b.entries {
		e.stored = false
	}
	for _, t := range slices.Concat(b.totals.rows, b.hits.rows) {
		t.stored = 0
	}
}
