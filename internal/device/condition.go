package device

import (
	"errors"
	"slices"
	"strconv"
	"time"
)

// How recovery goes (docs/adr/0012-recovery.md).
const (
	goodChecksToRun = 3                  // in a row, for a GPU to be trusted again
	flapsWithin     = time.Hour          // turns to unhealthy that count against a device
	secondProbation = 6 * time.Second    // after two of them; each further one doubles it
	probationMost   = 10 * time.Minute   // and that is the end of it
	comebackWithin  = 7 * 24 * time.Hour // a fault that stays away for longer is a new one
	resetsInVain    = 2                  // and it is no matter for a third
)

// Replace is the Action of a fault that resets do not mend.
const Replace = "replace"

// condition is where a GPU, or a slice by itself, stands, and what speaks for and
// against it.
//
//	Well ──▶ Suspect ──▶ Unhealthy ──▶ Probation ──▶ Well
//
// Evidence against it leads to Unhealthy from everywhere. Back goes only one step at a time.
type condition struct {
	health  Health
	verdict verdict // why it is on Unhealthy or Probation
	mended  bool    // a reset was seen since the verdict, where that asks for one

	good     int       // checks passed in a row that speak for the next step
	goodFrom time.Time // when the first of them began
	goodAt   time.Time // when the last did
	failedAt time.Time // when a check failed that does not condemn by itself; zero: none did since one passed

	flaps   uint64      // how often it turned unhealthy
	turns   []time.Time // when it last did, of the last hour
	relapse Relapse
}

// verdict is why something cannot be used. The zero verdict is that it can.
type verdict struct {
	reason, action, class string
	// byReset says that only a reset mends it; else answering again is enough.
	byReset bool
	// repair says that a repair which waits has to be made first, where nothing else asks for
	// a reset: it came upon such a fault of which no check had yet said that it is over.
	repair bool
	// byPolicy says that it is so because the operator wants it, not because the fault is
	// one of the hardware.
	byPolicy bool
	// quiet is a verdict without a fault: it is neither told nor counted nor remembered.
	quiet bool

	since time.Time // when it was reached
	at    time.Time // when the newest fault of its kind came

	// A reset mends it that comes after noted, before which checks checks had begun. resets
	// is the count of those that do not mend it; nil: not known yet.
	noted  time.Time
	checks uint64
	resets *uint64
	// odometer is what an earlier process knew of the GPU's; 0: nothing.
	odometer uint64
}

// Relapse is how often resets have failed to mend a fault.
type Relapse struct {
	Reason string
	Resets int       // that have followed it
	At     time.Time // when it last came
}

func xidReason(xid uint64) string { return "xid_" + strconv.FormatUint(xid, 10) }

// explain turns what a check says into a verdict. A soft one may pass: it takes a second
// check to believe it.
func explain(c checkup) (v verdict, soft bool) {
	v = verdict{at: c.began, noted: c.began, checks: c.number}
	var f *Fault
	switch {
	case errors.As(c.err, &f):
		v.reason, v.action, v.byReset = f.Reason, f.Action, f.ByReset
	case errors.Is(c.err, ErrLost):
		v.reason, v.action = "lost", "reboot"
	default:
		v.reason, soft = "check_failed", true
	}
	return v, soft
}

// suspect begins to look closely, unless that is under way.
func (c *condition) suspect() {
	c.good = 0
	if c.health == Well {
		c.health = Suspect
	}
}

// doubts takes a check that failed softly. It tells whether that is one too many: two in a
// row, a second apart, or any after a fault.
func (c *condition) doubts(began time.Time) bool {
	if c.verdict.reason != "" && !c.verdict.quiet {
		return true
	}
	if !c.failedAt.IsZero() && began.Sub(c.failedAt) >= recheckEvery {
		return true
	}
	if c.failedAt.IsZero() {
		c.failedAt = began
	}
	c.suspect()
	return false
}

