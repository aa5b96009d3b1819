package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	listInterval            = 10 * time.Second
	noDriverListInterval    = time.Second             // while the driver cannot list
	listTimeout             = 4500 * time.Millisecond // for a listing that does not return
	defaultUnhealthyTimeout = 30 * time.Second
	kernelEventDelay        = 500 * time.Millisecond // of kernel log events; only the driver's report may name the MIG device
)

// A driver may hang as a whole, as its locks are shared by all GPUs. The Monitor finds the hang within five seconds: the first call
// that does not return makes checks of all GPUs due, and due again every maxCheckSpacing, as the driver may hang later.
const (
	hangSuspectTimeout = 500 * time.Millisecond // for one call, before the other GPUs are checked
	driverHangTimeout  = 2 * time.Second        // for calls about all GPUs
)

var errDriverHung = errors.New("calls about all GPUs do not return")

// Monitor merges driver events, checks and listings into the health of each device. It is the only writer of an Inventory. A fault
// marks only the GPU or MIG device unhealthy that the evidence is about, and recovery needs evidence as well.
type Monitor struct {
	Heartbeat

	unhealthyTimeout time.Duration
	backend          Backend
	readers          *Readers
	inventory        *Inventory
	log              *slog.Logger
	kernelEvents     eventQueue
	driver           driverStatus
	topology         topology
	wait             eventWait

	calls             sync.WaitGroup // goroutines inside Devices or Links, and Wait; at most one each
	checkResults      chan gpuCheckResult
	releaseRequests   chan releaseRequest
	backendClosed     chan struct{}
	firstListing      chan struct{}
	closeFirstListing func()

	// All below belong to Run's goroutine.
	tracker        *deviceTracker
	list           driverCall[[]Device]
	relist         bool // the running listing may be out of date
	driverHung     bool // calls about all GPUs hang
	phase          driverPhase
	pendingRelease releaseRequest // the release in progress
	replacedErr    error          // why Run is about to end
}

// NewMonitor returns a Monitor that lists the Backend's devices, calls GPUs through readers and publishes to inventory.
func NewMonitor(b Backend, r *Readers, inventory *Inventory, o MonitorOptions) *Monitor {
	m := &Monitor{
		unhealthyTimeout: cmp.Or(o.UnhealthyTimeout, defaultUnhealthyTimeout),
		backend:          b, readers: r, inventory: inventory, log: o.Log, tracker: newDeviceTracker(inventory, o),
		driver: driverStatus{log: o.Log},
		list:   newDriverCall[[]Device](), topology: topology{driverCall: newDriverCall[[]Link]()}, wait: eventWait{driverCall: newDriverCall[Event]()},
		checkResults:    make(chan gpuCheckResult),
		releaseRequests: make(chan releaseRequest), backendClosed: make(chan struct{}, 1), firstListing: make(chan struct{}),
	}
	m.driver.value.Store(&Driver{})
	m.closeFirstListing = sync.OnceFunc(func() { close(m.firstListing) })
	return m
}

// Ready returns an error until the devices of a driver are assessed. A node without a driver or without devices is ready.
func (m *Monitor) Ready() error {
	statuses, _ := m.inventory.Get()
	if s := m.Driver().State; s == DriverStarting || s == DriverUp && statuses == nil {
		return errors.New("devices not assessed yet")
	}
	return nil
}

// Driver returns the driver's state.
func (m *Monitor) Driver() Driver { return m.driver.get() }

func (m *Monitor) setDriver(s DriverState, err error) { m.driver.set(Driver{s, err}, m.tracker.listed) }

// FirstListing returns a channel that is closed after the first listing. Driver then returns the state after that listing, or a newer
// one. While the driver's library initializes, no listing returns.
func (m *Monitor) FirstListing() <-chan struct{} { return m.firstListing }

// Links returns the connections of the GPUs; nil before the first reading and without a LinkReader. The slice must not be changed.
func (m *Monitor) Links() []Link {
	if links := m.topology.links.Load(); links != nil {
		return *links
	}
	return nil
}

// EventOutage returns how long the driver's events have been interrupted: a Wait hangs, or all fail; 0 if not. Checks still find
// faults during an outage, but counts of Xids miss all events that the kernel log does not report.
func (m *Monitor) EventOutage() time.Duration { return m.wait.outage() }

