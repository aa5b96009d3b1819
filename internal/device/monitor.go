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
	tickEvery      = 250 * time.Millisecond
	checkEvery     = 5 * time.Second         // a GPU that is healthy
	recheckEvery   = time.Second             // one that is not, or not known to be
	urgentEvery    = time.Second / 20        // at most, however much the driver reports
	sayEvery       = 10 * time.Second        // one kind of report
	listEvery      = 10 * time.Second        // while the driver is there
	lookForEvery   = time.Second             // while it is not
	firstVerdictBy = 5 * time.Second         // after a listing, or an answer; no verdict by then is a bad one
	unhealthyAfter = 30 * time.Second        // a call that does not come back, where nobody says otherwise
	notAnsweringBy = 4500 * time.Millisecond // a listing that does not come back
	waitAgainAfter = time.Second             // a Wait that failed
	deafAfter      = 10 * time.Second        // a Wait that does not come back, or goes on failing
	baselineBy     = 10 * time.Second        // a check that tells which resets came before a fault
)

// Monitor is the only writer of a Board: it merges the driver's events, checks of
// each GPU and listings into one verdict per device, and owns recovery. A GPU is
// condemned on evidence against that very GPU, and trusted again on evidence too.
type Monitor struct {
	Pulse
	// Held tells whether somebody holds a device: then it is kept, however long it has
	// been gone. It must be quick. Set before Run; nil: nobody holds any.
	Held func(ID) bool
	// Policy is what the operator wants of an Xid. It is asked at each report, and must be
	// quick. Set before Run; nil: as the Backend's table says.
	Policy func(xid uint64) Policy
	// UnhealthyAfter is how long a call about a GPU may run before the GPU is unhealthy.
	// Set before Run; 0: 30 seconds.
	UnhealthyAfter time.Duration
	// Happened is told of each occurrence, in their order, and before the Board says what
	// came of it. It must be quick. Set before Run; nil: nobody.
	Happened func(Occurrence)
	// Remembered is what an earlier process has handed to Remember. Set before Run.
	Remembered History
	// Remember is handed what the next process has to know, whenever that changes: a few
	// times a second at most, but for verdicts. It must be quick. Set before Run; nil:
	// nobody.
	Remember func(History)
	// Counted returns the newest history whose counts the Board may show: a count that is
	// shown must not fall when the process is killed. Verdicts do not wait for it. A nil
	// history counts nothing. It must be quick. Set before Run; nil: the Board shows all.
	Counted func() *History

	backend Backend
	readers *Readers
	board   *Board
	log     *slog.Logger
	inbox   inbox

	driver atomic.Pointer[Driver] // written by Run
	links  atomic.Pointer[[]Link] // written by Run; nil before they were first read
	// deafSince is when the first Wait began of those that have brought nothing but
	// errors, or not come back, since the last one that did its work; nil: none has
	// begun. Written by Run.
	deafSince atomic.Pointer[time.Time]

	// calls counts the goroutines inside Devices or Links, and Wait, one each at most.
	calls  sync.WaitGroup
	lists  chan listing
	linked chan linking
	events chan report
	checks chan checkup
	orders chan order
	closed chan struct{} // the Backend was closed
	// first is closed by announce when the first listing has come back.
	first    chan struct{}
	announce func()

	// All below belong to Run's goroutine.
	wards     []*ward // in the order of devices
	patients  map[GPU]*patient
	known     bool      // there was a listing
	again     bool      // the running listing may have missed something
	listSince time.Time // when the running listing began; zero: none runs
	listNext  time.Time // when the next one is due
	hung      bool      // calls about all GPUs hang
	waiting   bool      // a Wait runs
	waitNext  time.Time
	waitErr   string // of the newest Wait: the same one is said once
	wiring    wiring
	deaf      bool      // and it was said
	deafAt    time.Time // when it last was
	posted    []Status
	scratch   []Status // what post compares with posted
	phase     phase
	away      verdict // on all devices while the phase is not working
	pending   order   // the release under way
	replaced  error   // why Run is to end; nil otherwise
	postedAt  time.Time
	strangers sayings // of Xids of GPUs that are not known

	recalled     map[recordKey]Record // of those that are not there
	counts       *History             // the newest of Counted
	careful      bool                 // the first post waits for those on probation
	lost         bool                 // as in History, before the first post
	changed      bool                 // a verdict has, since it was handed to Remember
	tallied      bool                 // likewise, a count
	rememberedAt time.Time
}