// condemn takes evidence against it, and tells whether the verdict is a new one, or else
// whether what is remembered of it is out of date. The first of several faults is the one that is named. But one that asks for a reset stands against
// a later one that would heal sooner, and a fault that comes when the one before is over,
// as far as anybody can see, is a new one.
func (c *condition) condemn(v verdict, now time.Time) (anew, renewed bool) {
	was := c.verdict
	over := c.health == Probation || c.mended && v.byReset
	v.repair = !v.byReset && c.good == 0 && (was.byReset || was.repair)
	c.good, c.failedAt, c.health = 0, time.Time{}, Unhealthy
	ailed := was.reason != "" && !was.quiet
	switch {
	case v.quiet && was.reason != "":
		return false, false
	case ailed && !over && (was.byReset || !v.byReset):
		// It failed again since: what it was reset from counts anew. A check that had begun
		// before the newest report says nothing new.
		if v.byReset && (v.resets == nil || v.checks > was.checks) {
			c.verdict.at, c.verdict.noted, c.verdict.checks, c.verdict.resets = v.at, v.noted, v.checks, v.resets
			c.verdict.odometer = 0
			c.relapse.note(c.verdict, now)
			renewed = was.resets != nil && (v.resets == nil || *v.resets != *was.resets)
		}
		return false, renewed
	}
	if !ailed && !v.quiet {
		c.turn(now)
	}
	v.since = now
	if was.reason == v.reason {
		v.since = was.since
	}
	c.relapse.note(v, now)
	if v.byReset && c.relapse.Reason == v.reason && c.relapse.Resets >= resetsInVain {
		v.action = Replace
	}
	c.verdict, c.mended = v, false
	return true, false
}

// note takes a fault into the account. What an operator's policy alone condemns says
// nothing of the hardware.
func (r *Relapse) note(v verdict, now time.Time) {
	if !v.byReset || v.byPolicy {
		return
	}
	if r.Reason != v.reason || now.Sub(r.At) > comebackWithin {
		*r = Relapse{Reason: v.reason}
	}
	r.At = now
}

// turn counts that it turns unhealthy.
func (c *condition) turn(now time.Time) {
	c.flaps++
	c.turns = slices.DeleteFunc(append(c.turns, now), func(at time.Time) bool { return now.Sub(at) >= flapsWithin })
	c.turns = c.turns[max(0, len(c.turns)-turnsKept):]
}

// turnsKept are as many as can make a difference.
const turnsKept = 9

// probation is for how long it has to stand the test, at least: three checks suffice after
// one turn to unhealthy in an hour.
func (c *condition) probation(now time.Time) time.Duration {
	n := 0
	for _, at := range c.turns {
		if now.Sub(at) < flapsWithin {
			n++
		}
	}
	if n < 2 {
		return 0
	}
	return min(secondProbation<<(n-2), probationMost)
}

// baseline takes the count of resets that the newest check to have ended knows. A reset
// is seen by the first check that comes after it, and the driver may report a fault
// between the two: so the count that mends nothing is that of a check which began after
// the fault. It tells whether it has taken one. Where none does for a while, since calls hang, the reset that is seen next
// is taken for one that was made because of the fault.
func (c *condition) baseline(check, resets uint64, now time.Time) bool {
	v := &c.verdict
	if !v.byReset || v.resets != nil || check <= v.checks && now.Sub(v.noted) <= baselineBy {
		return false
	}
	v.resets = new(resets)
	return true
}

// noticeReset looks for a reset since the verdict: this process saw one, or the GPU has
// less on its odometer than an earlier process saw.
func (c *condition) noticeReset(resets, odometer uint64) bool {
	v := &c.verdict
	seen := v.resets != nil && resets > *v.resets || odometer != 0 && odometer < v.odometer
	if odometer != 0 {
		v.odometer = 0 // once is enough: from now on this process sees them
	}
	return seen && c.mend()
}

// mend notes a reset, and reports whether the verdict asked for one.
func (c *condition) mend() bool {
	if !c.verdict.byReset || c.mended {
		return false
	}
	c.mended = true
	if c.relapse.Reason == c.verdict.reason {
		c.relapse.Resets++
	}
	return true
}

// passed takes a check that found nothing, and tells whether that makes it Well again.
// Checks that come in quick succession, because the driver reports so much, count as one.
func (c *condition) passed(k checkup) bool {
	c.failedAt = time.Time{}
	if c.health == Well {
		return false
	}
	if v := c.verdict; v.byReset && !c.mended || (v.byReset || v.repair) && k.vitals.Pending {
		c.health, c.good = Unhealthy, 0
		return false
	}
	if c.health == Unhealthy {
		c.health = Probation
	}
	if c.good > 0 && k.began.Sub(c.goodAt) < recheckEvery {
		return false
	}
	if c.good == 0 {
		c.goodFrom = k.began
	}
	c.goodAt = k.began
	c.good++
	if c.good < goodChecksToRun || c.health == Probation && k.began.Sub(c.goodFrom) < c.probation(k.began) {
		return false
	}
	c.health, c.verdict, c.mended, c.good = Well, verdict{}, false, 0
	return true
}