// Report adds an event of the second source, the kernel log, and its time. Report never blocks, and is safe for concurrent use.
// An event that the driver reports as well counts once.
func (m *Monitor) Report(e Event, at time.Time) { m.kernelEvents.add(e, at, time.Now()) }

// Drain waits until no listing, reading of links or Wait runs, and reports false if ctx is done first.
func (m *Monitor) Drain(ctx context.Context) bool { return drain(ctx, &m.calls) }

// Run monitors the devices until ctx is done. Run never waits for the driver: a call that hangs keeps only its goroutine. If the driver
// was replaced, Run returns ErrDriverReplaced after the last call.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	defer func() { m.endRelease(context.Cause(ctx)) }()
	m.tracker.loadHistory(time.Now())
	defer m.saveFinalHistory()
	for {
		m.Beat()
		m.startCalls(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case r := <-m.list.results:
			m.handleListResult(r, time.Now())
		case r := <-m.topology.results:
			m.topology.handleResult(r, m.log, time.Now())
		case r := <-m.wait.results:
			m.handleWaitResult(r, time.Now())
		case r := <-m.checkResults:
			m.tracker.handleCheckResult(r, time.Now())
		case r := <-m.releaseRequests:
			m.handleReleaseRequest(r, time.Now())
		case <-m.backendClosed:
			m.finishRelease(time.Now())
		case <-tick.C:
		}
		m.update(time.Now())
		if err := m.advanceRelease(time.Now()); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
	}
}

// update derives, publishes and saves the health of the devices.
func (m *Monitor) update(now time.Time) {
	before := now.Add(-kernelEventDelay)
	if m.wait.interrupted {
		before = now
	}
	m.handleKernelEvents(before, now)
	m.detectStalls(now)
	m.tracker.removeExpired(now)
	m.tracker.publish(now)
	m.tracker.saveHistory(now)
}

// startCalls starts the calls that are due. One of Devices and Links runs at a time: the driver may keep the thread for long.
func (m *Monitor) startCalls(ctx context.Context, now time.Time) {
	if m.phase != phaseActive {
		return
	}
	if reader, ok := m.backend.(LinkReader); ok && m.topology.pending && m.topology.due(now) && !m.list.running() {
		m.topology.pending = false
		m.topology.start(&m.calls, now, func() ([]Link, error) { return reader.Links(ctx) })
	}
	if m.list.due(now) && !m.topology.running() {
		m.list.start(&m.calls, now, func() ([]Device, error) { return m.backend.Devices(ctx) })
	}
	if len(m.tracker.devices) > 0 && m.wait.due(now) {
		if m.wait.failingSince.Load() == nil {
			m.wait.failingSince.Store(&now)
		}
		m.wait.start(&m.calls, now, func() (Event, error) { return m.backend.Wait(ctx) })
	}
	m.startChecks(ctx, now)
}

// startChecks starts the checks that are due. If a call hangs, the checks of all other GPUs are due.
func (m *Monitor) startChecks(ctx context.Context, now time.Time) {
	gpus := m.tracker.gpus
	var longest time.Duration
	for gpu := range gpus {
		longest = max(longest, m.readers.Busy(gpu))
	}
	for gpu, g := range gpus {
		afterHang := longest > hangSuspectTimeout && (g.checkedAt.Before(now.Add(-longest)) || now.Sub(g.checkedAt) >= maxCheckSpacing)
		if !afterHang && !g.checkDue(now, m.readers.Failed(gpu), newGPUCheckSchedule(g.number, len(gpus))) {
			continue
		}
		seq := g.checksBegun + 1
		started := m.readers.Check(gpu, func(evidence ResetEvidence, err error) {
			select {
			case m.checkResults <- gpuCheckResult{gpu, seq, now, evidence, err}:
			case <-ctx.Done():
			}
		})
		if started {
			g.checkedAt, g.checksBegun, g.checkNow = now, seq, false
		}
	}
}

func (m *Monitor) handleListResult(r callResult[[]Device], now time.Time) {
	m.list.end(now, noDriverListInterval)
	if m.phase != phaseActive { // the listing began before the release
		return
	}
	defer m.closeFirstListing()
	switch {
	case errors.Is(r.err, ErrDriverReplaced):
		m.setDriver(DriverReplaced, r.err)
		m.replacedErr = r.err
		m.stopCalls("driver_replaced", now)
		return
	case errors.Is(r.err, ErrNoDriver):
		m.setDriver(DriverAbsent, r.err)
		return
	case r.value == nil && r.err != nil:
		m.setDriver(DriverFailing, r.err)
		return
	}
	m.list.nextAt = now.Add(listInterval)
	if m.relist {
		m.list.nextAt, m.relist = now, false
	}
	if !m.driverHung { // listings may work while calls about GPUs hang
		m.setDriver(DriverUp, r.err)
	}
	m.tracker.merge(r.value, now)
	m.topology.schedule(r.value, now)
}

