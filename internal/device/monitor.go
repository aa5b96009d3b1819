package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/loglimit"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

const (
	listInterval            = 10 * time.Second
	noDriverListInterval    = time.Second             // while the driver cannot list
	listTimeout             = 4500 * time.Millisecond // for a listing that does not return
	defaultUnhealthyTimeout = 30 * time.Second
)

// A driver may hang as a whole, as its locks are shared by all GPUs. The Monitor finds the hang within five seconds: the first call
// that does not return makes checks of all GPUs due, and due again every maxCheckSpacing, as the driver may hang later.
const (
	callPollInterval   = 250 * time.Millisecond // between looks at calls that hang, or that a release waits for
	hangSuspectTimeout = 500 * time.Millisecond // for one call, before the other GPUs are checked
	driverHangTimeout  = 2 * time.Second        // for calls about all GPUs
)

// Monitor merges driver events, checks and listings into the health of each device. It is the only writer of an Inventory. A fault
// marks only the GPU or MIG device unhealthy that the evidence is about, and recovery needs evidence as well.
type Monitor struct {
	Heartbeat

	unhealthyTimeout time.Duration
	backend          Backend
	readers          *Readers
	inventory        *Inventory
	log              *slog.Logger
	driver           pubsub.Value[Driver]
	missing          pubsub.Value[[]Device]
	topology         topology
	wait             eventWait

	calls             sync.WaitGroup       // goroutines inside Devices or Links, Wait, and Close; at most one each
	results           chan func(time.Time) // of calls; has room for all, so a call never waits for Run
	checkResults      chan gpuCheckResult
	releaseRequests   chan releaseRequest
	operatorRequests  chan operatorRequest
	kernelEvents      chan kernelEvents
	firstListing      chan struct{}
	closeFirstListing sync.Once

	// All below belong to Run's goroutine.
	engine          *engine
	list            driverCall
	relist          bool      // the running listing may be out of date
	driverHung      bool      // calls about all GPUs hang
	driverFails     bool      // calls about all GPUs fail
	driverSince     time.Time // the driver has its state
	restarting      bool      // Run ends once the restart is on disk
	phase           driverPhase
	pendingRelease  releaseRequest // the release in progress
	pendingRequests []operatorRequest
	replacedErr     error // why Run is about to end
}

// NewMonitor returns a Monitor that lists the Backend's devices, calls GPUs through readers and publishes to inventory.
func NewMonitor(b Backend, r *Readers, inventory *Inventory, o MonitorOptions) *Monitor {
	return &Monitor{
		unhealthyTimeout: cmp.Or(o.UnhealthyTimeout, defaultUnhealthyTimeout),
		backend:          b, readers: r, inventory: inventory, log: o.Log,
		engine: &engine{
			options: o, inventory: inventory, log: o.Log, limiter: loglimit.New[eventLogKey](logInterval),
			gpus: map[GPU]*trackedGPU{}, absentRecords: map[recordKey]HealthRecord{},
		},
		results: make(chan func(time.Time), 4), checkResults: make(chan gpuCheckResult),
		releaseRequests: make(chan releaseRequest), operatorRequests: make(chan operatorRequest), firstListing: make(chan struct{}),
		kernelEvents: make(chan kernelEvents),
	}
}

// Ready returns an error until the devices of a driver are assessed. A node without a driver or without devices is ready.
func (m *Monitor) Ready() error {
	statuses, _ := m.inventory.Get()
	if s := m.Driver().State; s == DriverStarting || s == DriverUp && statuses == nil {
		return errors.New("devices not assessed yet")
	}
	return nil
}

// FirstListing returns a channel that is closed after the first listing. Driver then returns the state after that listing, or a newer
// one. While the driver's library initializes, no listing returns.
func (m *Monitor) FirstListing() <-chan struct{} { return m.firstListing }

// Links returns the connections of the GPUs; nil before the first reading and without a LinkReader. The slice must not be changed.
func (m *Monitor) Links() []Link {
	links, _ := m.topology.links.Get()
	return links
}

// Missing returns the known GPUs that the newest listing lacks, in order. Known are the GPUs of this process and of the history. Not
// missing are a retired GPU, a GPU with a successor at the same PCI address, and a GPU that was gone for a day before this process.
func (m *Monitor) Missing() []Device {
	missing, _ := m.missing.Get()
	return missing
}

// publishMissing publishes the missing GPUs.
func (m *Monitor) publishMissing() {
	missing := m.engine.missing()
	if before := m.Missing(); !slices.EqualFunc(missing, before, Device.Equal) {
		m.missing.Set(missing)
	}
}

// EventsInterrupted reports whether the driver's events are interrupted: a Wait hangs, or all fail. Checks still find faults, but counts
// of Xids miss all events that the kernel log does not report.
func (m *Monitor) EventsInterrupted() bool { return m.wait.interrupted.Load() }

// kernelEvents are equal events of the kernel log.
type kernelEvents struct {
	event Event
	count int
	at    time.Time // the newest
}

