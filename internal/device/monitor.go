package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// The Monitor's paces. They are no flags: nobody has yet had a reason to turn them.
const (
	tickInterval            = 250 * time.Millisecond
	checkInterval           = 5 * time.Second         // a GPU that is healthy
	recheckInterval         = time.Second             // one that is not, or not known to be
	minCheckInterval        = time.Second / 20        // at most, however much the driver reports
	logInterval             = 10 * time.Second        // one kind of report
	listInterval            = 10 * time.Second        // while the driver is there
	noDriverListInterval    = time.Second             // while it is not
	firstCheckTimeout       = 5 * time.Second         // after a listing, or an answer; no verdict by then is a bad one
	defaultUnhealthyTimeout = 30 * time.Second        // a call that does not come back, where nobody says otherwise
	listTimeout             = 4500 * time.Millisecond // a listing that does not come back
	waitRetryInterval       = time.Second             // a Wait that failed
	waitTimeout             = 10 * time.Second        // a Wait that does not come back, or goes on failing
	resetBaselineTimeout    = 10 * time.Second        // a check that tells which resets came before a fault
)

// HistoryStore keeps the health of devices across processes.
type HistoryStore interface {
	// Save stores a history in the background. The Monitor calls Save at most a few times a second, and at once if a
	// device turns unhealthy.
	Save(h HealthHistory)
	// ExportedCounts returns the history whose counts may be published, nil for all zero: a published count must not
	// fall if the process is killed. Health is published without waiting for the store.
	ExportedCounts() *HealthHistory
}

// MonitorOptions configure a Monitor. All functions must return quickly.
type MonitorOptions struct {
	Log *slog.Logger
	// UnhealthyTimeout is how long a call about a GPU may run before the GPU is unhealthy; 0 is 30 seconds.
	UnhealthyTimeout time.Duration
	History          HealthHistory // from the previous process
	Store            HistoryStore  // nil: health is not saved, and all counts are published
	// IsAllocated reports whether a container has a device. An allocated device that is gone stays in the Inventory.
	// nil: no device is allocated.
	IsAllocated func(ID) bool
	// Policy returns the operator's policy for an Xid, at each report; nil: PolicyDefault.
	Policy func(xid uint64) Policy
	// OnHealthEvent receives each event, in order, and before the Inventory has the resulting status; nil: none does.
	OnHealthEvent func(HealthEvent)
}

// Monitor is the only writer of a Board: it merges the driver's events, checks of
// each GPU and listings into one verdict per device, and owns recovery. A GPU is
// condemned on evidence against that very GPU, and trusted again on evidence too.
type Monitor struct {
	Heartbeat
	options MonitorOptions

	backend      Backend
	readers      *Readers
	inventory    *Inventory
	log          *slog.Logger
	kernelEvents eventQueue

	driver atomic.Pointer[Driver] // written by Run
	links  atomic.Pointer[[]Link] // written by Run; nil before they were first read
	// waitFailingSince is when the first Wait began of those that have brought nothing but
	// errors, or not come back, since the last one that did its work; nil: none has
	// begun. Written by Run.
	waitFailingSince atomic.Pointer[time.Time]

	// calls counts the goroutines inside Devices or Links, and Wait, one each at most.
	calls           sync.WaitGroup
	listResults     chan deviceListResult
	linkResults     chan linkReadResult
	waitResults     chan eventWaitResult
	checkResults    chan gpuCheckResult
	releaseRequests chan releaseRequest
	backendClosed   chan struct{} // the Backend was closed
	// firstListing is closed by announce when the first listing has come back.
	firstListing      chan struct{}
	closeFirstListing func()

	// All below belong to Run's goroutine.
	devices           []*trackedDevice // in the order of devices
	gpus              map[GPU]*trackedGPU
	listedOnce        bool      // there was a listing
	relist            bool      // the running listing may have missed something
	listStartedAt     time.Time // when the running listing began; zero: none runs
	nextListAt        time.Time // when the next one is due
	driverHung        bool      // calls about all GPUs hang
	waitRunning       bool      // a Wait runs
	nextWaitAt        time.Time
	waitErr           string // of the newest Wait: the same one is said once
	topology          topologyState
	inEventOutage     bool      // and it was said
	lastOutageAt      time.Time // when it last was
	published         []Status
	scratch           []Status // what post compares with posted
	phase             driverPhase
	releaseCause      healthCause    // on all devices while the phase is not working
	pendingRelease    releaseRequest // the release under way
	replacedErr       error          // why Run is to end; nil otherwise
	publishedAt       time.Time
	unknownGPULimiter logLimiter // of Xids of GPUs that are not known

	absentRecords   map[recordKey]HealthRecord // of those that are not there
	savedHistory    *HealthHistory             // the newest of Counted
	awaitRecovering bool                       // the first post waits for those on probation
	historyLost     bool                       // as in History, before the first post
	historyChanged  bool                       // a verdict has, since it was handed to Remember
	countsChanged   bool                       // likewise, a count
	historySavedAt  time.Time
}

