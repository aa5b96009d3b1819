package device

import (
	"errors"
	"slices"
	"strconv"
	"time"
)

// How recovery goes (docs/adr/0012-recovery.md).
const (
	minPassedChecks    = 3                  // in a row, for a GPU to be trusted again
	flapWindow         = time.Hour          // turns to unhealthy that count against a device
	minRecoveryPeriod  = 6 * time.Second    // after two of them; each further one doubles it
	maxRecoveryPeriod  = 10 * time.Minute   // and that is the end of it
	failedResetsWindow = 7 * 24 * time.Hour // a fault that stays away for longer is a new one
	maxFailedResets    = 2                  // and it is no matter for a third
)

// ActionReplace is the Action of a fault that resets do not mend.
const ActionReplace = "replace"

// healthState is where a GPU, or a slice by itself, stands, and what speaks for and
// against it.
//
//	Well ──▶ Suspect ──▶ Unhealthy ──▶ Probation ──▶ Well
//
// Evidence against it leads to Unhealthy from everywhere. Back goes only one step at a time.
type healthState struct {
	health    Health
	cause     healthCause // why it is on Unhealthy or Probation
	resetSeen bool        // a reset was seen since the verdict, where that asks for one

	passedChecks  int       // checks passed in a row that speak for the next step
	firstPassedAt time.Time // when the first of them began
	lastPassedAt  time.Time // when the last did
	softFailedAt  time.Time // when a check failed that does not condemn by itself; zero: none did since one passed

	flaps          uint64      // how often it turned unhealthy
	unhealthyTimes []time.Time // when it last did, of the last hour
	failedResets   FailedResets
}

// healthCause is why something cannot be used. The zero verdict is that it can.
type healthCause struct {
	reason, action, class string
	// needsReset says that only a reset mends it; else answering again is enough.
	needsReset bool
	// needsRepair says that a repair which waits has to be made first, where nothing else asks for
	// a reset: it came upon such a fault of which no check had yet said that it is over.
	needsRepair bool
	// byPolicy says that it is so because the operator wants it, not because the fault is
	// one of the hardware.
	byPolicy bool
	// noFault is a verdict without a fault: it is neither told nor counted nor remembered.
	noFault bool

	since   time.Time // when it was reached
	faultAt time.Time // when the newest fault of its kind came

	// A reset mends it that comes after noted, before which checks checks had begun. resets
	// is the count of those that do not mend it; nil: not known yet.
	notedAt       time.Time
	checksBegun   uint64
	resetBaseline *uint64
	// energyCounter is what an earlier process knew of the GPU's; 0: nothing.
	energyCounter uint64
}

// FailedResets is how often resets have failed to mend a fault.
type FailedResets struct {
	Reason      string
	Count       int       // that have followed it
	LastFaultAt time.Time // when it last came
}

func xidReason(xid uint64) string { return "xid_" + strconv.FormatUint(xid, 10) }

// newHealthCause turns what a check says into a verdict. A soft one may pass: it takes a second
// check to believe it.
func newHealthCause(c gpuCheckResult) (v healthCause, soft bool) {
	v = healthCause{faultAt: c.startedAt, notedAt: c.startedAt, checksBegun: c.seq}
	var f *Fault
	switch {
	case errors.As(c.err, &f):
		v.reason, v.action, v.needsReset = f.Reason, f.Action, f.NeedsReset
	case errors.Is(c.err, ErrLost):
		v.reason, v.action = "lost", "reboot"
	default:
		v.reason, soft = "check_failed", true
	}
	return v, soft
}

// markSuspect begins to look closely, unless that is under way.
func (s *healthState) markSuspect() {
	s.passedChecks = 0
	if s.health == Healthy {
		s.health = Suspect
	}
}

// recordSoftFailure takes a check that failed softly. It tells whether that is one too many: two in a
// row, a second apart, or any after a fault.
func (s *healthState) recordSoftFailure(began time.Time) bool {
	if s.cause.reason != "" && !s.cause.noFault {
		return true
	}
	if !s.softFailedAt.IsZero() && began.Sub(s.softFailedAt) >= recheckInterval {
		return true
	}
	if s.softFailedAt.IsZero() {
		s.softFailedAt = began
	}
	s.markSuspect()
	return false
}