type (
	listing struct {
		devices []Device
		err     error
	}
	report struct {
		event Event
		err   error
	}
	checkup struct {
		gpu    GPU
		number uint64 // of the GPU's checks, counted from 1
		began  time.Time
		vitals Vitals
		err    error
	}
)

// NewMonitor watches what the backend lists, calls GPUs through readers and posts
// to board. It does nothing before Run.
func NewMonitor(b Backend, r *Readers, board *Board, log *slog.Logger) *Monitor {
	m := &Monitor{
		backend: b, readers: r, board: board, log: log,
		// One of each call runs at a time, so its result never blocks.
		lists: make(chan listing, 1), linked: make(chan linking, 1), events: make(chan report, 1),
		checks: make(chan checkup), orders: make(chan order), closed: make(chan struct{}, 1),
		patients: map[GPU]*patient{}, recalled: map[recordKey]Record{},
	}
	m.driver.Store(&Driver{})
	m.first = make(chan struct{})
	m.announce = sync.OnceFunc(func() { close(m.first) })
	return m
}

// Ready says what a verdict is still missing. A node without a driver, or without
// a device, is ready: there is nothing to wait for.
func (m *Monitor) Ready() error {
	statuses, _ := m.board.Look()
	if s := m.Driver().State; s == DriverStarting || s == DriverUp && statuses == nil {
		return errors.New("no verdict on the devices yet")
	}
	return nil
}

// Run watches until ctx is done. It never waits for a call to the driver: one
// that hangs is left behind with its goroutine. Only where the driver was replaced it
// ends by itself, with ErrReplaced, when no call is under way.
func (m *Monitor) Run(ctx context.Context) error {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	defer func() { m.answerPending(context.Cause(ctx)) }()
	m.recall()
	defer m.rememberLast()
	for {
		m.Beat()
		m.startCalls(ctx, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case l := <-m.lists:
			m.listed(l, time.Now())
		case l := <-m.linked:
			m.wired(l, time.Now())
		case r := <-m.events:
			m.reported(r, time.Now())
		case c := <-m.checks:
			m.checked(c, time.Now())
		case o := <-m.orders:
			m.obey(o, time.Now())
		case <-m.closed:
			m.released(time.Now())
		case <-tick.C:
		}
		m.readReports(time.Now())
		m.judgeSilence(time.Now())
		m.forget(time.Now())
		m.post(time.Now())
		m.remember(time.Now())
		if err := m.goOn(time.Now()); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
	}
}

// Drain waits until no listing, no reading of links and no Wait runs, or ctx is done, and tells which.
func (m *Monitor) Drain(ctx context.Context) bool { return drain(ctx, &m.calls) }

// startCalls starts what is due and not under way.
func (m *Monitor) startCalls(ctx context.Context, now time.Time) {
	if m.phase != working {
		return
	}
	if m.listSince.IsZero() && m.wiring.since.IsZero() {
		m.startLinks(ctx, now)
	}
	if m.listSince.IsZero() && m.wiring.since.IsZero() && !now.Before(m.listNext) {
		m.listSince = now
		m.calls.Go(func() {
			devices, err := m.backend.Devices(ctx)
			m.lists <- listing{devices, err}
		})
	}
	if len(m.wards) > 0 && !m.waiting && !now.Before(m.waitNext) {
		m.waiting = true
		if m.deafSince.Load() == nil {
			m.deafSince.Store(&now)
		}
		m.calls.Go(func() {
			event, err := m.backend.Wait(ctx)
			m.events <- report{event, err}
		})
	}
	suspected, hangs := m.suspectHang(now)
	for gpu, p := range m.patients {
		probes := hangs && (p.checkedAt.Before(suspected) || now.Sub(p.checkedAt) >= checkApart) // whether the others hang as well
		if !probes && !p.due(now, m.readers.Failed(gpu), rotaOf(p.number, len(m.patients))) {
			continue
		}
		number := p.checks + 1
		if m.readers.Check(gpu, func(v Vitals, err error) { m.answer(ctx, checkup{gpu, number, now, v, err}) }) {
			p.checkedAt, p.checks, p.urgent = now, number, false
		}
	}
}

func (m *Monitor) answer(ctx context.Context, c checkup) {
	select {
	case m.checks <- c:
	case <-ctx.Done():
	}
}

