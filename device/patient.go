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
	good      int       // checks passed in a row since the verdict
	verdict   verdict
	since     time.Time // when the verdict's reason last changed
	xids      []Xid     // ordered by code; replaced, never written, once posted
}

// verdict is why a GPU cannot be used. The zero verdict is that it can.
type verdict struct {
	reason, action string
	// resets is the GPU's count of resets when the fault came, where only a
	// reset mends it; nil where answering again is enough.
	resets *uint64
}

func xidReason(xid uint64) string { return "xid_" + strconv.FormatUint(xid, 10) }

// due tells whether to check now: at leisure where all is well, soon where there
// is a verdict to lift, or a reading that failed, and at once where the driver has
// said that something is wrong.
func (p *patient) due(now time.Time, failed bool) bool {
	switch {
	case p.urgent:
		return true
	case failed || !p.answered || p.verdict.reason != "":
		return now.Sub(p.checkedAt) >= recheckEvery
	default:
		return now.Sub(p.checkedAt) >= checkEvery
	}
}

// condemn records a fault. One that asks for a reset stands against a later one
// that would heal sooner, and the first of several is the one that is named.
func (p *patient) condemn(v verdict, now time.Time) {
	p.good = 0
	p.answered = true
	stronger := v.resets != nil && p.verdict.resets == nil
	if p.verdict.reason != "" && !stronger {
		if v.resets != nil { // the same GPU failed again since: what it was reset from counts anew
			p.verdict.resets = v.resets
		}
		return
	}
	p.verdict = v
	p.since = now
}

// checked takes the outcome of a check.
func (p *patient) checked(c checkup, now time.Time) {
	if c.err != nil {
		p.condemn(explain(c.err), now)
		return
	}
	if !p.answered {
		p.answered = true
		p.since = now
	}
	if p.verdict.reason == "" || !p.listed {
		return
	}
	if r := p.verdict.resets; r != nil && c.resets == *r {
		return
	}
	if p.good++; p.good >= goodChecksToRun {
		p.verdict = verdict{}
		p.since = now
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

func (p *patient) status(d Device) Status {
	return Status{
		Device: d, Healthy: p.verdict.reason == "", Reason: p.verdict.reason,
		Action: p.verdict.action, Since: p.since, Xids: p.xids,
	}
}
