package device_test

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
)

// ward is a Backend of two GPUs whose resets show as those of NVIDIA's do: in the
// next check that gets an answer, whatever came between, and to a later process by the
// odometer alone. A check tells what was when it began, and takes its time.
type ward struct {
	mu sync.Mutex
	// All below are guarded by mu.
	gpus   map[device.GPU]*bed
	events []device.Event
	slow   time.Duration // what a check takes
	begun  time.Time
}

type bed struct {
	err     error         // what a check answers
	hangs   bool          // checks do not return
	pending bool          // a repair waits for the next reset
	resets  uint64        // how often it was reset
	before  uint64        // this process
	seen    device.Vitals // by checks
}

// unseen tells whether it was reset since a check has last got an answer. What happens
// to it next cannot be told from what came before.
func (b *bed) unseen() bool { return b.before+b.seen.Resets != b.resets }

var gpusOfWard = []device.GPU{"GPU-a", "GPU-b"}

func newWard() *ward {
	w := &ward{gpus: map[device.GPU]*bed{}, begun: time.Now()}
	for _, gpu := range gpusOfWard {
		w.gpus[gpu] = &bed{}
	}
	return w
}

func (w *ward) change(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *ward) Metrics() []device.Metric { return nil }

func (w *ward) Read(_ device.GPU, buf []device.Sample) ([]device.Sample, error) { return buf, nil }

func (w *ward) Devices(context.Context) (devices []device.Device, err error) {
	for i, gpu := range gpusOfWard {
		devices = append(devices, device.Device{ID: device.ID(gpu), GPU: gpu, Index: i, Slice: -1, GI: -1, CI: -1})
	}
	return devices, nil
}

func (w *ward) Check(gpu device.GPU) (v device.Vitals, err error) {
	for hangs := true; hangs; {
		w.change(func() { hangs = w.gpus[gpu].hangs })
		if hangs {
			time.Sleep(10 * time.Millisecond)
		}
	}
	var slow time.Duration
	w.change(func() {
		g := w.gpus[gpu]
		if slow = w.slow; g.err == nil || errors.As(g.err, new(*device.Fault)) {
			const far = 1 << 30 // more milliseconds than a test has, so that each reset is one to less
			g.seen = device.Vitals{Resets: g.resets - g.before, Odometer: (1000-g.resets)*far + uint64(time.Since(w.begun).Milliseconds()), Pending: g.pending}
		}
		v, err = g.seen, g.err
	})
	time.Sleep(slow)
	return v, err
}

func (w *ward) Wait(ctx context.Context) (e device.Event, err error) {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
		w.change(func() {
			if len(w.events) > 0 && ctx.Err() == nil {
				e, w.events = w.events[0], w.events[1:]
			}
		})
		if e != (device.Event{}) || ctx.Err() != nil || !time.Now().Before(deadline) {
			return e, nil
		}
	}
}

// process is one life of a Monitor, on a ward that outlives it.
type process struct {
	*ward
	board    device.Board
	monitor  *device.Monitor
	kept     device.History // as last handed over
	happened []device.Occurrence
	end      func() error
}

func (w *ward) process(ctx context.Context, remembered device.History) *process {
	p := &process{ward: w, kept: remembered}
	w.change(func() {
		for _, g := range w.gpus {
			g.before, g.seen = g.resets, device.Vitals{}
		}
	})
	readers := device.NewReaders(w)
	p.monitor = device.NewMonitor(w, readers, &p.board, slog.New(slog.DiscardHandler))
	p.monitor.Remembered = remembered
	p.monitor.Remember = func(h device.History) { p.kept = h }
	p.monitor.Happened = func(o device.Occurrence) { p.happened = append(p.happened, o) }
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- p.monitor.Run(ctx) }()
	p.end = sync.OnceValue(func() error {
		cancel()
		if err := <-ended; err != nil {
			return err
		}
		var hung []*bed
		w.change(func() {
			for _, g := range w.gpus {
				if g.hangs {
					g.hangs, hung = false, append(hung, g)
				}
			}
		})
		if !p.monitor.Drain(context.Background()) || !readers.Drain(context.Background()) {
			return errors.New("calls are left")
		}
		w.change(func() {
			for _, g := range hung {
				g.hangs = true
			}
		})
		return nil
	})
	return p
}