func (m *Monitor) listed(l listing, now time.Time) {
	m.listSince = time.Time{}
	if m.phase != working { // it began before, and is the last
		return
	}
	defer m.announce()
	if errors.Is(l.err, ErrReplaced) {
		m.setDriver(Driver{DriverReplaced, l.err})
		m.replaced = l.err
		m.leave("driver_replaced", now)
		return
	}
	if errors.Is(l.err, ErrNoDriver) {
		m.listNext = now.Add(lookForEvery)
		m.setDriver(Driver{DriverAbsent, l.err})
		return
	}
	if l.devices == nil && l.err != nil { // nothing is known of any
		m.listNext = now.Add(lookForEvery)
		m.setDriver(Driver{DriverFailing, l.err})
		return
	}
	m.listNext = now.Add(listEvery)
	if m.again {
		m.listNext, m.again = now, false
	}
	if !m.hung { // a listing need not hang with calls about GPUs
		m.setDriver(Driver{DriverUp, l.err})
	}
	m.merge(l.devices, now)
	m.known = true
	m.wiring.want(l.devices, now)
}

// list has a listing begin at once, or after the one that runs.
func (m *Monitor) list(now time.Time) {
	if m.listSince.IsZero() {
		m.listNext = now
	} else {
		m.again = true
	}
}

func (m *Monitor) checked(c checkup, now time.Time) {
	p := m.patients[c.gpu]
	if p == nil || c.number > p.checks { // it was forgotten meanwhile, and may be back
		return
	}
	if errors.Is(c.err, ErrStalled) { // that is no answer, and what it means stands elsewhere
		if p.silent.IsZero() {
			p.silent = c.began
		}
		return
	}
	p.silent = time.Time{}
	if p.vital(c, now) {
		m.changed = true
	}
	m.changed = m.mendAbsent(p.gpu, c.vitals.Odometer) || m.changed
	if c.err != nil {
		m.failed(p, c, now)
		return
	}
	p.answered = true
	if !p.listed {
		return
	}
	m.passed(p, &p.condition, c)
	for _, w := range p.slices {
		m.passed(p, &w.own, c)
	}
}

// passed takes a check that found nothing to one of those whom it concerns.
func (m *Monitor) passed(p *patient, c *condition, k checkup) {
	was := *c
	if c.passed(k) && was.verdict.reason != "" {
		m.changed = m.changed || !was.verdict.quiet
		m.log.Info("health", "gpu", p.gpu, "was", was.verdict.reason, "is", "", "flaps", c.flaps)
	}
	if c.health == Probation && was.health == Unhealthy {
		m.log.Info("on probation", "gpu", p.gpu, "was", was.verdict.reason, "for", c.probation(k.began), "flaps", c.flaps)
	}
}

// failed takes a check that found something. Only one that finds nothing else takes two.
func (m *Monitor) failed(p *patient, c checkup, now time.Time) {
	for _, w := range p.slices {
		w.own.good = 0
	}
	v, soft := explain(c)
	if v.byReset { // it is told by a GPU that answers, and so knows all resets before
		v.resets = new(p.resets)
	}
	if soft && !p.doubts(c.began) {
		p.verdictBy = now.Add(firstVerdictBy) // the GPU has answered, so a second check decides
		m.log.Info("a check has failed, asking again", "gpu", p.gpu, "err", c.err)
		return
	}
	m.find(p, v, now)
}

// judgeSilence turns calls that do not come back into verdicts.
func (m *Monitor) judgeSilence(now time.Time) {
	if m.phase != working {
		return
	}
	if !m.listSince.IsZero() && now.Sub(m.listSince) > notAnsweringBy {
		m.driverHangs(errors.New("the driver's library does not return"))
	}
	after := cmp.Or(m.UnhealthyAfter, unhealthyAfter)
	if !m.wiring.since.IsZero() && now.Sub(m.wiring.since) > after { // no listing begins meanwhile
		m.driverHangs(errors.New("the driver's library does not return with the links"))
	}
	m.judgeDriver(now)
	m.judgeHearing(now)
	for gpu, p := range m.patients {
		m.changed = p.baseline(0, now) || m.changed
		silent := m.readers.Busy(gpu) > after || !p.silent.IsZero() && now.Sub(p.silent) > after
		if !p.answered {
			silent = now.After(p.verdictBy)
		}
		if silent {
			m.find(p, verdict{reason: "not_answering", at: now, noted: now}, now)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
