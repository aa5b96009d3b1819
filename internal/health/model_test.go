package health_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// fakeBackend is a Backend of two GPUs. Like NVIDIA's, it reports a reset in
// the next check that returns. A later process sees the reset only in the
// energy counter. A check takes time and returns the state at its start.
type fakeBackend struct {
	device.Backend // of what the Monitor does not call: nil
	events         chan device.Event
	mu             sync.Mutex
	// All below are guarded by mu.
	gpus  map[device.GPU]*fakeGPUState
	slow  time.Duration // duration of a check
	begun time.Time
}

type fakeGPUState struct {
	err           error                // result of a check
	checksHang    bool                 // checks do not return
	pending       bool                 // a repair is pending
	resets        uint64               // number of resets
	resetsAtStart uint64               // in this process
	evidence      device.ResetEvidence // of the newest check that returned
}

// hasUnseenReset reports whether the GPU was reset since the newest check that returned.
func (b *fakeGPUState) hasUnseenReset() bool { return b.resetsAtStart+b.evidence.Resets != b.resets }

var backendGPUs = []device.GPU{"GPU-a", "GPU-b"}

func newTwoGPUBackend() *fakeBackend {
	w := &fakeBackend{gpus: map[device.GPU]*fakeGPUState{}, events: make(chan device.Event, 100), begun: time.Now()}
	for _, gpu := range backendGPUs {
		w.gpus[gpu] = &fakeGPUState{}
	}
	return w
}

func (w *fakeBackend) locked(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *fakeBackend) Devices(context.Context) (devices []device.Device, err error) {
	for i, gpu := range backendGPUs {
		devices = append(devices, device.Device{
			ID: device.ID(gpu), GPU: gpu, Index: i, MIGDeviceIndex: -1, GI: -1,
			CI: -1,
		})
	}
	return devices, nil
}

func (w *fakeBackend) Links(context.Context) ([]device.Link, error) { return nil, nil }

func (w *fakeBackend) Idle() bool { return true }

func (w *fakeBackend) Check(gpu device.GPU) (v device.ResetEvidence, err error) {
	for hangs := true; hangs; {
		w.locked(func() { hangs = w.gpus[gpu].checksHang })
		if hangs {
			time.Sleep(100 * time.Millisecond)
		}
	}
	g := w.gpus[gpu]
	var slow time.Duration
	w.locked(func() {
		slow, v, err = w.slow, g.evidence, g.err
		if err == nil || errors.As(err, new(*device.Fault)) {
			const far = 1 << 30 // more milliseconds than a test lasts: each reset lowers the counter
			v = device.ResetEvidence{
				Resets:        g.resets - g.resetsAtStart,
				EnergyCounter: (1000-g.resets)*far + uint64(time.Since(w.begun).Milliseconds()),
				RepairPending: g.pending,
			}
		}
	})
	time.Sleep(slow)
	w.locked(func() { g.evidence = v })
	return v, err
}

func (w *fakeBackend) Wait(ctx context.Context) (e device.Event, err error) {
	if ctx.Err() != nil {
		return e, nil
	}
	select {
	case e = <-w.events:
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return e, nil
}

// monitorRun is one run of a Monitor. The Backend outlives the run.
type monitorRun struct {
	*fakeBackend
	inventory    device.Inventory
	monitor      *health.Monitor
	saved        health.History // newest history
	unsaved      error          // an event came before its fault was saved
	healthEvents []device.HealthEvent
	ctx          context.Context // of Run
	stop         func() error
}

// SaveHealth and Stored are called only by the Monitor.
func (p *monitorRun) SaveHealth(h health.History, _ bool) { p.saved = reloaded(h) }

func (p *monitorRun) recordHealthEvent(e device.HealthEvent) {
	p.healthEvents = append(p.healthEvents, e)
	if e.MarkedUnhealthy && findRecord(p.saved, e.GPU, "").Reason == "" {
		p.unsaved = fmt.Errorf("%s of %s: event before the fault is saved", e.Reason, e.GPU)
	}
}

func (p *monitorRun) Stored() bool { return true }

func (w *fakeBackend) newRun(ctx context.Context, previous health.History) *monitorRun {
	p := &monitorRun{fakeBackend: w, saved: previous}
	w.locked(func() {
		for _, g := range w.gpus {
			g.resetsAtStart, g.evidence = g.resets, device.ResetEvidence{}
		}
	})
	readers := health.NewReaders(w)
	p.monitor = health.NewMonitor(w, readers, &p.inventory, health.Options{
		Log: slog.New(slog.DiscardHandler), History: previous, Store: p,
		OnHealthEvent: p.recordHealthEvent,
	})
	ctx, cancel := context.WithCancel(ctx)
	p.ctx = ctx
	ended := make(chan error)
	go func() { ended <- p.monitor.Run(ctx) }()
	p.stop = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; err != nil {
			return err
		}
		// The process ends without the results of the checks that run.
		before := map[*fakeGPUState]fakeGPUState{}
		w.locked(func() {
			for _, g := range w.gpus {
				before[g] = *g
				g.checksHang = false
			}
		})
		if !p.monitor.Drain(context.Background()) || !readers.Drain(context.Background()) {
			return errors.New("Drain: calls are running")
		}
		w.locked(func() {
			for g, state := range before {
				*g = state
			}
		})
		return p.unsaved
	})
	return p
}

