package health

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/loglimit"
)

const (
	logInterval             = 10 * time.Second // between log lines about one kind of event of a device
	firstCheckTimeout       = 5 * time.Second  // after a listing or an unverified failure, until a GPU does not respond
	defaultUnhealthyTimeout = 30 * time.Second
)

// engine is the health of all devices: apply takes an event and returns the work
// of the Monitor. The engine makes no calls.
type engine struct {
	options Options
	log     *slog.Logger
	limiter *loglimit.Limiter[[3]string] // by GPU, device and reason of an event

	now     time.Time // of the event
	effects []effect  // of the event so far

	devices []*trackedDevice // ordered by Device.Compare
	gpus    map[device.GPU]*trackedGPU
	absent  records // of devices that are not tracked

	startedAt time.Time               // the first event
	calls     map[device.GPU]gpuCalls // at the newest tick
	list      driverCall
	links     linkCall
	wait      waitCall

	listed        bool      // after the first listing of devices
	listingBegan  time.Time // of the newest listing
	listingFailed bool      // as a whole, of the same

	driver            device.Driver
	driverSince       time.Time // the driver has its state
	driverHung        bool      // calls about all GPUs hang
	driverErr         error     // of the first check that failed by a fault of the driver; nil: a GPU answers
	driverFailsChecks bool      // by checks, not by a listing; false: a GPU has answered since
	driverEndedAt     time.Time // the newest driverErr ended then
	restarts          uint      // as History.DriverRestarts
	restarting        bool      // Run ends once the restart is on disk
	replacedErr       error     // why Run is about to end

	phase    driverPhase
	released Cause           // of all devices while the driver is released; zero: the driver is in use
	release  *request        // in progress
	waiting  []pendingAnswer // for the next publication, or for a check

	published       []device.Status // nil: none yet
	missing         []device.Device // as published
	awaitRecovering bool            // the first publication waits for recovering devices
	historyLost     bool            // as in History; until the first publication
	unsaved         urgency
	savedAt         time.Time
}

func (e *engine) emit(f effect) { e.effects = append(e.effects, f) }

