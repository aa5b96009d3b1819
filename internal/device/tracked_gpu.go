package device

import (
	"errors"
	"time"
)

// trackedGPU is what the Monitor remembers of one GPU.
type trackedGPU struct {
	gpu           GPU
	number        int       // of the GPUs, as they were first listed
	firstListedAt time.Time // when it was first listed
	checkDeadline time.Time // a GPU without a verdict by then does not answer
	listed        bool      // in the newest listing
	device        Device    // the GPU itself, as the newest listing that had it says, without Nodes and Facts
	goneSince     time.Time // since when no listing has it; zero: the newest has
	assessed      bool      // a verdict was reached at least once
	checkedAt     time.Time // when the newest check began
	checksBegun   uint64    // how many have begun
	resets        uint64    // the GPU's count of them, as far as its checks have told
	energyCounter uint64    // likewise; 0: it has not told, or has none
	resumedAt     time.Time // when it was taken up again without a known odometer; zero: that is settled
	stalledSince  time.Time // when the first check began of those that said no more than that a call hangs; zero: none did
	checkNow      bool      // to be checked at once
	healthState
	migDevices    []*trackedDevice // its devices, but for the GPU itself
	affected      []Device         // the GPU with its slices; replaced, never written
	eventCounters []eventCounter   // in the order in which they came
	xids          []Xid            // what is posted of them, ordered by code; replaced, never written
	countsChanged bool             // since xids were made
	limiter       logLimiter
}

// logLimiter are when reports of one kind last made a line of the log: of thousands a
// second most say nothing new. The zero sayings are ready for use.
type logLimiter map[logLimiterKey]time.Time

type logLimiterKey struct {
	device ID
	reason string
}

// allow tells whether a report is to make a line, and notes that it does.
func (l *logLimiter) allow(device ID, reason string, now time.Time) bool {
	if *l == nil {
		*l = logLimiter{}
	}
	key := logLimiterKey{device, reason}
	if last, logged := (*l)[key]; logged && now.Sub(last) < logInterval {
		return false
	}
	(*l)[key] = now
	return true
}

// checkDue tells whether to check now: at leisure where all is well, soon where there
// is a doubt to settle, on the GPU or a slice, or a reading that failed, and at once
// where the driver has said that something is wrong, if it does not do so all the time.
func (g *trackedGPU) checkDue(now time.Time, doubtful bool, schedule gpuCheckSchedule) bool {
	switch {
	case g.checkNow:
		return now.Sub(g.checkedAt) >= minCheckInterval
	case doubtful || !g.assessed || g.anyNotHealthy():
		return now.Sub(g.checkedAt) >= recheckInterval
	default:
		return schedule.due(now, g.checkedAt)
	}
}

// anyNotHealthy tells whether the GPU or one of its slices is not well.
func (g *trackedGPU) anyNotHealthy() bool {
	for _, d := range g.migDevices {
		if d.state.health != Healthy {
			return true
		}
	}
	return g.health != Healthy
}

// setResetBaselines has the GPU's verdict and its slices' know which resets do not mend them.
func (g *trackedGPU) setResetBaselines(check uint64, now time.Time) (taken bool) {
	taken = g.healthState.setResetBaseline(check, g.resets, now)
	for _, d := range g.migDevices {
		taken = d.state.setResetBaseline(check, g.resets, now) || taken
	}
	return taken
}

// updateResetEvidence takes what a check tells of resets, and tells whether that is worth being remembered.
func (g *trackedGPU) updateResetEvidence(c gpuCheckResult, now time.Time) bool {
	g.resets = max(g.resets, c.evidence.Resets) // a check that fails may not know the count
	if c.evidence.EnergyCounter != 0 {
		g.energyCounter = c.evidence.EnergyCounter
	}
	changed := g.setResetBaselines(c.seq, now)
	changed = g.detectReset(g.resets, c.evidence.EnergyCounter) || changed
	for _, d := range g.migDevices {
		changed = d.state.detectReset(g.resets, c.evidence.EnergyCounter) || changed
	}
	if !g.resumedAt.IsZero() && (c.err == nil || errors.As(c.err, new(*Fault))) {
		changed = g.assumeReset(g.resumedAt) || changed
		g.resumedAt = time.Time{}
	}
	return changed
}

// assumeReset notes a reset of a GPU that has no energy counter, and reports whether a verdict
// of before the given time asked for one. Nothing would show the reset, which is what a release
// is for. The GPU must have answered: a counter that was not read yet is no proof of none.
func (g *trackedGPU) assumeReset(resumed time.Time) (found bool) {
	if g.energyCounter != 0 {
		return false
	}
	assume := func(s *healthState) bool {
		return s.cause.energyCounter == 0 && !s.cause.notedAt.After(resumed) && s.recordReset()
	}
	found = assume(&g.healthState)
	for _, d := range g.migDevices {
		found = assume(&d.state) || found
	}
	return found
}

// migDevice finds one of the GPU's; nil where the id is none of theirs.
func (g *trackedGPU) migDevice(id ID) *trackedDevice {
	for _, d := range g.migDevices {
		if d.ID == id {
			return d
		}
	}
	return nil
}
