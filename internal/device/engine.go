package device

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	logInterval             = 10 * time.Second // between log lines about one kind of event of a device
	firstCheckTimeout       = 5 * time.Second  // after a listing or an unverified failure, until a GPU does not respond
	defaultUnhealthyTimeout = 30 * time.Second
)

// engine is the health of all devices: apply takes an event and returns what the
// Monitor must do. The engine makes no calls.
type engine struct {
	options  MonitorOptions
	log      *slog.Logger
	limiter  *loglimit.Limiter[[3]string] // by GPU, device and reason of an event
	hasLinks bool                         // the Backend is a LinkReader

	now     time.Time // of the event
	effects []effect  // of the event so far

	devices []*trackedDevice // ordered by Device.Compare
	gpus    map[GPU]*trackedGPU
	absent  records // of devices that are not tracked

	startedAt time.Time        // the first event
	calls     map[GPU]gpuCalls // at the newest tick
	list      driverCall
	links     linkCall
	wait      waitCall

	listed        bool      // after the first listing of devices
	anyListed     bool      // after the first listing, also without devices
	listingBegan  time.Time // of the newest listing
	listingFailed bool      // as a whole, of the same

	driver        Driver
	driverSince   time.Time // the driver has its state
	driverHung    bool      // calls about all GPUs hang
	driverErr     error     // of the first check that failed by a fault of the driver; nil: a GPU has answered since
	driverEndedAt time.Time // the newest driverErr ended then
	restarts      uint      // as HealthHistory.DriverRestarts
	restarting    bool      // Run ends once the restart is on disk
	replacedErr   error     // why Run is about to end

	phase    driverPhase
	released HealthCause     // of all devices while the driver is released; zero: the driver is in use
	release  *request        // in progress
	waiting  []pendingAnswer // for the next publication, or for a check

	published       []Status // nil: none yet
	missing         []Device // as published
	awaitRecovering bool     // the first publication waits for recovering devices
	historyLost     bool     // as in HealthHistory; until the first publication
	unsaved         urgency
	savedAt         time.Time
}

func newEngine(o MonitorOptions, hasLinks bool) *engine {
	o.UnhealthyTimeout = cmp.Or(o.UnhealthyTimeout, defaultUnhealthyTimeout)
	return &engine{
		options: o, log: o.Log, limiter: loglimit.New[[3]string](logInterval), hasLinks: hasLinks,
		gpus: map[GPU]*trackedGPU{},
	}
}

// apply applies an event, and returns the effects in order.
func (e *engine) apply(ev event, now time.Time) []effect {
	e.now, e.effects = now, nil
	if e.startedAt.IsZero() {
		e.load()
	}
	switch ev := ev.(type) {
	case tick:
		e.tick(ev)
	case listed:
		e.handleListing(ev.devices, ev.err)
	case linksRead:
		e.handleLinks(ev.links, ev.err)
	case waited:
		e.handleWait(ev.event, ev.err)
	case reported:
		for range ev.count {
			e.report(ev.event, ev.at)
		}
	case checkBegun:
		g := e.gpus[ev.gpu]
		g.checkedAt, g.checksBegun, g.checkNow = ev.at, ev.seq, false
	case checked:
		e.handleCheck(ev)
		e.decideTrust(ev)
	case request:
		e.handleRequest(ev)
	case closed:
		e.finishRelease()
	case stopped:
		e.stop(ev.cause)
	}
	return e.effects
}

func (e *engine) emit(f effect) { e.effects = append(e.effects, f) }

// tick derives, publishes and saves what follows from the events, and starts the
// calls that are due.
func (e *engine) tick(t tick) {
	e.calls = t.calls
	e.detectStalls()
	e.checkRestart(t.stored)
	e.removeExpired()
	e.publish()
	e.publishMissing()
	if e.saveDue() {
		e.save()
	}
	e.answerRequests()
	e.advanceRelease(t.idle)
	if e.phase == phaseActive {
		e.startCalls()
		e.startChecks()
	}
}