// mark applies evidence to one level of a GPU: to the GPU if id is empty.
func (e *engine) mark(g *trackedGPU, id device.ID, s *healthState, ev evidence) transition {
	next, tr := s.apply(ev, e.now)
	*s = next
	if tr.to == device.Healthy && (tr.previous.isFault() || ev.kind == evidenceTrusted) {
		g.endXids(id, e.now)
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

func (e *engine) logTransition(g *trackedGPU, id device.ID, s *healthState, tr transition) {
	level := slog.LevelInfo
	switch {
	// One line is about the driver.
	case s.cause.Reason == reasonDriver || tr.previous.Reason == reasonDriver && !s.cause.isFault():
		level = slog.LevelDebug
	case tr.to == device.Unhealthy && s.cause.isFault():
		level = slog.LevelWarn
	}
	message := [...]string{"device healthy", "device suspect", "device unhealthy", "device recovering"}[tr.to]
	if lost := lostMessages[s.cause.Reason]; tr.to == device.Unhealthy && lost != "" {
		message = lost
	}
	e.log.Log(context.Background(), level, message, "gpu", g.gpu, "index", g.device.Index, "device", id,
		"from", tr.from, "to", tr.to, "reason", s.cause.Reason, "previous_reason", tr.previous.Reason,
		"action", s.cause.Action, "flaps", s.flaps)
}

// lostMessages are the log messages about a lost GPU, by reason.
var lostMessages = map[string]string{
	reasonLost:        "GPU lost: fallen off the bus",
	device.ReasonGone: "GPU lost: no longer listed by the driver",
}

// markAll applies evidence to all levels of a GPU.
func (e *engine) markAll(g *trackedGPU, ev evidence) {
	for id, s := range g.levels("") {
		e.mark(g, id, s, ev)
	}
}

// markFault marks a GPU unhealthy for a cause that no event reported, and reports
// whether the cause is new.
func (e *engine) markFault(g *trackedGPU, c Cause) (isNew bool) {
	tr := e.mark(g, "", &g.health, evidence{cause: c})
	if tr.newCause && c.isFault() {
		e.emit(notify{
			At: e.now, GPU: g.gpu, Affected: g.affected(), Reason: c.Reason, Action: g.health.cause.Action,
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
func (e *engine) isAllocated(id device.ID) bool {
	return e.options.IsAllocated != nil && e.options.IsAllocated(id)
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

// driverPhase is whether the Monitor calls the driver.
type driverPhase uint8

const (
	phaseActive   driverPhase = iota
	phaseDraining             // no call begins; running calls are awaited
	phaseClosing              // the Backend releases the driver
	phaseReleased
)

// urgency is how soon the history must be saved.
type urgency uint8

const (
	saved    urgency = iota
	saveSoon         // within saveInterval
	saveNow          // also to the disk
)

func (e *engine) needSave(u urgency) { e.unsaved = max(e.unsaved, u) }

// pendingAnswer is the answer to a request about a device.
type pendingAnswer struct {
	request
	requestEnd

	gpu         *trackedGPU // of a Trust that waits for a check; nil: the answer is known
	checksBegun uint64      // the check that decides begins later
	deadline    time.Time   // of the check
}

// requestList makes a listing begin at once, or after the running one.
func (e *engine) requestList() { e.list.nextAt = e.now }

// setDriver publishes and logs a new state.
func (e *engine) setDriver(s device.DriverState, err error) {
	before := e.driver
	if before.State == s && fmt.Sprint(before.Err) == fmt.Sprint(err) {
		return
	}
	if before.State != s {
		e.driverSince = e.now
	}
	e.driver = device.Driver{State: s, Err: err}
	e.emit(setDriver(e.driver))
	switch {
	case s == device.DriverReleased:
		e.log.Info("driver released")
	case s != device.DriverUp:
		e.log.Warn("driver unusable", "err", err)
	case err != nil:
		e.log.Warn("driver cannot list some devices", "err", err)
	default:
		e.log.Info("driver up")
	}
}

// event is an input of the engine, of a type below.
type event any

type (
	// tick lets the engine derive and publish the results of the events, and
	// start the calls that are due.
	tick struct {
		calls  map[device.GPU]gpuCalls
		idle   bool // no call about a GPU runs, and no background call of the Backend
		stored bool // the disk has the saved history
	}
	listed struct { // by Devices
		devices []device.Device
		err     error
	}
	linksRead struct { // by Links
		links []device.Link
		err   error
	}
	waited struct { // by Wait; the zero Event: none
		event device.Event
		err   error
	}
	reported struct { // by the kernel log
		event device.Event
		count int
		at    time.Time // the newest
	}
	checked struct {
		gpu       device.GPU
		seq       uint64 // of the GPU's checks, counted from 1
		startedAt time.Time
		evidence  device.ResetEvidence
		err       error
	}
	request struct { // by the operator
		ctx     context.Context // of a release
		action  action
		id      device.ID // of a device
		note    string
		replyTo chan<- requestEnd // buffered
	}
	closed  struct{}              // by Close
	stopped struct{ cause error } // Run ends
)

// gpuCalls are the calls about a GPU.
type gpuCalls struct {
	busy   time.Duration // as of Readers.busy
	failed bool          // the newest read
}

// action is the kind of a request.
type action uint8

const (
	actionRelease action = iota
	actionResume
	actionRetire
	actionTrust
	actionForget
)

// requestEnd is the result of a request.
type requestEnd struct {
	Trusted
	err error
}

// effect is work of the Monitor for the engine, of a type below.
type effect any

type (
	publish        []device.Status
	setDriver      device.Driver
	setMissing     []device.Device
	setLinks       []device.Link
	setInterrupted bool // the driver's events
	notify         device.HealthEvent
	pause          bool // of the Readers
	list           struct{}
	readLinks      struct{}
	wait           struct{}
	closeBackend   struct{}
	end            struct{ err error } // of Run; the last effect
	checkGPU       struct {
		gpu device.GPU
		seq uint64
		at  time.Time
	}
	save struct {
		history History
		urgent  bool
	}
	reply struct {
		to chan<- requestEnd
		requestEnd
	}
)

// Trusted is the result of Monitor.Trust.
type Trusted struct {
	// Retired is set if the device, or a MIG device of the GPU, was retired.
	Retired bool
	// RepairPending is set if the next reset of the GPU repairs a part of a
	// fault. A pending repair does not make a device unhealthy.
	RepairPending bool
	// Err is why the earlier cause still holds: the GPU failed its check, is
	// gone, or was not checked.
	Err error
}
