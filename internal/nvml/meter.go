package nvml

import "time"

// meter makes one number that only rises of counters that may wrap, begin again with
// the driver, or be missing for a while, as those of single links are. It lives as long
// as the process: that a GPU is listed anew must not look as if it had been reset.
type meter struct {
	source int // which of its row's sources it follows
	counts []count
	resets uint64    // of the GPU, when it was last looked at
	at     time.Time // when what was taken last was read
	began  bool
	total  float64
}

// count is one of its counters, in base units.
type count struct {
	last float64
	seen bool
}

// follow begins a look at n counters. A counter that was not there before counts for
// what it rises by from now on; only the first time do all count in full.
func (m *meter) follow(source, n int) {
	if m.source != source || len(m.counts) != n {
		m.source, m.counts = source, make([]count, n)
	}
}

// beginAgain has all counters begin again at 0, also those that are missing just now.
func (m *meter) beginAgain() {
	for i := range m.counts {
		m.counts[i].last = 0
	}
}

// take adds what the i-th counter rose by. That it went down is a wrap, unless it would
// have had to rise by more than most for that: then it has begun again at 0, as the
// errors of links do when somebody sets them to 0.
func (m *meter) take(i int, now, wraps, most float64) {
	c := &m.counts[i]
	rose := now - c.last
	switch {
	case !c.seen && m.began:
		rose = 0
	case rose < 0 && wraps > 0 && rose+wraps <= most:
		rose += wraps
	case rose < 0:
		rose = now
	}
	m.total += rose
	c.last, c.seen = now, true
}

// metered is the row's counter, read off its meter. ok is false where none of its
// counters gave a value.
func (g *gpu) metered(i int, source int, ref ref, now time.Time) (total float64, ok bool) {
	r, f := &g.catalogue.rows[i], g.fieldsOf(&g.catalogue.rows[i])
	if r.slow { // a value is as old as its reading
		now = g.slowAsked
	}
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	m := g.history.meters[i]
	if m == nil {
		m = &meter{}
		g.history.meters[i] = m
	}
	most := r.most * max(now.Sub(m.at).Seconds()+1, 0)
	u := r.sources[source].unit
	for k := range ref.n {
		raw, given := f.value(ref.at + k)
		v, sound := u.convert(raw)
		if !given || !sound {
			continue
		}
		if !ok { // a source that gives nothing this once is not followed
			m.follow(source, ref.n)
			if m.resets != g.resets {
				m.beginAgain()
			}
			ok = true
		}
		m.take(k, v, f.wraps(ref.at+k)*u.times/u.per, most)
	}
	if ok {
		m.began, m.at, m.resets = true, now, g.resets
	}
	return m.total, ok
}