// Report adds equal events of the second source, the kernel log, with the time
// of the newest. An event that the driver reports within 10 s counts once.
// Report waits for the first listing, since the events name GPUs.
func (m *Monitor) Report(ctx context.Context, e Event, count int, at time.Time) error {
	select {
	case m.kernelEvents <- kernelEvents{e, count, at}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain waits until no listing, reading of links or Wait runs, and reports false if ctx is done first.
func (m *Monitor) Drain(ctx context.Context) bool { return drain(ctx, &m.calls) }

// Run monitors the devices until ctx is done. Run never waits for the driver: a call that hangs keeps only its goroutine. If the driver
// was replaced, Run returns ErrDriverReplaced after the last call.
func (m *Monitor) Run(ctx context.Context) error {
	defer func() { m.endRelease(context.Cause(ctx)) }()
	m.engine.loadHistory(time.Now())
	m.publishMissing()
	defer m.saveFinalHistory()
	for {
		m.Beat()
		m.startCalls(ctx, time.Now())
		var reports <-chan kernelEvents
		if m.engine.listed {
			reports = m.kernelEvents
		}
		select {
		case <-ctx.Done():
			return nil
		case handle := <-m.results:
			handle(time.Now())
		case r := <-m.checkResults:
			now := time.Now()
			m.engine.handleCheckResult(r, now)
			m.decideTrust(r, now)
		case r := <-m.releaseRequests:
			m.handleReleaseRequest(r, time.Now())
		case r := <-m.operatorRequests:
			m.handleOperatorRequest(r, time.Now())
		case r := <-reports:
			for range r.count {
				m.handleEvent(r.event, r.at, time.Now())
			}
		case <-time.After(time.Until(m.nextDue(time.Now()))):
		}
		m.update(time.Now())
		if err := cmp.Or(m.advanceRelease(time.Now()), m.checkRestart(time.Now())); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
	}
}

// nextDue returns the time of the next step without a result or an event: a whole second, unless a device is in doubt or a call hangs.
func (m *Monitor) nextDue(now time.Time) time.Time {
	t, active := m.engine, m.phase == phaseActive
	due := now.Add(retry.Aligned(time.Second))
	until := func(at time.Time, needed bool) {
		if needed && at.Before(due) {
			due = at
		}
	}
	for gpu, g := range t.gpus {
		until(g.checkDue(now, m.readers.Failed(gpu), len(t.gpus)), active && m.readers.Busy(gpu) < hangSuspectTimeout)
		until(now.Add(callPollInterval), m.readers.Busy(gpu) >= hangSuspectTimeout)
	}
	until(now.Add(callPollInterval), m.phase == phaseDraining || m.phase == phaseClosing)
	until(t.publishedAt.Add(countsInterval), t.countsUnpublished)
	until(t.historySavedAt.Add(countsInterval), t.countsChanged)
	return latest(due, now.Add(minCheckInterval)) // a check that cannot begin stays due
}

// update derives, publishes and saves the health of the devices.
func (m *Monitor) update(now time.Time) {
	m.detectStalls(now)
	m.detectDriverFault(now)
	m.engine.removeExpired(now)
	m.engine.publish(now)
	m.publishMissing()
	m.engine.saveHistory(now)
	m.answerOperator(now)
}

// startCalls starts the calls that are due. One of Devices and Links runs at a time: the driver may keep the thread for long.
func (m *Monitor) startCalls(ctx context.Context, now time.Time) {
	if m.phase != phaseActive {
		return
	}
	if reader, ok := m.backend.(LinkReader); ok && m.topology.pending && m.topology.due(now) && !m.list.running() {
		m.topology.pending = false
		m.start(&m.topology.driverCall, now, func() func(time.Time) {
			links, err := reader.Links(ctx)
			return func(now time.Time) { m.topology.handleResult(links, err, m.log, now) }
		})
	}
	if m.list.due(now) && !m.topology.running() {
		m.start(&m.list, now, func() func(time.Time) {
			devices, err := m.backend.Devices(ctx)
			return func(now time.Time) { m.handleListing(devices, err, now) }
		})
	}
	if len(m.engine.devices) > 0 && m.wait.due(now) {
		if m.wait.failingSince.IsZero() {
			m.wait.failingSince = now
		}
		m.start(&m.wait.driverCall, now, func() func(time.Time) {
			event, err := m.backend.Wait(ctx)
			return func(now time.Time) { m.handleWaitResult(event, err, now) }
		})
	}
	m.startChecks(ctx, now)
}

// startChecks starts the checks that are due. If a call hangs, the checks of all other GPUs are due.
func (m *Monitor) startChecks(ctx context.Context, now time.Time) {
	gpus := m.engine.gpus
	var longest time.Duration
	for gpu := range gpus {
		longest = max(longest, m.readers.Busy(gpu))
	}
	for gpu, g := range gpus {
		afterHang := longest >= hangSuspectTimeout && (g.checkedAt.Before(now.Add(-longest)) || now.Sub(g.checkedAt) >= maxCheckSpacing)
		if !afterHang && g.checkDue(now, m.readers.Failed(gpu), len(gpus)).After(now) {
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

func (m *Monitor) handleListing(devices []Device, err error, now time.Time) {
	m.engine.listingBegan, m.engine.listingFailed = m.list.startedAt, devices == nil && err != nil
	m.list.end(now, retry.Aligned(noDriverListInterval))
	if m.phase != phaseActive { // the listing began before the release
		return
	}
	defer m.closeFirstListing.Do(func() { close(m.firstListing) })
	switch {
	case errors.Is(err, ErrDriverReplaced):
		m.setDriver(DriverReplaced, err)
		m.replacedErr = err
		m.stopCalls("driver_replaced", now)
		return
	case errors.Is(err, ErrNoDriver):
		m.setDriver(DriverAbsent, err)
		return
	case devices == nil && err != nil:
		m.setDriver(DriverFailing, err)
		return
	}
	m.list.nextAt = now.Add(retry.Aligned(listInterval))
	if m.relist {
		m.list.nextAt, m.relist = now, false
	}
	switch {
	case m.driverHung: // listings may work while calls about GPUs do not
	case m.engine.driverErr != nil:
		m.setDriver(DriverFailing, m.engine.driverErr)
	default:
		m.setDriver(DriverUp, err)
	}
	m.engine.merge(devices, now)
	m.topology.schedule(devices, now)
}

// requestList makes a listing begin at once, or after the running one.
func (m *Monitor) requestList(now time.Time) {
	if m.list.running() {
		m.relist = true
	} else {
		m.list.nextAt = now
	}
}

func (m *Monitor) handleWaitResult(e Event, err error, now time.Time) {
	m.wait.logError(m.log, "cannot wait for driver events", err)
	if err != nil {
		m.wait.end(now, retry.Aligned(waitRetryInterval))
		m.engine.checkAll()
		return
	}
	m.wait.end(now, 0)
	m.wait.failingSince = time.Time{}
	if e != (Event{}) {
		m.handleEvent(e, now, now)
	}
}

func (m *Monitor) handleEvent(e Event, at, now time.Time) {
	if e.PartitionChanged && m.engine.gpus[e.GPU] != nil {
		m.log.Info("MIG layout changed", "gpu", e.GPU)
		m.requestList(now)
	}
	m.engine.handleEvent(e, at, now)
}

// detectStalls finds calls that do not return.
func (m *Monitor) detectStalls(now time.Time) {
	if m.phase != phaseActive {
		return
	}
	if m.list.running() && now.Sub(m.list.startedAt) > listTimeout {
		m.setDriverHung(errors.New("the driver's library hangs"))
	}
	if m.topology.running() && now.Sub(m.topology.startedAt) > m.unhealthyTimeout { // delays listings
		m.setDriverHung(errors.New("the query of links in the driver's library hangs"))
	}
	m.detectDriverHang(now)
	m.wait.update(m.log, now)
	for gpu, g := range m.engine.gpus {
		m.engine.applyAll(g, evidence{kind: evidenceResetCount, resets: g.resets}, now)
		stalled := m.readers.Busy(gpu) > m.unhealthyTimeout || !g.stalledSince.IsZero() && now.Sub(g.stalledSince) > m.unhealthyTimeout
		if !g.assessed {
			stalled = now.After(g.checkDeadline)
		}
		if stalled {
			m.engine.addGPUFault(g, evidence{cause: HealthCause{Reason: "not_responding", FaultAt: now, notedAt: now}}, now)
		}
	}
}

// detectDriverHang finds a driver that hangs as a whole: calls about all listed GPUs hang. A listing follows the hang.
func (m *Monitor) detectDriverHang(now time.Time) {
	listed, hung := 0, 0
	for gpu, g := range m.engine.gpus {
		if !g.listed || !g.assessed {
			continue
		}
		listed++
		if m.readers.Busy(gpu) >= driverHangTimeout {
			hung++
		}
	}
	wasHung := m.driverHung
	m.driverHung = listed > 0 && hung == listed
	switch {
	case m.driverHung:
		m.setDriverHung(errors.New("calls to all GPUs hang"))
	case wasHung:
		m.requestList(now)
	}
}

// detectDriverFault publishes that calls about all GPUs fail. A listing follows the fault.
func (m *Monitor) detectDriverFault(now time.Time) {
	t, failed := m.engine, m.driverFails
	m.driverFails = t.driverErr != nil
	switch {
	case m.driverFails && m.Driver().State == DriverUp:
		m.setDriver(DriverFailing, t.driverErr)
	case failed && !m.driverFails || t.listingDue:
		m.requestList(now)
	}
	t.listingDue = false
}

// setDriverHung keeps the first error of a hang: several calls hang at once, and each change of the error is logged.
func (m *Monitor) setDriverHung(err error) {
	if m.Driver().State != DriverNotResponding {
		m.setDriver(DriverNotResponding, err)
	}
}

// saveFinalHistory saves the history at the end of Run, with all events received so far: the next process takes them for historical.
func (m *Monitor) saveFinalHistory() {
	now := time.Now()
	for len(m.results) > 0 {
		(<-m.results)(now)
	}
	m.engine.historyChanged = true
	m.engine.saveHistory(now)
}
