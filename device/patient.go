package device

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"
)

// patient is what the Monitor remembers of one GPU.
type patient struct {
	first     time.Time // when it was first listed
	listed    bool      // in the newest listing
	answered  bool      // a verdict was reached at least once
	checkedAt time.Time // when the newest check began
	urgent    bool      // to be checked at once
	condition
	xids []Xid // ordered by code; replaced, never written, once posted
}

// condition is a verdict, and what speaks for lifting it.
type condition struct {
	verdict verdict
	good    int // checks of the GPU passed in a row since
}

// verdict is why something cannot be used. The zero verdict is that it can.
type verdict struct {
	reason, action string
	// resets is the GPU's count of resets when the fault came, where only a
	// reset mends it; nil where answering again is enough.
	resets *uint64
}

func xidReason(xid uint64) string { return "xid_" + strconv.FormatUint(xid, 10) }

// due tells whether to check now: at leisure where all is well, soon where there
// is a verdict to lift, on the GPU or a slice, or a reading that failed, and at once
// where the driver has said that something is wrong.
func (p *patient) due(now time.Time, doubtful bool) bool {
	switch {
	case p.urgent:
		return true
	case doubtful || !p.answered || p.verdict.reason != "":
		return now.Sub(p.checkedAt) >= recheckEvery
	default:
		return now.Sub(p.checkedAt) >= checkEvery
	}
}

// condemn records a fault. One that asks for a reset stands against a later one
// that would heal sooner, and the first of several is the one that is named.
func (c *condition) condemn(v verdict) {
	c.good = 0
	stronger := v.resets != nil && c.verdict.resets == nil
	if c.verdict.reason != "" && !stronger {
		if v.resets != nil { // it failed again since: what it was reset from counts anew
			c.verdict.resets = v.resets
		}
		return
	}
	c.verdict = v
}

// condemn also is an answer to the question how the GPU is.
func (p *patient) condemn(v verdict) {
	p.answered = true
	p.condition.condemn(v)
}

// passed takes a check that found nothing.
func (c *condition) passed(resets uint64) {
	if c.verdict.reason == "" {
		return
	}
	if r := c.verdict.resets; r != nil && resets == *r {
		return
	}
	if c.good++; c.good >= goodChecksToRun {
		*c = condition{}
	}
}

// checked takes the outcome of a check.
func (p *patient) checked(c checkup) {
	if c.err != nil {
		p.condemn(explain(c.err))
		return
	}
	p.answered = true
	if p.listed {
		p.passed(c.resets)
	}
}

// explain turns what a check says into a verdict.
func explain(err error) verdict {
	var f *Fault
	switch {
	case errors.As(err, &f):
		return verdict{reason: f.Reason, action: f.Action}
	case errors.Is(err, ErrLost):
		return verdict{reason: "lost", action: "reboot"}
	default:
		return verdict{reason: "check_failed"}
	}
}

func (p *patient) count(code uint64, now time.Time) {
	i, found := slices.BinarySearchFunc(p.xids, code, func(x Xid, code uint64) int { return cmp.Compare(x.Code, code) })
	xids := slices.Clone(p.xids)
	if !found {
		xids = slices.Insert(xids, i, Xid{Code: code})
	}
	xids[i].Count++
	xids[i].Last = now
	p.xids = xids
}