// expectedHealth is the model of a GPU.
type expectedHealth struct {
	checksFail     bool      // checks fail or hang
	awaitsReset    bool      // a fault waits for a complete reset
	resetAmbiguous bool      // the reset came so soon that it may count as an earlier one
	faultAt        time.Time // of the newest fault
	xids           uint64
	earlierXids    uint64      // of earlier processes
	problems       []time.Time // of each fault; an upper limit for the flaps
	flaps          uint64      // as last published
}

// settleTime is longer than any detection and recovery.
func (e *expectedHealth) settleTime() time.Duration {
	e.problems = slices.DeleteFunc(e.problems, func(at time.Time) bool { return time.Since(at) > 2*time.Hour })
	return detectionTime + min(6*time.Second<<min(len(e.problems), 10), 10*time.Minute)
}

// detectionTime is longer than any detection.
const detectionTime = 45 * time.Second

// FuzzMonitor runs faults, reports of two sources, resets, restarts, reboots,
// pauses, and checks that fail, hang or are slow, in any order. A GPU is never
// healthy while a fault waits for its reset, and recovers soon after the last
// fault ends. Each event counts once.
func FuzzMonitor(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 24 {
		f.Add(randomScript(random, 40))
	}
	// In these, a GPU is reset between two processes or soon after a start, and no
	// check has returned since the fault.
	for _, seed := range []uint64{37, 255, 434} {
		f.Add(randomScript(rand.New(rand.NewPCG(seed, 77)), 60))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 60 {
			script = script[:60]
		}
		bubble.Test(t, func(t *testing.T) { runMonitorScript(t, script) })
	})
}

func randomScript(random *rand.Rand, length int) []byte {
	script := make([]byte, length)
	for i := range script {
		script[i] = byte(random.IntN(256))
	}
	return script
}

func runMonitorScript(t *testing.T, script []byte) {
	w := newTwoGPUBackend()
	p := w.newRun(t.Context(), health.History{})
	defer func() {
		expect.NoError(t, p.stop())
	}()
	time.Sleep(time.Second)
	model := map[device.GPU]*expectedHealth{}
	for _, gpu := range backendGPUs {
		model[gpu] = &expectedHealth{}
	}
	reports := 0
	for step := 0; step+1 < len(script); step += 2 {
		action, arg := script[step]%actionCount, script[step+1]
		gpu := backendGPUs[arg%2]
		pauses := []time.Duration{20 * time.Millisecond, 700 * time.Millisecond, 12 * time.Second, 0}
		pause := pauses[arg/2%4]
		if action == actionPersistentFault {
			pause = 0
		}
		switch action {
		case actionRestart, actionReboot, actionResetBetweenRuns:
			time.Sleep(time.Second) // lets running work end
			synctest.Wait()
			reports += len(p.healthEvents)
			require.NoError(t, p.stop())
			for _, e := range model {
				e.flaps, e.earlierXids = 0, e.xids
			}
			w.locked(func() { w.apply(p, action, gpu, model) })
			h := p.saved
			h.Rebooted = action == actionReboot
			p = w.newRun(t.Context(), h)
		default:
			w.locked(func() { w.apply(p, action, gpu, model) })
		}
		settled := pause == 0
		for _, e := range model {
			if settled {
				pause = max(pause, e.settleTime())
			}
		}
		time.Sleep(pause)
		synctest.Wait()
		statuses, _ := p.inventory.Get()
		if len(statuses) != len(backendGPUs) && (settled || len(statuses) > 0) {
			t.Fatalf("step %d: got %+v, want %d devices", step/2, statuses, len(backendGPUs))
		}
		for _, s := range statuses {
			if err := model[s.GPU].verify(s, settled); err != nil {
				t.Fatalf("step %d, action %d on %s, pause %s: %s with reason %q: %v", step/2, action, gpu, pause,
					s.GPU, s.Reason, err)
			}
		}
		if settled {
			if err := verifyEvents(p.healthEvents, reports, model); err != nil {
				t.Fatalf("step %d: %v", step/2, err)
			}
		}
	}
}

// verifyEvents returns an error unless each event was passed on once, by this
// or an earlier process.
func verifyEvents(events []device.HealthEvent, earlier int, model map[device.GPU]*expectedHealth) error {
	var reports, xids uint64
	for _, o := range events {
		if o.Xid != 0 {
			reports++
		}
	}
	for _, e := range model {
		xids += e.xids
	}
	if reports > xids || earlier == 0 && reports != xids {
		return fmt.Errorf("got %d events, want %d", reports, xids)
	}
	return nil
}

