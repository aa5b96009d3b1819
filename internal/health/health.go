package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Limits of recovery (docs/contributing/adr/0012-recovery.md).
const (
	minPassedChecks      = 3                // in a row, before a device is healthy again
	flapWindow           = time.Hour        // turns to unhealthy count for this long
	maxUnhealthyTimes    = 9                // more make no difference to recoveryPeriod
	minRecoveryPeriod    = 6 * time.Second  // after two turns in the window; each further turn doubles the period
	maxRecoveryPeriod    = 10 * time.Minute //
	maxFailedResets      = 2                // then the action is actionReplace
	failedResetsWindow   = 7 * 24 * time.Hour
	resetBaselineTimeout = 10 * time.Second // waiting for a check that counts the resets from before a fault
)

// recheckInterval is between checks of a GPU that is not healthy, and the least
// between checks that count.
const recheckInterval = time.Second

// actionReplace is the Action of a fault that came back after resets.
const actionReplace = "replace"

// Reasons of an unhealthy device, beside ReasonRetired and ReasonGone.
const (
	reasonLost        = "lost"         // fallen off the bus
	reasonCheckFailed = "check_failed" // without a reason of its own
	reasonDriver      = "driver"       // of driver or container: no fault of each GPU
)

// healthState is the health of one level: a GPU with all its devices, or one
// MIG device. Evidence changes the state:
//
//	evidence                              healthy    suspect    unhealthy   recovering
//	fault                                 unhealthy  unhealthy  unhealthy   unhealthy
//	driver released, or driver fails      unhealthy  unhealthy  unhealthy   unhealthy
//	report or failed check to verify      suspect    suspect    unhealthy   recovering
//	check of the GPU failed (MIG device)  healthy    suspect    unhealthy   recovering
//	reset                                 healthy    suspect    unhealthy   recovering
//	check passed, reset due               healthy    suspect    unhealthy   -
//	check passed, repair due              healthy    suspect    unhealthy   unhealthy
//	check passed                          healthy    suspect    recovering  recovering
//	third check passed in a row           healthy    healthy    healthy     healthy
//	third within the recovery period      healthy    healthy    recovering  recovering
//	trusted by the operator               healthy    healthy    healthy     healthy
//
// The zero healthState is healthy. Slices are replaced, never written.
type healthState struct {
	state device.Health
	cause Cause // of Unhealthy and Recovering

	passedChecks  int       // in a row
	firstPassedAt time.Time // start of the first check in the row
	lastPassedAt  time.Time

	// A retired device is unhealthy in each state.
	retired        *device.Retirement // by a command, until Monitor.Trust; nil: not retired
	listed         *device.Retirement // by Options.Retired, until unlisted; nil: not retired
	behind         device.MaskedFault // the newest fault before or during the retirement, as if over
	flaps          uint64             // turns to unhealthy
	unhealthyTimes []time.Time        // turns within flapWindow
	failedResets   FailedResets
	// xidReports are the newest reports that count towards the threshold of a
	// policy, by Xid, oldest first. The map is written in place.
	xidReports map[uint64][]time.Time
}

// reaches adds a report of an Xid, and reports whether there are as many within
// the window as the policy requires.
func (s *healthState) reaches(p device.XidPolicy, xid uint64, now time.Time) bool {
	if s.xidReports == nil {
		s.xidReports = map[uint64][]time.Time{}
	}
	times := s.xidReports[xid]
	times = append(times, now)
	times = slices.DeleteFunc(times[max(0, len(times)-p.Count):],
		func(at time.Time) bool { return now.Sub(at) >= p.Window })
	s.xidReports[xid] = times
	return len(times) >= p.Count
}

// retirement returns the retirement that operators see; nil: not retired.
func (s *healthState) retirement() *device.Retirement { return cmp.Or(s.listed, s.retired) }

// maskedFault returns the present fault or, without one, the newest fault behind
// a retirement.
func (s *healthState) maskedFault() device.MaskedFault {
	if c := s.cause; c.isFault() && s.state == device.Unhealthy {
		return device.MaskedFault{Reason: c.Reason, Action: c.Action, Since: c.Since, Present: true}
	}
	return s.behind
}