// markUnhealthy takes evidence against it, and tells whether the verdict is a new one, or else
// whether what is remembered of it is out of date. The first of several faults is the one that is named. But one that asks for a reset stands against
// a later one that would heal sooner, and a fault that comes when the one before is over,
// as far as anybody can see, is a new one.
func (s *healthState) markUnhealthy(v healthCause, now time.Time) (isNew, updated bool) {
	was := s.cause
	recovered := s.health == Recovering || s.resetSeen && v.needsReset
	v.needsRepair = !v.needsReset && s.passedChecks == 0 && (was.needsReset || was.needsRepair)
	s.passedChecks, s.softFailedAt, s.health = 0, time.Time{}, Unhealthy
	hadFault := was.reason != "" && !was.noFault
	switch {
	case v.noFault && was.reason != "":
		return false, false
	case hadFault && !recovered && (was.needsReset || !v.needsReset):
		// It failed again since: what it was reset from counts anew. A check that had begun
		// before the newest report says nothing new.
		if v.needsReset && (v.resetBaseline == nil || v.checksBegun > was.checksBegun) {
			s.cause.faultAt, s.cause.notedAt, s.cause.checksBegun, s.cause.resetBaseline = v.faultAt, v.notedAt, v.checksBegun, v.resetBaseline
			s.cause.energyCounter = 0
			s.failedResets.recordFault(s.cause, now)
			updated = was.resetBaseline != nil && (v.resetBaseline == nil || *v.resetBaseline != *was.resetBaseline)
		}
		return false, updated
	}
	if !hadFault && !v.noFault {
		s.recordUnhealthyTime(now)
	}
	v.since = now
	if was.reason == v.reason {
		v.since = was.since
	}
	s.failedResets.recordFault(v, now)
	if v.needsReset && s.failedResets.Reason == v.reason && s.failedResets.Count >= maxFailedResets {
		v.action = ActionReplace
	}
	s.cause, s.resetSeen = v, false
	return true, false
}

// recordFault takes a fault into the account. What an operator's policy alone condemns says
// nothing of the hardware.
func (r *FailedResets) recordFault(v healthCause, now time.Time) {
	if !v.needsReset || v.byPolicy {
		return
	}
	if r.Reason != v.reason || now.Sub(r.LastFaultAt) > failedResetsWindow {
		*r = FailedResets{Reason: v.reason}
	}
	r.LastFaultAt = now
}

// recordUnhealthyTime counts that it turns unhealthy.
func (s *healthState) recordUnhealthyTime(now time.Time) {
	s.flaps++
	s.unhealthyTimes = slices.DeleteFunc(append(s.unhealthyTimes, now), func(at time.Time) bool { return now.Sub(at) >= flapWindow })
	s.unhealthyTimes = s.unhealthyTimes[max(0, len(s.unhealthyTimes)-maxUnhealthyTimes):]
}

// maxUnhealthyTimes are as many as can make a difference.
const maxUnhealthyTimes = 9

// recoveryPeriod is for how long it has to stand the test, at least: three checks suffice after
// one turn to unhealthy in an hour.
func (s *healthState) recoveryPeriod(now time.Time) time.Duration {
	n := 0
	for _, at := range s.unhealthyTimes {
		if now.Sub(at) < flapWindow {
			n++
		}
	}
	if n < 2 {
		return 0
	}
	return min(minRecoveryPeriod<<(n-2), maxRecoveryPeriod)
}

// setResetBaseline takes the count of resets that the newest check to have ended knows. A reset
// is seen by the first check that comes after it, and the driver may report a fault
// between the two: so the count that mends nothing is that of a check which began after
// the fault. It tells whether it has taken one. Where none does for a while, since calls hang, the reset that is seen next
// is taken for one that was made because of the fault.
func (s *healthState) setResetBaseline(check, resets uint64, now time.Time) bool {
	v := &s.cause
	if !v.needsReset || v.resetBaseline != nil || check <= v.checksBegun && now.Sub(v.notedAt) <= resetBaselineTimeout {
		return false
	}
	v.resetBaseline = new(resets)
	return true
}

// detectReset looks for a reset since the verdict: this process saw one, or the GPU has
// less on its odometer than an earlier process saw.
func (s *healthState) detectReset(resets, energyCounter uint64) bool {
	v := &s.cause
	seen := v.resetBaseline != nil && resets > *v.resetBaseline || energyCounter != 0 && energyCounter < v.energyCounter
	if energyCounter != 0 {
		v.energyCounter = 0 // once is enough: from now on this process sees them
	}
	return seen && s.recordReset()
}

// recordReset notes a reset, and reports whether the verdict asked for one.
func (s *healthState) recordReset() bool {
	if !s.cause.needsReset || s.resetSeen {
		return false
	}
	s.resetSeen = true
	if s.failedResets.Reason == s.cause.reason {
		s.failedResets.Count++
	}
	return true
}

// recordPassedCheck takes a check that found nothing, and tells whether that makes it Well again.
// Checks that come in quick succession, because the driver reports so much, count as one.
func (s *healthState) recordPassedCheck(check gpuCheckResult) bool {
	s.softFailedAt = time.Time{}
	if s.health == Healthy {
		return false
	}
	if v := s.cause; v.needsReset && !s.resetSeen || (v.needsReset || v.needsRepair) && check.evidence.RepairPending {
		s.health, s.passedChecks = Unhealthy, 0
		return false
	}
	if s.health == Unhealthy {
		s.health = Recovering
	}
	if s.passedChecks > 0 && check.startedAt.Sub(s.lastPassedAt) < recheckInterval {
		return false
	}
	if s.passedChecks == 0 {
		s.firstPassedAt = check.startedAt
	}
	s.lastPassedAt = check.startedAt
	s.passedChecks++
	if s.passedChecks < minPassedChecks || s.health == Recovering && check.startedAt.Sub(s.firstPassedAt) < s.recoveryPeriod(check.startedAt) {
		return false
	}
	s.health, s.cause, s.resetSeen, s.passedChecks = Healthy, healthCause{}, false, 0
	return true
}