const (
	actionFault byte = iota
	actionFaultFromBothSources
	actionFaultFromKernelOnly
	actionApplicationXid
	actionCheckRequest
	actionReset
	actionPartialReset
	actionResetThenFault
	actionLost
	actionResetRequested
	actionUnknownError
	actionPersistentFault
	actionHealthy
	actionHang
	actionToggleSlow
	actionRestart
	actionResetBetweenRuns
	actionReboot
	actionCount
)

// apply performs an action on a GPU and on the model.
func (w *fakeBackend) apply(p *monitorRun, action byte, gpu device.GPU, model map[device.GPU]*expectedHealth) {
	g, e, now := w.gpus[gpu], model[gpu], time.Now()
	resets := func(gpu device.GPU) {
		g, e := w.gpus[gpu], model[gpu]
		g.resets++
		e.resetAmbiguous = (e.resetAmbiguous || e.awaitsReset) && now.Sub(e.faultAt) < detectionTime
		g.err, g.checksHang, g.pending, e.checksFail, e.awaitsReset = nil, false, false, false, false
	}
	report := func(xid uint64, recovery device.Recovery, driver, kernel bool) {
		event := device.Event{GPU: gpu, Xid: xid, Recovery: recovery, Action: "reset_gpu"}
		if driver {
			w.events <- event
		}
		if kernel {
			event.Source = "kmsg"
			delay := time.Duration(0)
			if driver { // as internal/kmsg
				delay = time.Second
			}
			time.AfterFunc(delay, func() { p.monitor.Report(p.ctx, event, 1, time.Now()) })
		}
		e.xids++
		if recovery == device.RecoveryAfterReset {
			e.awaitsReset, e.resetAmbiguous, e.faultAt, e.problems = true, false, now, append(e.problems, now)
		}
	}
	failChecks := func(err error) {
		if g.checksHang || g.hasUnseenReset() && err != nil {
			return
		}
		if g.err, e.checksFail = err, err != nil; e.checksFail {
			e.problems = append(e.problems, now)
		}
	}
	switch action {
	case actionFault:
		report(95, device.RecoveryAfterReset, true, false)
	case actionFaultFromBothSources:
		report(95, device.RecoveryAfterReset, true, true)
	case actionFaultFromKernelOnly:
		report(119, device.RecoveryAfterReset, false, true)
	case actionApplicationXid:
		report(31, device.RecoveryNone, true, true)
	case actionCheckRequest:
		report(154, device.RecoveryChecksPass, true, false)
	case actionReset:
		resets(gpu)
	case actionResetBetweenRuns:
		// Without a value from after the fault, the next process has nothing to
		// compare with.
		counterUnread := (e.awaitsReset || e.resetAmbiguous) && g.evidence.EnergyCounter == 0
		resets(gpu)
		e.resetAmbiguous = e.resetAmbiguous || counterUnread
	case actionPartialReset: // a repair is pending after the reset
		if !g.checksHang && e.awaitsReset {
			g.resets++
			g.pending = true
		}
	case actionResetThenFault: // no check saw the reset before the fault
		resets(gpu)
		report(48, device.RecoveryAfterReset, true, false)
	case actionLost:
		failChecks(device.ErrLost)
	case actionResetRequested:
		failChecks(&device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
	case actionUnknownError:
		failChecks(errors.New("UNKNOWN"))
	case actionPersistentFault:
		if !g.checksHang && !g.hasUnseenReset() {
			failChecks(&device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", NeedsReset: true})
			e.awaitsReset, e.resetAmbiguous, e.faultAt = true, false, now
		}
	case actionHealthy:
		failChecks(nil)
	case actionHang:
		if !g.checksHang && !g.hasUnseenReset() && g.err == nil {
			g.checksHang, e.checksFail, e.problems = true, true, append(e.problems, now)
		}
	case actionToggleSlow:
		w.slow = 2*time.Second - w.slow
	case actionReboot:
		for _, gpu := range backendGPUs {
			resets(gpu)
			model[gpu].resetAmbiguous = false // a reboot is never ambiguous
		}
	}
}

// verify compares a status with the model.
func (e *expectedHealth) verify(s device.Status, settled bool) error {
	var xids uint64
	for _, x := range s.Xids {
		xids += x.Count
	}
	before := e.flaps
	e.flaps = s.Flaps
	switch {
	case s.Healthy != (s.Health == device.Healthy || s.Health == device.Suspect) || s.Healthy != (s.Reason == ""):
		return fmt.Errorf("got Healthy %v with health %s", s.Healthy, s.Health)
	case s.Flaps < before:
		return fmt.Errorf("flaps fell by %d", before-s.Flaps)
	case e.awaitsReset && s.Healthy:
		return errors.New("healthy before the reset")
	case settled && e.checksFail && s.Healthy:
		return errors.New("healthy while checks fail")
	case settled && !e.awaitsReset && !e.checksFail && !e.resetAmbiguous && s.Health != device.Healthy:
		return errors.New("not healthy without a fault")
	case settled && xids != e.xids-e.earlierXids:
		return fmt.Errorf("got %d counted events, want %d", xids, e.xids-e.earlierXids)
	}
	return nil
}
