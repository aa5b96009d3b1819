package nvml

import "time"

// meter makes one number that only rises of counters that may wrap, begin again with
// the driver, or be missing for a while, as those of single links are. It lives as long
// as the process: that a GPU is listed anew must not look as if it had been reset.
type meter struct {
	source int // which of its row's sources it follows
	counts []count
	resets uint64 // of the GPU, when it was last looked at
	at     time.Time
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

// take adds what the i-th counter rose by. That it went down is a wrap, unless the GPU
// was reset meanwhile, or it would have had to count faster than most in a second: then
// it has begun again at 0.
func (m *meter) take(i int, now, wraps, most float64, reset bool) {
	c := &m.counts[i]
	rose := now - c.last
	switch {
	case !c.seen && m.began:
		rose = 0
	case !c.seen || reset:
		rose = now
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
	g.history.mu.Lock()
	defer g.history.mu.Unlock()
	m := g.history.meters[i]
	if m == nil {
		m = &meter{}
		g.history.meters[i] = m
	}
	m.follow(source, ref.n)
	resets := g.history.resets.Load()
	reset := m.began && resets != m.resets
	most := r.most * (now.Sub(m.at).Seconds() + 1)
	u := r.sources[source].unit
	for k := range ref.n {
		raw, given := f.value(ref.at + k)
		v, sound := u.convert(raw)
		if !given || !sound {
			continue
		}
		m.take(k, v, f.wraps(ref.at+k)*u.times/u.per, most, reset)
		ok = true
	}
	if ok {
		m.began, m.at, m.resets = true, now, resets
	}
	return m.total, ok
}
