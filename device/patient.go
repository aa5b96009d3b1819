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
	checks    uint64    // how many have begun
	resets    uint64    // the GPU's count of them, as far as its checks have told
	urgent    bool      // to be checked at once
	condition
	xids []Xid // ordered by code; replaced, never written, once posted
	said sayings
}

// sayings are when reports of one kind last made a line of the log: of thousands a
// second most say nothing new. The zero sayings are ready for use.
type sayings map[saying]time.Time

type saying struct {
	device ID
	xid    uint64
}

// due tells whether a report is to make a line, and notes that it does.
func (s *sayings) due(device ID, xid uint64, now time.Time) bool {
	if *s == nil {
		*s = sayings{}
	}
	kind := saying{device, xid}
	if last, said := (*s)[kind]; said && now.Sub(last) < sayEvery {
		return false
	}
	(*s)[kind] = now
	return true
}

// condition is a verdict, and what speaks for lifting it.
type condition struct {
	verdict verdict
	good    int // checks of the GPU passed in a row since
}

// verdict is why something cannot be used. The zero verdict is that it can.
type verdict struct {
	reason, action string
	// byReset says that only a reset mends it; else answering again is enough.
	byReset bool
	// at is when a fault that wants a reset came, and checks is how many had begun by
	// then. resets is the count of resets that do not mend it; nil: not known yet.
	at     time.Time
	checks uint64
	resets *uint64
}

func xidReason(xid uint64) string { return "xid_" + strconv.FormatUint(xid, 10) }

// due tells whether to check now: at leisure where all is well, soon where there
// is a verdict to lift, on the GPU or a slice, or a reading that failed, and at once
// where the driver has said that something is wrong, if it does not do so all the time.
func (p *patient) due(now time.Time, doubtful bool) bool {
	switch {
	case p.urgent:
		return now.Sub(p.checkedAt) >= urgentEvery
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
	stronger := v.byReset && !c.verdict.byReset
	if c.verdict.reason != "" && !stronger {
		if v.byReset { // it failed again since: what it was reset from counts anew
			c.verdict.at, c.verdict.checks, c.verdict.resets = v.at, v.checks, nil
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

// baseline takes the count of resets that the newest check to have ended knows. A reset
// is seen by the first check that comes after it, and the driver may report a fault
// between the two: so the count that mends nothing is that of a check which began after
// the fault. Where none does for a while, since calls hang, the reset that is seen next
// is taken for one that was made because of the fault.
func (c *condition) baseline(check, resets uint64, now time.Time) {
	v := &c.verdict
	if v.byReset && v.resets == nil && (check > v.checks || now.Sub(v.at) > baselineBy) {
		known := resets // else resets would be on the heap at each turn of the loop
		v.resets = &known
	}
}

// passed takes a check that found nothing.
func (c *condition) passed(resets uint64) {
	v := c.verdict
	if v.reason == "" || v.byReset && (v.resets == nil || resets == *v.resets) {
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

// count counts a report, and returns how many there were of its kind.
func (p *patient) count(code uint64, now time.Time) uint64 {
	i, found := slices.BinarySearchFunc(p.xids, code, func(x Xid, code uint64) int { return cmp.Compare(x.Code, code) })
	xids := slices.Clone(p.xids)
	if !found {
		xids = slices.Insert(xids, i, Xid{Code: code})
	}
	xids[i].Count++
	xids[i].Last = now
	p.xids = xids
	return xids[i].Count
}
