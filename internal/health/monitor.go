// Package health finds faults of GPUs and MIG devices, and their recovery.
//
// Readers isolate calls about GPUs that hang. A Monitor merges driver events,
// checks and listings into the health of each device, and publishes the result
// in a device.Inventory. The engine decides: apply takes an event and returns
// the work of the Monitor.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// Monitor merges driver events, checks and listings into the health of each
// device, as the only writer of an Inventory. A fault marks only the GPU or
// MIG device unhealthy that the evidence is about, and recovery needs evidence
// as well.
//
// The engine decides. The Monitor makes the calls, passes the results to the
// engine, and carries out the effects.
type Monitor struct {
	device.Heartbeat

	backend     device.Backend
	readers     *Readers
	options     Options
	inventory   *device.Inventory
	driver      *pubsub.Value[device.Driver]
	missing     pubsub.Value[[]device.Device]
	links       pubsub.Value[[]device.Link] // nil: not read yet
	interrupted atomic.Bool

	calls   sync.WaitGroup // goroutines inside Devices or Links, Wait, and Close; at most one each
	events  chan event     // received by Run
	reports chan event     // of the kernel log; received after the first listing, since the events name GPUs
	ended   chan struct{}  // closed at the end of Run
	engine  *engine        // belongs to Run's goroutine
}

// NewMonitor returns a Monitor that lists the Backend's devices, calls GPUs
// through readers and publishes to inventory.
func NewMonitor(b device.Backend, r *Readers, inventory *device.Inventory, o Options) *Monitor {
	return &Monitor{
		backend: b, readers: r, options: o, inventory: inventory,
		events: make(chan event), reports: make(chan event), ended: make(chan struct{}),
		driver: cmp.Or(o.Driver, new(pubsub.Value[device.Driver])),
		engine: newEngine(o),
	}
}

// Ready returns an error until the devices of a driver are assessed. A node
// without a driver or without devices is ready.
func (m *Monitor) Ready() error {
	s := m.Driver().State
	if s == device.DriverStarting || s == device.DriverUp && m.inventory.Newest() == nil {
		return errors.New("devices not assessed yet")
	}
	return nil
}

// Driver returns the driver's state.
func (m *Monitor) Driver() device.Driver { return m.driver.Newest() }

// Links returns the connections of the GPUs; nil before the first reading. The
// slice must not be changed.
func (m *Monitor) Links() []device.Link { return m.links.Newest() }

// Missing returns the known GPUs that the newest listing lacks, in order. Known
// are the GPUs of this process and of the history. Not missing are a retired
// GPU, a GPU with a successor at the same PCI address, and a GPU that was gone
// for a day before this process.
func (m *Monitor) Missing() []device.Device { return m.missing.Newest() }

// EventsInterrupted reports whether the driver's events are interrupted: a Wait
// hangs, or all fail. Checks still find faults, but counts of Xids miss all
// events that the kernel log does not report.
func (m *Monitor) EventsInterrupted() bool { return m.interrupted.Load() }

// Report adds equal events of the second source, the kernel log, with the time
// of the newest. An event that the driver reports within 10 s counts once.
// Report waits for the first listing, since the events name GPUs.
func (m *Monitor) Report(ctx context.Context, e device.Event, count int, at time.Time) error {
	select {
	case m.reports <- reported{e, count, at}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Drain waits until no listing, reading of links or Wait runs, and reports false
// if ctx is done first.
func (m *Monitor) Drain(ctx context.Context) bool {
	_, drained := retry.Await(ctx, func(context.Context) (none struct{}) {
		m.calls.Wait()
		return none
	})
	return drained
}

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
	t := tick{
		calls:  map[device.GPU]gpuCalls{},
		idle:   m.readers.Idle() && m.backend.Idle(),
		stored: m.options.Store == nil || m.options.Store.Stored(),
	}
	for gpu := range m.engine.gpus {
		t.calls[gpu] = gpuCalls{m.readers.busy(gpu), m.readers.hasFailed(gpu)}
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
			m.driver.Set(device.Driver(f))
		case setMissing:
			m.missing.Set(f)
		case setLinks:
			m.links.Set(f)
		case setInterrupted:
			m.interrupted.Store(bool(f))
		case save:
			if m.options.Store != nil {
				m.options.Store.SaveHealth(f.history, f.urgent)
			}
		case notify:
			if m.options.OnHealthEvent != nil {
				m.options.OnHealthEvent(device.HealthEvent(f))
			}
		case reply:
			f.to <- f.requestEnd
		case pause:
			m.readers.SetPaused(bool(f))
		case checkGPU:
			m.readers.check(f.gpu, func(evidence device.ResetEvidence, err error) {
				m.send(checked{f.gpu, f.seq, f.at, evidence, err})
			})
		case list:
			m.start(func() event {
				devices, err := m.backend.Devices(ctx)
				return listed{devices, err}
			})
		case readLinks:
			m.start(func() event {
				links, err := m.backend.Links(ctx)
				return linksRead{links, err}
			})
		case wait:
			m.start(func() event {
				e, err := m.backend.Wait(ctx)
				return waited{e, err}
			})
		case closeBackend:
			m.start(func() event {
				m.backend.Close()
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

// Retire takes a GPU with its MIG devices, or one MIG device, out of service
// until Trust. The note is the operator's reason. Containers keep the device.
// Retire returns after the new health is published; Retire and Trust require a
// running Run.
func (m *Monitor) Retire(ctx context.Context, id device.ID, note string) error {
	return m.do(ctx, request{action: actionRetire, id: id, note: note}).err
}

// Trust ends the retirement of a GPU and its MIG devices, or of one MIG device.
// If a passed check then shows that the device works, Trust also ends the cause
// of earlier reports, and forgets failed resets: the device is healthy at once,
// without a reset. A failed check shows that the cause holds, and so do a GPU
// that is gone and a call that hangs.
func (m *Monitor) Trust(ctx context.Context, id device.ID) (Trusted, error) {
	a := m.do(ctx, request{action: actionTrust, id: id})
	return a.Trusted, a.err
}

// Forget removes a missing GPU from the known GPUs. A GPU that is listed, or has
// an allocated device, is not removed.
func (m *Monitor) Forget(ctx context.Context, gpu device.ID) error {
	return m.do(ctx, request{action: actionForget, id: gpu}).err
}

// Release releases the driver, for a reset, a new MIG layout or another driver.
// All devices turn unhealthy ("released"), and the Backend is closed after the
// last call.
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