// Cause is why a device cannot be used. The zero Cause is none.
type Cause struct {
	Reason     string    `json:"reason"`
	Action     string    `json:"action,omitempty"`
	Class      string    `json:"class,omitempty"`
	Since      time.Time `json:"since"`
	FaultAt    time.Time `json:"fault_at"`              // of the newest fault of this cause
	NeedsReset bool      `json:"needs_reset,omitempty"` // the cause lasts until a reset
	ByPolicy   bool      `json:"by_policy,omitempty"`   // only the operator's policy marks the device unhealthy
	ResetSeen  bool      `json:"reset_seen,omitempty"`  // since the cause, which needs a reset
	// EnergyCounter is the GPU's in an earlier process, after the fault; 0: unknown.
	EnergyCounter uint64 `json:"energy,omitempty"`

	// needsRepair is set if a pending repair must be done first: the cause
	// followed a fault that needs a reset before a check passed.
	needsRepair bool
	noFault     bool // not a fault: neither counted, reported nor saved
	rebooted    bool // the node was rebooted since: one passed check is enough

	earlier bool // of an earlier process: all resets that this process counts came later

	// A reset after notedAt ends the cause; checksBegun checks had begun by
	// then. resetBaseline counts the earlier resets, nil: not known yet.
	notedAt       time.Time
	checksBegun   uint64
	resetBaseline *uint64
}

// FailedResets counts the resets after which a fault came back.
type FailedResets struct {
	Reason      string    `json:"reason"`
	Count       int       `json:"count"`
	LastFaultAt time.Time `json:"last_fault_at"`
}

// evidence is an input of healthState.apply.
type evidence struct {
	kind          evidenceKind
	cause         Cause     // of evidenceFault
	startedAt     time.Time // of the check
	repairPending bool      // at a passed check
	check         uint64    // the check that counted resets; math.MaxUint64: resets counts all
	resets        uint64    // of the GPU in this process
	energyCounter uint64    // 0: unknown
}

type evidenceKind uint8

const (
	evidenceFault          evidenceKind = iota // a report, a failed check with a reason, a hang, a GPU gone or released
	evidenceReport                             // checks must verify a report, or a failed check
	evidenceGPUCheckFailed                     // of the GPU; for its MIG devices
	evidenceCheckPassed                        //
	evidenceResetCount                         // what a check knows about resets
	evidenceReset                              // that no count shows: a reboot, or a release without an energy counter
	evidenceTrusted                            // by the operator, after a passed check
)

// transition is the effect of evidence.
type transition struct {
	from, to device.Health
	previous Cause
	newCause bool // the fault has become the cause
	save     bool // what the next process must know has changed
}

// apply returns the state after evidence, and the transition.
func (s healthState) apply(e evidence, now time.Time) (healthState, transition) {
	t := transition{from: s.state, previous: s.cause}
	switch e.kind {
	case evidenceFault:
		t.newCause, t.save = s.addFault(e.cause, now)
	case evidenceReport:
		s.suspect()
	case evidenceGPUCheckFailed:
		s.passedChecks = 0
	case evidenceCheckPassed:
		s.addPassedCheck(e)
		t.save = s.state == device.Healthy && t.previous.isFault()
	case evidenceResetCount:
		t.save = s.addResetCount(e, now)
	case evidenceReset:
		t.save = s.addReset()
	case evidenceTrusted:
		t.save = true
		s.trust()
	}
	t.to = s.state
	return s, t
}

func (c Cause) isFault() bool { return c.Reason != "" && !c.noFault }

func (s *healthState) suspect() {
	s.passedChecks = 0
	if s.state == device.Healthy {
		s.state = device.Suspect
	}
}