// expected is the reference: what must hold of a GPU.
type expected struct {
	ailing  bool      // its checks fail, or hang
	broken  bool      // a fault has come that no whole reset has followed
	unsure  bool      // the reset came so soon that it may be taken for an earlier one
	faultAt time.Time // when the newest fault came
	xids    uint64
	bad     []time.Time // when something went wrong: no more often did it turn unhealthy
	flaps   uint64      // as last posted
}

// settled is longer than anything takes to be noticed, or to be trusted again.
func (e *expected) settled() time.Duration {
	e.bad = slices.DeleteFunc(e.bad, func(at time.Time) bool { return time.Since(at) > 2*time.Hour })
	return noticed + min(6*time.Second<<min(len(e.bad), 10), 10*time.Minute)
}

// noticed is longer than anything takes to be noticed.
const noticed = 45 * time.Second

// FuzzMonitor has faults, resets, reports of two witnesses, checks that fail, hang and are
// slow, new processes, boots and pauses in any order. A GPU is never healthy while a fault
// waits for its reset, is healthy soon after the last thing that was wrong with it has
// ended, and no report is lost, or counted twice.
func FuzzMonitor(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 24 {
		script := make([]byte, 40)
		for i := range script {
			script[i] = byte(random.IntN(256))
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 60 {
			script = script[:60]
		}
		synctest.Test(t, func(t *testing.T) { followMonitor(t, script) })
	})
}

