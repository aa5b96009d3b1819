package device

import (
	"context"
	"slices"
	"time"
)

// linksAgainAfter is how long after a reading of the links that was not whole, or that
// failed, they are read again.
const linksAgainAfter = time.Minute

// wiring is what the Monitor remembers of the links' readings.
type wiring struct {
	gpus  []GPU     // that were listed when they were last wanted
	next  time.Time // when they are due; zero: not before the GPUs change
	since time.Time // when the running reading began; zero: none runs
	err   string    // of the newest: the same one is said once
}

// linking is what a reading gave.
type linking struct {
	links []Link
	err   error
}

// Links are how the GPUs are connected, as read once for each set of GPUs: nil before
// the first reading, and where the Backend is no Linker. They must not be changed.
func (m *Monitor) Links() []Link {
	if links := m.links.Load(); links != nil {
		return *links
	}
	return nil
}

// want makes the links due when a listing has other GPUs than the one before.
func (w *wiring) want(devices []Device, now time.Time) {
	var gpus []GPU
	for _, d := range devices {
		if d.WholeGPU() {
			gpus = append(gpus, d.GPU)
		}
	}
	slices.Sort(gpus)
	if !slices.Equal(gpus, w.gpus) {
		w.gpus, w.next = gpus, now
	}
}

// startLinks has the links read where they are due. It takes the listing's turn: who
// knows for how long the driver keeps a thread, and one is enough for both.
func (m *Monitor) startLinks(ctx context.Context, now time.Time) {
	linker, can := m.backend.(Linker)
	if !can || m.wiring.next.IsZero() || now.Before(m.wiring.next) {
		return
	}
	m.wiring.since, m.wiring.next = now, time.Time{}
	m.calls.Go(func() {
		links, err := linker.Links(ctx)
		m.linked <- linking{links, err}
	})
}

// wired takes what a reading gave. What it could not tell is asked for again.
func (m *Monitor) wired(l linking, now time.Time) {
	m.wiring.since = time.Time{}
	if errText(l.err) != m.wiring.err {
		m.wiring.err = errText(l.err)
		m.log.Warn("read the links between GPUs", "links", len(l.links), "err", l.err)
	}
	if l.err != nil && m.wiring.next.IsZero() {
		m.wiring.next = now.Add(linksAgainAfter)
	}
	if l.links != nil {
		m.links.Store(&l.links)
	}
}
