package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// Monitor merges driver events, checks and listings into the health of each
// device, as the only writer of an Inventory. A fault marks only the GPU or
// MIG device unhealthy that the evidence is about, and recovery needs evidence
// as well.
//
// The engine decides. The Monitor makes the calls, passes the results to the
// engine, and carries out the effects.
type Monitor struct {
	Heartbeat

	backend      Backend
	readers      *Readers
	options      MonitorOptions
	inventory    *Inventory
	driver       *pubsub.Value[Driver]
	missing      pubsub.Value[[]Device]
	links        pubsub.Value[[]Link] // nil: not read yet
	interrupted  atomic.Bool
	firstListing chan struct{}

	calls   sync.WaitGroup // goroutines inside Devices or Links, Wait, and Close; at most one each
	events  chan event     // received by Run
	reports chan event     // of the kernel log; received after the first listing, since the events name GPUs
	ended   chan struct{}  // closed at the end of Run
	engine  *engine        // belongs to Run's goroutine
}

// NewMonitor returns a Monitor that lists the Backend's devices, calls GPUs
// through readers and publishes to inventory.
func NewMonitor(b Backend, r *Readers, inventory *Inventory, o MonitorOptions) *Monitor {
	_, hasLinks := b.(LinkReader)
	return &Monitor{
		backend: b, readers: r, options: o, inventory: inventory, firstListing: make(chan struct{}),
		events: make(chan event), reports: make(chan event), ended: make(chan struct{}),
		driver: cmp.Or(o.Driver, new(pubsub.Value[Driver])),
		engine: newEngine(o, hasLinks),
	}
}

// Ready returns an error until the devices of a driver are assessed. A node
// without a driver or without devices is ready.
func (m *Monitor) Ready() error {
	statuses, _ := m.inventory.Get()
	if s := m.Driver().State; s == DriverStarting || s == DriverUp && statuses == nil {
		return errors.New("devices not assessed yet")
	}
	return nil
}

// Driver returns the driver's state.
func (m *Monitor) Driver() Driver {
	d, _ := m.driver.Get()
	return d
}

// FirstListing returns a channel that is closed after the first listing. Driver
// then returns the state after that listing, or a newer one. While the driver's
// library initializes, no listing returns.
func (m *Monitor) FirstListing() <-chan struct{} { return m.firstListing }

// Links returns the connections of the GPUs; nil before the first reading and
// without a LinkReader. The slice must not be changed.
func (m *Monitor) Links() []Link {
	links, _ := m.links.Get()
	return links
}

// Missing returns the known GPUs that the newest listing lacks, in order. Known
// are the GPUs of this process and of the history. Not missing are a retired
// GPU, a GPU with a successor at the same PCI address, and a GPU that was gone
// for a day before this process.
func (m *Monitor) Missing() []Device {
	missing, _ := m.missing.Get()
	return missing
}

// EventsInterrupted reports whether the driver's events are interrupted: a Wait
// hangs, or all fail. Checks still find faults, but counts of Xids miss all
// events that the kernel log does not report.
func (m *Monitor) EventsInterrupted() bool { return m.interrupted.Load() }