type (
	deviceListResult struct {
		devices []Device
		err     error
	}
	eventWaitResult struct {
		event Event
		err   error
	}
	gpuCheckResult struct {
		gpu       GPU
		seq       uint64 // of the GPU's checks, counted from 1
		startedAt time.Time
		evidence  ResetEvidence
		err       error
	}
)

// NewMonitor watches what the backend lists, calls GPUs through readers and posts
// to board. It does nothing before Run.
func NewMonitor(b Backend, r *Readers, inventory *Inventory, o MonitorOptions) *Monitor {
	m := &Monitor{
		options: o, backend: b, readers: r, inventory: inventory, log: o.Log,
		// One of each call runs at a time, so its result never blocks.
		listResults: make(chan deviceListResult, 1), linkResults: make(chan linkReadResult, 1), waitResults: make(chan eventWaitResult, 1),
		checkResults: make(chan gpuCheckResult), releaseRequests: make(chan releaseRequest), backendClosed: make(chan struct{}, 1),
		gpus: map[GPU]*trackedGPU{}, absentRecords: map[recordKey]HealthRecord{},
	}
	m.driver.Store(&Driver{})
	m.firstListing = make(chan struct{})
	m.closeFirstListing = sync.OnceFunc(func() { close(m.firstListing) })
	return m
}

// Ready says what a verdict is still missing. A node without a driver, or without
// a device, is ready: there is nothing to wait for.
func (m *Monitor) Ready() error {
	statuses, _ := m.inventory.Get()
	if s := m.Driver().State; s == DriverStarting || s == DriverUp && statuses == nil {
		return errors.New("no verdict on the devices yet")
	}
	return nil
}

// Run watches until ctx is done. It never waits for a call to the driver: one
// that hangs is left behind with its goroutine. Only where the driver was replaced it
// ends by itself, with ErrDriverReplaced, when no call is under way.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	defer func() { m.replyPendingRelease(context.Cause(ctx)) }()
	m.loadHistory()
	defer m.saveFinalHistory()
	for {
		m.Beat()
		m.startCalls(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case l := <-m.listResults:
			m.handleListResult(l, time.Now())
		case l := <-m.linkResults:
			m.handleLinkResult(l, time.Now())
		case r := <-m.waitResults:
			m.handleWaitResult(r, time.Now())
		case c := <-m.checkResults:
			m.handleCheckResult(c, time.Now())
		case o := <-m.releaseRequests:
			m.handleReleaseRequest(o, time.Now())
		case <-m.backendClosed:
			m.finishRelease(time.Now())
		case <-tick.C:
		}
		m.handleKernelEvents(time.Now())
		m.detectStalls(time.Now())
		m.removeExpired(time.Now())
		m.publish(time.Now())
		m.saveHistory(time.Now())
		if err := m.advanceRelease(time.Now()); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
	}
}

// Drain waits until no listing, no reading of links and no Wait runs, or ctx is done, and tells which.
func (m *Monitor) Drain(ctx context.Context) bool { return drain(ctx, &m.calls) }

// startCalls starts what is due and not under way.
func (m *Monitor) startCalls(ctx context.Context, now time.Time) {
	if m.phase != phaseActive {
		return
	}
	if m.listStartedAt.IsZero() && m.topology.readStartedAt.IsZero() {
		m.startLinkRead(ctx, now)
	}
	if m.listStartedAt.IsZero() && m.topology.readStartedAt.IsZero() && !now.Before(m.nextListAt) {
		m.listStartedAt = now
		m.calls.Go(func() {
			devices, err := m.backend.Devices(ctx)
			m.listResults <- deviceListResult{devices, err}
		})
	}
	if len(m.devices) > 0 && !m.waitRunning && !now.Before(m.nextWaitAt) {
		m.waitRunning = true
		if m.waitFailingSince.Load() == nil {
			m.waitFailingSince.Store(&now)
		}
		m.calls.Go(func() {
			event, err := m.backend.Wait(ctx)
			m.waitResults <- eventWaitResult{event, err}
		})
	}
	suspected, hangs := m.suspectHang(now)
	for gpu, g := range m.gpus {
		probe := hangs && (g.checkedAt.Before(suspected) || now.Sub(g.checkedAt) >= maxCheckSpacing) // whether the others hang as well
		if !probe && !g.checkDue(now, m.readers.Failed(gpu), newGPUCheckSchedule(g.number, len(m.gpus))) {
			continue
		}
		number := g.checksBegun + 1
		if m.readers.Check(gpu, func(v ResetEvidence, err error) { m.sendCheckResult(ctx, gpuCheckResult{gpu, number, now, v, err}) }) {
			g.checkedAt, g.checksBegun, g.checkNow = now, number, false
		}
	}
}

func (m *Monitor) sendCheckResult(ctx context.Context, c gpuCheckResult) {
	select {
	case m.checkResults <- c:
	case <-ctx.Done():
	}
}