// requestList makes a listing begin at once, or after the running one.
func (m *Monitor) requestList(now time.Time) {
	if m.list.running() {
		m.relist = true
	} else {
		m.list.nextAt = now
	}
}

func (m *Monitor) handleWaitResult(r callResult[Event], now time.Time) {
	m.wait.handleResult(r, m.log, now)
	if r.err != nil {
		m.tracker.checkAll()
	} else if r.value != (Event{}) {
		m.handleEvent(r.value, sourceDriver, now, now)
	}
}

func (m *Monitor) handleEvent(e Event, source int, at, now time.Time) {
	if e.PartitionChanged && m.tracker.gpus[e.GPU] != nil {
		m.log.Info("MIG layout changed", "gpu", e.GPU)
		m.requestList(now)
	}
	m.tracker.handleEvent(e, source, at, now)
}

// handleKernelEvents handles the events of the kernel log up to a time. The first listing comes first, since the events name GPUs.
func (m *Monitor) handleKernelEvents(before, now time.Time) {
	if !m.tracker.listed {
		return
	}
	queued, dropped := m.kernelEvents.takeBefore(before)
	if dropped > 0 {
		m.log.Warn("kernel log events dropped", "count", dropped)
	}
	for _, q := range queued {
		for range q.count {
			m.handleEvent(q.event, sourceKernel, q.happenedAt, now)
		}
	}
}

// detectStalls finds calls that do not return.
func (m *Monitor) detectStalls(now time.Time) {
	if m.phase != phaseActive {
		return
	}
	if m.list.running() && now.Sub(m.list.startedAt) > listTimeout {
		m.setDriverHung(errors.New("the driver's library does not return"))
	}
	if m.topology.running() && now.Sub(m.topology.startedAt) > m.unhealthyTimeout { // delays listings
		m.setDriverHung(errors.New("the driver's library does not return with the links"))
	}
	m.detectDriverHang(now)
	if m.wait.update(m.log) {
		m.tracker.lastOutageAt = now
	}
	for gpu, g := range m.tracker.gpus {
		m.tracker.applyAll(g, evidence{kind: evidenceResetCount, resets: g.resets}, now)
		stalled := m.readers.Busy(gpu) > m.unhealthyTimeout || !g.stalledSince.IsZero() && now.Sub(g.stalledSince) > m.unhealthyTimeout
		if !g.assessed {
			stalled = now.After(g.checkDeadline)
		}
		if stalled {
			m.tracker.addGPUFault(g, evidence{cause: healthCause{reason: "not_answering", faultAt: now, notedAt: now}}, now)
		}
	}
}

// detectDriverHang finds a driver that hangs as a whole: calls about all listed GPUs hang. A listing follows the hang.
func (m *Monitor) detectDriverHang(now time.Time) {
	listed, hung := 0, 0
	for gpu, g := range m.tracker.gpus {
		if !g.listed || !g.assessed {
			continue
		}
		listed++
		if m.readers.Busy(gpu) > driverHangTimeout {
			hung++
		}
	}
	wasHung := m.driverHung
	m.driverHung = listed > 0 && hung == listed
	switch {
	case m.driverHung:
		m.setDriverHung(errDriverHung)
	case wasHung:
		m.requestList(now)
	}
}

// setDriverHung keeps the first error of a hang: several calls hang at once, and each change of the error is logged.
func (m *Monitor) setDriverHung(err error) {
	if m.Driver().State != DriverNotAnswering {
		m.setDriver(DriverNotAnswering, err)
	}
}

// saveFinalHistory saves the history at the end of Run, with all events received so far: the next process takes them for historical.
func (m *Monitor) saveFinalHistory() {
	now := time.Now()
	select {
	case r := <-m.wait.results:
		m.handleWaitResult(r, now)
	default:
	}
	m.handleKernelEvents(now, now)
	m.tracker.historyChanged = true
	m.tracker.saveHistory(now)
}
