package device

import (
	"errors"
	"time"
)

// patient is what the Monitor remembers of one GPU.
type patient struct {
	gpu       GPU
	number    int       // of the GPUs, as they were first listed
	first     time.Time // when it was first listed
	verdictBy time.Time // a GPU without a verdict by then does not answer
	listed    bool      // in the newest listing
	device    Device    // the GPU itself, as the newest listing that had it says, without Nodes and Facts
	goneAt    time.Time // since when no listing has it; zero: the newest has
	answered  bool      // a verdict was reached at least once
	checkedAt time.Time // when the newest check began
	checks    uint64    // how many have begun
	resets    uint64    // the GPU's count of them, as far as its checks have told
	odometer  uint64    // likewise; 0: it has not told, or has none
	resumed   time.Time // when it was taken up again without a known odometer; zero: that is settled
	silent    time.Time // when the first check began of those that said no more than that a call hangs; zero: none did
	urgent    bool      // to be checked at once
	condition
	slices  []*ward  // its devices, but for the GPU itself
	hit     []Device // the GPU with its slices; replaced, never written
	tallies []tally  // in the order in which they came
	xids    []Xid    // what is posted of them, ordered by code; replaced, never written
	counted bool     // since xids were made
	said    sayings
}

// sayings are when reports of one kind last made a line of the log: of thousands a
// second most say nothing new. The zero sayings are ready for use.
type sayings map[saying]time.Time

type saying struct {
	device ID
	reason string
}

// due tells whether a report is to make a line, and notes that it does.
func (s *sayings) due(device ID, reason string, now time.Time) bool {
	if *s == nil {
		*s = sayings{}
	}
	kind := saying{device, reason}
	if last, said := (*s)[kind]; said && now.Sub(last) < sayEvery {
		return false
	}
	(*s)[kind] = now
	return true
}

// due tells whether to check now: at leisure where all is well, soon where there
// is a doubt to settle, on the GPU or a slice, or a reading that failed, and at once
// where the driver has said that something is wrong, if it does not do so all the time.
func (p *patient) due(now time.Time, doubtful bool, at rota) bool {
	switch {
	case p.urgent:
		return now.Sub(p.checkedAt) >= urgentEvery
	case doubtful || !p.answered || p.ailing():
		return now.Sub(p.checkedAt) >= recheckEvery
	default:
		return at.due(now, p.checkedAt)
	}
}

// ailing tells whether the GPU or one of its slices is not well.
func (p *patient) ailing() bool {
	for _, w := range p.slices {
		if w.own.health != Well {
			return true
		}
	}
	return p.health != Well
}

// baseline has the GPU's verdict and its slices' know which resets do not mend them.
func (p *patient) baseline(check uint64, now time.Time) (taken bool) {
	taken = p.condition.baseline(check, p.resets, now)
	for _, w := range p.slices {
		taken = w.own.baseline(check, p.resets, now) || taken
	}
	return taken
}

// vital takes what a check tells of resets, and tells whether that is worth being remembered.
func (p *patient) vital(c checkup, now time.Time) bool {
	p.resets = max(p.resets, c.vitals.Resets) // a check that fails may not know the count
	if c.vitals.Odometer != 0 {
		p.odometer = c.vitals.Odometer
	}
	worth := p.baseline(c.number, now)
	worth = p.noticeReset(p.resets, c.vitals.Odometer) || worth
	for _, w := range p.slices {
		worth = w.own.noticeReset(p.resets, c.vitals.Odometer) || worth
	}
	if !p.resumed.IsZero() && (c.err == nil || errors.As(c.err, new(*Fault))) {
		worth = p.assumeReset(p.resumed) || worth
		p.resumed = time.Time{}
	}
	return worth
}

// assumeReset notes a reset of a GPU that has no energy counter, and reports whether a verdict
// of before the given time asked for one. Nothing would show the reset, which is what a release
// is for. The GPU must have answered: a counter that was not read yet is no proof of none.
func (p *patient) assumeReset(resumed time.Time) (any bool) {
	if p.odometer != 0 {
		return false
	}
	assume := func(c *condition) bool {
		return c.verdict.odometer == 0 && !c.verdict.noted.After(resumed) && c.mend()
	}
	any = assume(&p.condition)
	for _, w := range p.slices {
		any = assume(&w.own) || any
	}
	return any
}

// slice finds one of the GPU's; nil where the id is none of theirs.
func (p *patient) slice(id ID) *ward {
	for _, w := range p.slices {
		if w.ID == id {
			return w
		}
	}
	return nil
}