func (m *Monitor) handleListResult(l deviceListResult, now time.Time) {
	m.listStartedAt = time.Time{}
	if m.phase != phaseActive { // it began before, and is the last
		return
	}
	defer m.closeFirstListing()
	if errors.Is(l.err, ErrDriverReplaced) {
		m.setDriver(Driver{DriverReplaced, l.err})
		m.replacedErr = l.err
		m.stopCalls("driver_replaced", now)
		return
	}
	if errors.Is(l.err, ErrNoDriver) {
		m.nextListAt = now.Add(noDriverListInterval)
		m.setDriver(Driver{DriverAbsent, l.err})
		return
	}
	if l.devices == nil && l.err != nil { // nothing is known of any
		m.nextListAt = now.Add(noDriverListInterval)
		m.setDriver(Driver{DriverFailing, l.err})
		return
	}
	m.nextListAt = now.Add(listInterval)
	if m.relist {
		m.nextListAt, m.relist = now, false
	}
	if !m.driverHung { // a listing need not hang with calls about GPUs
		m.setDriver(Driver{DriverUp, l.err})
	}
	m.mergeDevices(l.devices, now)
	m.listedOnce = true
	m.topology.scheduleRead(l.devices, now)
}

// requestList has a listing begin at once, or after the one that runs.
func (m *Monitor) requestList(now time.Time) {
	if m.listStartedAt.IsZero() {
		m.nextListAt = now
	} else {
		m.relist = true
	}
}

func (m *Monitor) handleCheckResult(c gpuCheckResult, now time.Time) {
	g := m.gpus[c.gpu]
	if g == nil || c.seq > g.checksBegun { // it was forgotten meanwhile, and may be back
		return
	}
	if errors.Is(c.err, ErrStalled) { // that is no answer, and what it means stands elsewhere
		if g.stalledSince.IsZero() {
			g.stalledSince = c.startedAt
		}
		return
	}
	g.stalledSince = time.Time{}
	if g.updateResetEvidence(c, now) {
		m.historyChanged = true
	}
	m.historyChanged = m.recordAbsentReset(g.gpu, c.evidence.EnergyCounter) || m.historyChanged
	if c.err != nil {
		m.applyFailedCheck(g, c, now)
		return
	}
	g.assessed = true
	if !g.listed {
		return
	}
	m.applyPassedCheck(g, &g.healthState, c)
	for _, d := range g.migDevices {
		m.applyPassedCheck(g, &d.state, c)
	}
}

// applyPassedCheck takes a check that found nothing to one of those whom it concerns.
func (m *Monitor) applyPassedCheck(g *trackedGPU, s *healthState, check gpuCheckResult) {
	previous := *s
	if s.recordPassedCheck(check) && previous.cause.reason != "" {
		m.historyChanged = m.historyChanged || !previous.cause.noFault
		m.log.Info("health", "gpu", g.gpu, "was", previous.cause.reason, "is", "", "flaps", s.flaps)
	}
	if s.health == Recovering && previous.health == Unhealthy {
		m.log.Info("on probation", "gpu", g.gpu, "was", previous.cause.reason, "for", s.recoveryPeriod(check.startedAt), "flaps", s.flaps)
	}
}

// applyFailedCheck takes a check that found something. Only one that finds nothing else takes two.
func (m *Monitor) applyFailedCheck(g *trackedGPU, c gpuCheckResult, now time.Time) {
	for _, d := range g.migDevices {
		d.state.passedChecks = 0
	}
	v, soft := newHealthCause(c)
	if v.needsReset { // it is told by a GPU that answers, and so knows all resets before
		v.resetBaseline = new(g.resets)
	}
	if soft && !g.recordSoftFailure(c.startedAt) {
		g.checkDeadline = now.Add(firstCheckTimeout) // the GPU has answered, so a second check decides
		m.log.Info("a check has failed, asking again", "gpu", g.gpu, "err", c.err)
		return
	}
	m.markGPUUnhealthy(g, v, now)
}

// detectStalls turns calls that do not come back into verdicts.
func (m *Monitor) detectStalls(now time.Time) {
	if m.phase != phaseActive {
		return
	}
	if !m.listStartedAt.IsZero() && now.Sub(m.listStartedAt) > listTimeout {
		m.setDriverHung(errors.New("the driver's library does not return"))
	}
	timeout := cmp.Or(m.options.UnhealthyTimeout, defaultUnhealthyTimeout)
	if !m.topology.readStartedAt.IsZero() && now.Sub(m.topology.readStartedAt) > timeout { // no listing begins meanwhile
		m.setDriverHung(errors.New("the driver's library does not return with the links"))
	}
	m.detectDriverHang(now)
	m.updateEventOutage(now)
	for gpu, g := range m.gpus {
		m.historyChanged = g.setResetBaselines(0, now) || m.historyChanged
		stalled := m.readers.Busy(gpu) > timeout || !g.stalledSince.IsZero() && now.Sub(g.stalledSince) > timeout
		if !g.assessed {
			stalled = now.After(g.checkDeadline)
		}
		if stalled {
			m.markGPUUnhealthy(g, healthCause{reason: "not_answering", faultAt: now, notedAt: now}, now)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