// due returns the time of the next tick without an event: a whole second, unless
// a device is in doubt or a call hangs.
func (e *engine) due(now time.Time) time.Time {
	due := now.Add(retry.Aligned(time.Second))
	until := func(at time.Time, needed bool) {
		if needed && at.Before(due) {
			due = at
		}
	}
	for gpu, g := range e.gpus {
		hangs := e.calls[gpu].busy >= hangSuspectTimeout
		until(e.checkDue(g, now), e.phase == phaseActive && !hangs)
		until(now.Add(callPollInterval), hangs)
	}
	until(now.Add(callPollInterval), e.phase == phaseDraining || e.phase == phaseClosing)
	until(e.savedAt.Add(saveInterval), e.unsaved != saved)
	return latest(due, now.Add(minCheckInterval)) // a check that cannot begin stays due
}

// mark applies evidence to one level of a GPU: to the GPU if id is empty.
func (e *engine) mark(g *trackedGPU, id ID, s *healthState, ev evidence) transition {
	next, tr := s.apply(ev, e.now)
	*s = next
	if tr.to == Healthy && (tr.previous.isFault() || ev.kind == evidenceTrusted) {
		g.xidsOverAt = e.now
	}
	switch {
	case tr.newCause && s.cause.isFault():
		e.needSave(saveNow)
	case tr.save:
		e.needSave(saveSoon)
	}
	if tr.newCause || tr.from != tr.to && tr.previous.Reason != "" {
		e.logTransition(g, id, s, tr)
	}
	if ev.kind == evidenceFault {
		g.assessed = g.assessed || id == ""
		if e.released.Reason != "" { // a reset may come before the next check
			e.mark(g, id, s, evidence{kind: evidenceResetCount, check: math.MaxUint64, resets: g.resets})
		}
	}
	return tr
}

func (e *engine) logTransition(g *trackedGPU, id ID, s *healthState, tr transition) {
	level := slog.LevelInfo
	switch {
	// One line is about the driver.
	case s.cause.Reason == reasonDriver || tr.previous.Reason == reasonDriver && !s.cause.isFault():
		level = slog.LevelDebug
	case tr.to == Unhealthy && s.cause.isFault():
		level = slog.LevelWarn
	}
	message := [...]string{"device healthy", "device suspect", "device unhealthy", "device recovering"}[tr.to]
	if lost := lostMessages[s.cause.Reason]; tr.to == Unhealthy && lost != "" {
		message = lost
	}
	e.log.Log(context.Background(), level, message, "gpu", g.gpu, "index", g.device.Index, "device", id,
		"from", tr.from, "to", tr.to, "reason", s.cause.Reason, "previous_reason", tr.previous.Reason,
		"action", s.cause.Action, "flaps", s.flaps)
}

// lostMessages are the log messages about a lost GPU, by reason.
var lostMessages = map[string]string{
	reasonLost: "GPU lost: fallen off the bus",
	ReasonGone: "GPU lost: no longer listed by the driver",
}

// markAll applies evidence to all levels of a GPU.
func (e *engine) markAll(g *trackedGPU, ev evidence) {
	for id, s := range g.levels("") {
		e.mark(g, id, s, ev)
	}
}

// markFault marks a GPU unhealthy for a cause that no event reported, and reports
// whether it is a new one.
func (e *engine) markFault(g *trackedGPU, c HealthCause) (isNew bool) {
	tr := e.mark(g, "", &g.health, evidence{cause: c})
	if tr.newCause && c.isFault() {
		e.emit(notify{
			At: e.now, GPU: g.gpu, Affected: g.affected, Reason: c.Reason, Action: g.health.cause.Action,
			MarkedUnhealthy: true,
		})
	}
	return tr.newCause
}

// checkAll makes a check of each GPU due: the cause of a problem is unknown.
func (e *engine) checkAll() {
	for _, g := range e.gpus {
		g.checkNow = true
	}
}

// isAllocated reports whether a container has the device.
func (e *engine) isAllocated(id ID) bool {
	return e.options.IsAllocated != nil && e.options.IsAllocated(id)
}

// stop ends all requests and saves the history.
func (e *engine) stop(cause error) {
	e.endRelease(cmp.Or(cause, errStopped))
	for _, r := range e.waiting {
		r.err = cmp.Or(r.err, errStopped)
		e.emit(reply{r.replyTo, r.answer})
	}
	e.save()
}

// missingGPUs returns how many of the expected GPUs the newest listing lacks.
func (e *engine) missingGPUs() int {
	if e.options.ExpectedGPUs == nil {
		return 0
	}
	missing := e.options.ExpectedGPUs()
	for _, g := range e.gpus {
		if g.listed {
			missing--
		}
	}
	return missing
}