func followMonitor(t *testing.T, script []byte) {
	w := newWard()
	p := w.process(t.Context(), device.History{})
	defer func() {
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(time.Second)
	model := map[device.GPU]*expected{}
	for _, gpu := range gpusOfWard {
		model[gpu] = &expected{}
	}
	reports := 0
	for step := 0; step+1 < len(script); step += 2 {
		what, how := script[step]%happenings, script[step+1]
		gpu := gpusOfWard[how%2]
		pauses := []time.Duration{20 * time.Millisecond, 700 * time.Millisecond, 12 * time.Second, 0}
		pause := pauses[how/2%4]
		switch {
		case what == lasting:
			pause = 0
		case what == faultNotToldByTheDriver && pause > 0: // it waits for the driver's word
			pause = max(pause, time.Second)
		}
		switch what {
		case restart, reboot, resetBetween:
			time.Sleep(time.Second) // what is under way gets there
			synctest.Wait()
			reports += len(p.happened)
			if err := p.end(); err != nil {
				t.Fatal(err)
			}
			w.change(func() { w.happens(p, what, gpu, model) })
			h := p.kept
			h.Rebooted = what == reboot
			p = w.process(t.Context(), h)
		default:
			w.change(func() { w.happens(p, what, gpu, model) })
		}
		settled := pause == 0
		for _, e := range model {
			if settled {
				pause = max(pause, e.settled())
			}
		}
		time.Sleep(pause)
		synctest.Wait()
		statuses, _ := p.board.Look()
		if len(statuses) != len(gpusOfWard) && (settled || len(statuses) > 0) {
			t.Fatalf("step %d: the board has %+v", step/2, statuses)
		}
		for _, s := range statuses {
			if err := model[s.GPU].holds(s, settled); err != nil {
				t.Fatalf("step %d, %d of %s and %s: %s is %q: %v", step/2, what, gpu, pause, s.GPU, s.Reason, err)
			}
		}
		if settled {
			if err := told(p.happened, reports, model); err != nil {
				t.Fatalf("step %d: %v", step/2, err)
			}
		}
	}
}

// told tells whether each report was passed on once. Earlier processes have passed on others.
func told(happened []device.Occurrence, others int, model map[device.GPU]*expected) error {
	var reports, xids uint64
	for _, o := range happened {
		if o.Xid != 0 {
			reports++
		}
	}
	for _, e := range model {
		xids += e.xids
	}
	if reports > xids || others == 0 && reports != xids {
		return fmt.Errorf("%d reports were passed on, and there were %d", reports, xids)
	}
	return nil
}

// What can happen.
const (
	fault byte = iota
	faultTwiceTold
	faultNotToldByTheDriver
	application
	doubt
	reset
	halfReset
	resetAndFault
	lost
	asksForReset
	unclear
	lasting
	well
	hang
	slower
	restart
	resetBetween
	reboot
	happenings
)

// happens has something happen to a GPU, and the reference know.
func (w *ward) happens(p *process, what byte, gpu device.GPU, model map[device.GPU]*expected) {
	g, e, now := w.gpus[gpu], model[gpu], time.Now()
	resets := func(gpu device.GPU) {
		g, e := w.gpus[gpu], model[gpu]
		g.resets++
		e.unsure = (e.unsure || e.broken) && now.Sub(e.faultAt) < noticed
		g.err, g.hangs, g.pending, e.ailing, e.broken = nil, false, false, false, false
	}
	report := func(xid uint64, heals device.Heals, driver, kernel bool) {
		event := device.Event{GPU: gpu, Xid: xid, Heals: heals, Action: "reset_gpu"}
		if driver {
			w.events = append(w.events, event)
		}
		if kernel {
			event.Witness = "kmsg"
			p.monitor.Report(event, time.Now())
		}
		e.xids++
		if heals == device.ByReset {
			e.broken, e.unsure, e.faultAt, e.bad = true, false, now, append(e.bad, now)
		}
	}
	ails := func(err error) {
		if g.hangs || g.unseen() && err != nil {
			return
		}
		if g.err, e.ailing = err, err != nil; e.ailing {
			e.bad = append(e.bad, now)
		}
	}
	switch what {
	case fault:
		report(95, device.ByReset, true, false)
	case faultTwiceTold:
		report(95, device.ByReset, true, true)
	case faultNotToldByTheDriver:
		report(119, device.ByReset, false, true)
	case application:
		report(31, device.ByItself, true, true)
	case doubt:
		report(154, device.ByCheck, true, false)
	case reset:
		resets(gpu)
	case resetBetween:
		blind := e.broken && g.seen.Odometer == 0 // nothing is known that it could have become less than
		resets(gpu)
		e.unsure = e.unsure || blind
	case halfReset: // what was broken has not come back whole
		if !g.hangs && e.broken {
			g.resets++
			g.pending = true
		}
	case resetAndFault: // nobody has seen the reset when the fault comes
		resets(gpu)
		report(48, device.ByReset, true, false)
	case lost:
		ails(device.ErrLost)
	case asksForReset:
		ails(&device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
	case unclear:
		ails(errors.New("UNKNOWN"))
	case lasting:
		if !g.hangs && !g.unseen() {
			ails(&device.Fault{Reason: "row_remap_failure", Action: "reset_gpu", ByReset: true})
			e.broken, e.unsure, e.faultAt = true, false, now
		}
	case well:
		ails(nil)
	case hang:
		if !g.hangs && !g.unseen() && g.err == nil {
			g.hangs, e.ailing, e.bad = true, true, append(e.bad, now)
		}
	case slower:
		w.slow = 2*time.Second - w.slow
	case reboot:
		for _, gpu := range gpusOfWard {
			resets(gpu)
			model[gpu].unsure = false // a boot cannot be missed
		}
	}
}

// holds compares with what the board says.
func (e *expected) holds(s device.Status, settled bool) error {
	var xids uint64
	for _, x := range s.Xids {
		xids += x.Count
	}
	was := e.flaps
	e.flaps = s.Flaps
	switch {
	case s.Healthy != (s.Health == device.Well || s.Health == device.Suspect) || s.Healthy != (s.Reason == ""):
		return fmt.Errorf("it says healthy: %v and %s", s.Healthy, s.Health)
	case s.Flaps < was:
		return fmt.Errorf("%d flaps were forgotten", was-s.Flaps)
	case e.broken && s.Healthy:
		return errors.New("it waits for a reset")
	case settled && e.ailing && s.Healthy:
		return errors.New("its checks fail")
	case settled && !e.broken && !e.ailing && !e.unsure && s.Health != device.Well:
		return errors.New("nothing is wrong with it")
	case settled && xids != e.xids:
		return fmt.Errorf("%d reports were counted, want %d", xids, e.xids)
	}
	return nil
}