// addFault adds a fault. The first of several faults is the cause, unless a
// later one alone needs a reset. A fault that comes after the previous one is
// over, as far as known, is a new cause.
func (s *healthState) addFault(c Cause, now time.Time) (isNew, save bool) {
	was := s.cause
	over := s.state == device.Recovering || s.cause.ResetSeen && c.NeedsReset
	c.needsRepair = !c.NeedsReset && s.passedChecks == 0 && (was.NeedsReset || was.needsRepair)
	s.passedChecks, s.state = 0, device.Unhealthy
	switch {
	case c.noFault && was.Reason != "":
		return false, false
	case was.isFault() && !over && (was.NeedsReset || !c.NeedsReset):
		// The GPU failed again, so only resets from now on count. A check that
		// began before the newest report shows no new fault.
		if c.NeedsReset && (c.resetBaseline == nil || c.checksBegun > was.checksBegun) {
			s.cause.earlier = false
			s.cause.FaultAt = c.FaultAt
			s.cause.notedAt = c.notedAt
			s.cause.checksBegun = c.checksBegun
			s.cause.resetBaseline = c.resetBaseline
			s.cause.EnergyCounter = 0
			s.failedResets.addFault(s.cause, now)
			save = was.resetBaseline != nil && (c.resetBaseline == nil || *c.resetBaseline != *was.resetBaseline)
		}
		return false, save
	}
	if !was.isFault() && !c.noFault {
		s.flaps++
		times := slices.DeleteFunc(append(slices.Clone(s.unhealthyTimes), now),
			func(at time.Time) bool { return now.Sub(at) >= flapWindow })
		s.unhealthyTimes = times[max(0, len(times)-maxUnhealthyTimes):]
	}
	c.Since = now
	if was.Reason == c.Reason {
		c.Since = was.Since
	}
	s.failedResets.addFault(c, now)
	if c.NeedsReset && s.failedResets.Reason == c.Reason && s.failedResets.Count >= maxFailedResets {
		c.Action = actionReplace
	}
	s.cause = c
	return true, !c.noFault
}

// addFault starts a new count if the fault has a different reason, or came back
// after failedResetsWindow.
func (r *FailedResets) addFault(c Cause, now time.Time) {
	if !c.NeedsReset || c.ByPolicy {
		return
	}
	if r.Reason != c.Reason || now.Sub(r.LastFaultAt) > failedResetsWindow {
		*r = FailedResets{Reason: c.Reason}
	}
	r.LastFaultAt = now
}

// addResetCount looks for a reset since the cause: this process saw one, or the
// energy counter is below the value in an earlier process.
//
// The first check after a reset sees the reset, and the driver may report a
// fault before that check. The baseline is therefore the count of a check that
// began after the fault. If calls hang and no check ends before
// resetBaselineTimeout, the next reset counts.
func (s *healthState) addResetCount(e evidence, now time.Time) (save bool) {
	c := &s.cause
	isCounted := e.check > c.checksBegun || now.Sub(c.notedAt) > resetBaselineTimeout
	if c.NeedsReset && c.resetBaseline == nil && isCounted {
		c.resetBaseline, save = new(e.resets), true
		if c.earlier {
			c.resetBaseline = new(uint64(0))
		}
	}
	seen := c.resetBaseline != nil && e.resets > *c.resetBaseline ||
		e.energyCounter != 0 && e.energyCounter < c.EnergyCounter
	if e.energyCounter != 0 {
		c.EnergyCounter = 0 // compare once; later resets are seen by this process
	}
	return seen && s.addReset() || save
}

// addReset adds a reset, and reports whether the cause needed one.
func (s *healthState) addReset() bool {
	if !s.cause.NeedsReset || s.cause.ResetSeen {
		return false
	}
	s.cause.ResetSeen = true
	if s.failedResets.Reason == s.cause.Reason {
		s.failedResets.Count++
	}
	return true
}

// addPassedCheck adds a passed check. Checks in quick succession, as after many
// reports, count as one.
func (s *healthState) addPassedCheck(e evidence) {
	if s.state == device.Healthy {
		return
	}
	if c := s.cause; c.NeedsReset && !c.ResetSeen || (c.NeedsReset || c.needsRepair) && e.repairPending {
		s.state, s.passedChecks = device.Unhealthy, 0
		return
	}
	if s.state == device.Unhealthy {
		s.state = device.Recovering
	}
	if s.passedChecks > 0 && e.startedAt.Sub(s.lastPassedAt) < recheckInterval {
		return
	}
	if s.passedChecks == 0 {
		s.firstPassedAt = e.startedAt
	}
	s.lastPassedAt = e.startedAt
	s.passedChecks++
	isEarly := s.state == device.Recovering && e.startedAt.Sub(s.firstPassedAt) < s.recoveryPeriod(e.startedAt)
	if isEarly || s.passedChecks < minPassedChecks && !s.cause.rebooted {
		return
	}
	s.state, s.cause, s.passedChecks = device.Healthy, Cause{}, 0
}

// recoveryPeriod returns the minimum time in Recovering. After a single turn to
// unhealthy in flapWindow, three checks suffice.
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

// trust ends the cause and forgets what earlier faults mean for the next one.
func (s *healthState) trust() {
	*s = healthState{flaps: s.flaps, retired: s.retired, listed: s.listed, behind: s.behind}
}