// Report adds equal events of the second source, the kernel log, with the time
// of the newest. An event that the driver reports within 10 s counts once.
// Report waits for the first listing, since the events name GPUs.
func (m *Monitor) Report(ctx context.Context, e Event, count int, at time.Time) error {
	select {
	case m.reports <- reported{e, count, at}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain waits until no listing, reading of links or Wait runs, and reports false
// if ctx is done first.
func (m *Monitor) Drain(ctx context.Context) bool { return drain(ctx, &m.calls) }

// Run monitors the devices until ctx is done. Run never waits for the driver: a
// call that hangs keeps only its goroutine. If the driver was replaced, Run
// returns ErrDriverReplaced after the last call. Run is called once.
func (m *Monitor) Run(ctx context.Context) error {
	defer close(m.ended)
	defer m.finish(ctx)
	for {
		m.Beat()
		if err := m.apply(ctx, m.tick()); err != nil {
			return fmt.Errorf("watch devices: %w", err)
		}
		var reports <-chan event
		if m.engine.listed {
			reports = m.reports
		}
		var e event
		select {
		case <-ctx.Done():
			return nil
		case e = <-m.events:
		case e = <-reports:
		case <-time.After(time.Until(m.engine.due(time.Now()))):
			continue
		}
		_ = m.apply(ctx, e) // only a tick ends Run
	}
}

// finish saves the history with all events received so far: the next process
// takes them for historical.
func (m *Monitor) finish(ctx context.Context) {
	for {
		select {
		case e := <-m.events:
			_ = m.apply(ctx, e)
		default:
			_ = m.apply(ctx, stopped{context.Cause(ctx)})
			return
		}
	}
}

// tick returns the state of the calls.
func (m *Monitor) tick() tick {
	closer, closable := m.backend.(Closer)
	t := tick{
		calls:  map[GPU]gpuCalls{},
		idle:   m.readers.Idle() && (!closable || closer.Idle()),
		stored: m.options.Store == nil || m.options.Store.Stored(),
	}
	for gpu := range m.engine.gpus {
		t.calls[gpu] = gpuCalls{m.readers.Busy(gpu), m.readers.Failed(gpu)}
	}
	return t
}

// apply applies an event and carries out the effects. An error ends Run.
func (m *Monitor) apply(ctx context.Context, e event) error {
	for _, f := range m.engine.apply(e, time.Now()) {
		switch f := f.(type) {
		case end:
			return f.err
		case publish:
			m.inventory.Set(f)
		case setDriver:
			m.driver.Set(Driver(f))
		case setMissing:
			m.missing.Set(f)
		case setLinks:
			m.links.Set(f)
		case setInterrupted:
			m.interrupted.Store(bool(f))
		case firstListed:
			close(m.firstListing)
		case save:
			if m.options.Store != nil {
				m.options.Store.SaveHealth(f.history, f.urgent)
			}
		case notify:
			if m.options.OnHealthEvent != nil {
				m.options.OnHealthEvent(HealthEvent(f))
			}
		case reply:
			f.to <- f.requestEnd
		case pause:
			m.readers.SetPaused(bool(f))
		case checkGPU:
			m.check(checkBegun(f))
		case list:
			m.start(func() event {
				devices, err := m.backend.Devices(ctx)
				return listed{devices, err}
			})
		case readLinks:
			m.start(func() event {
				links, err := m.backend.(LinkReader).Links(ctx)
				return linksRead{links, err}
			})
		case wait:
			m.start(func() event {
				e, err := m.backend.Wait(ctx)
				return waited{e, err}
			})
		case closeBackend:
			m.start(func() event {
				if c, ok := m.backend.(Closer); ok {
					c.Close()
				}
				return closed{}
			})
		}
	}
	return nil
}

// start makes a call in the background. Run receives its result.
func (m *Monitor) start(call func() event) { m.calls.Go(func() { m.send(call()) }) }

// send passes an event to Run, unless Run has ended.
func (m *Monitor) send(e event) {
	select {
	case m.events <- e:
	case <-m.ended:
	}
}

// check starts a check, unless another call about the GPU runs.
func (m *Monitor) check(c checkBegun) {
	begun := m.readers.Check(c.gpu, func(evidence ResetEvidence, err error) {
		m.send(checked{c.gpu, c.seq, c.at, evidence, err})
	})
	if begun {
		m.engine.apply(c, c.at)
	}
}

// Retire takes a GPU with its MIG devices, or one MIG device, out of service
// until Trust. The note is the operator's reason. Containers keep the device.
// Retire returns after the new health is published; Retire and Trust require a
// running Run.
func (m *Monitor) Retire(ctx context.Context, id ID, note string) error {
	return m.do(ctx, request{action: actionRetire, id: id, note: note}).err
}

// Trust ends the retirement of a GPU and its MIG devices, or of one MIG device.
// If a passed check then shows that the device works, Trust also ends the cause
// of earlier reports, and forgets failed resets: the device is healthy at once,
// without a reset. A failed check shows that the cause holds, and so do a GPU
// that is gone and a call that hangs.
func (m *Monitor) Trust(ctx context.Context, id ID) (Trusted, error) {
	a := m.do(ctx, request{action: actionTrust, id: id})
	return a.Trusted, a.err
}

// Forget removes a missing GPU from the known GPUs. A GPU that is listed, or has
// an allocated device, is not removed.
func (m *Monitor) Forget(ctx context.Context, gpu ID) error {
	return m.do(ctx, request{action: actionForget, id: gpu}).err
}

// Release releases the driver, for a reset, a new MIG layout or another driver.
// All devices turn unhealthy ("released"), and after the last call a Backend
// that is a Closer is closed.
//
// Release returns when the driver is released. If calls do not return before ctx
// is done, the devices are resumed and Release returns an error. If Close does
// not return before ctx is done, Release returns an error, and the devices are
// resumed after Close. Release and Resume require a running Run.
func (m *Monitor) Release(ctx context.Context) error {
	return m.do(ctx, request{action: actionRelease}).err
}

// Resume ends a Release. Devices recover when their checks pass, and a reset in
// between counts.
func (m *Monitor) Resume(ctx context.Context) error {
	return m.do(ctx, request{action: actionResume}).err
}

// do passes a request to Run and waits for the answer: at most trustTimeout or,
// for a release, until ctx is done.
func (m *Monitor) do(ctx context.Context, r request) requestEnd {
	replies := make(chan requestEnd, 1)
	r.ctx, r.replyTo = ctx, replies
	select {
	case m.events <- r:
		return <-replies
	case <-ctx.Done():
		return requestEnd{err: fmt.Errorf("send request to the monitor: %w", ctx.Err())}
	}
}
