package device_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/device"
)

// ward is a Backend of two GPUs whose resets show as those of NVIDIA's do: in the
// next check that gets an answer, whatever came between. A check tells what was when
// it began, and takes its time.
type ward struct {
	mu sync.Mutex
	// All below are guarded by mu.
	gpus   map[device.GPU]*bed
	events []device.Event
	slow   time.Duration // what a check takes
}

type bed struct {
	err    error  // what a check answers
	resets uint64 // how often it was reset
	seen   uint64 // by checks
}

var gpusOfWard = []device.GPU{"GPU-a", "GPU-b"}

func newWard() *ward {
	w := &ward{gpus: map[device.GPU]*bed{}}
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
	var slow time.Duration
	w.change(func() {
		g := w.gpus[gpu]
		if slow = w.slow; g.err == nil || errors.As(g.err, new(*device.Fault)) {
			g.seen = g.resets
		}
		v.Resets, err = g.seen, g.err
	})
	time.Sleep(slow)
	return v, err
}

func (w *ward) Wait(ctx context.Context) (e device.Event, err error) {
	for deadline := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
		w.change(func() {
			if len(w.events) > 0 {
				e, w.events = w.events[0], w.events[1:]
			}
		})
		if e != (device.Event{}) || ctx.Err() != nil || !time.Now().Before(deadline) {
			return e, nil
		}
	}
}

// expected is the reference: what must hold of a GPU.
type expected struct {
	ailing  bool      // its checks fail
	broken  bool      // a fault has come that no reset has followed
	unsure  bool      // the reset came so soon that it may be taken for an earlier one
	faultAt time.Time // when the newest fault came
	xids    uint64
}

// settled is longer than anything takes to be noticed, or to be trusted again.
const settled = 30 * time.Second

// FuzzMonitor has faults, resets, checks that fail and are slow, and pauses in any
// order. A GPU is never healthy while a fault waits for its reset, is healthy soon
// after the last thing that was wrong with it has ended, and no report is lost.
func FuzzMonitor(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		script := make([]byte, 40)
		for i := range script {
			script[i] = byte(random.IntN(256))
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 80 {
			script = script[:80]
		}
		synctest.Test(t, func(t *testing.T) { followMonitor(t, script) })
	})
}

func followMonitor(t *testing.T, script []byte) {
	w := newWard()
	board := &device.Board{}
	readers := device.NewReaders(w)
	monitor := device.NewMonitor(w, readers, board, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- monitor.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil || !monitor.Drain(context.Background()) || !readers.Drain(context.Background()) {
			t.Errorf("Run: %v", err)
		}
	}()
	time.Sleep(time.Second)
	model := map[device.GPU]*expected{}
	for _, gpu := range gpusOfWard {
		model[gpu] = &expected{}
	}
	for step := 0; step+1 < len(script); step += 2 {
		what, how := script[step]%8, script[step+1]
		gpu := gpusOfWard[how%2]
		w.change(func() { w.happens(what, gpu, model[gpu]) })
		pause := []time.Duration{20 * time.Millisecond, 700 * time.Millisecond, 12 * time.Second, settled}[how/2%4]
		time.Sleep(pause)
		synctest.Wait()
		statuses, _ := board.Look()
		if len(statuses) != len(gpusOfWard) {
			t.Fatalf("step %d: the board has %+v", step/2, statuses)
		}
		for _, s := range statuses {
			if err := model[s.GPU].holds(s, pause == settled); err != nil {
				t.Fatalf("step %d, %d of %s and %s: %s is %q: %v", step/2, what, gpu, pause, s.GPU, s.Reason, err)
			}
		}
	}
}

// happens has something happen to a GPU, and the reference know.
func (w *ward) happens(what byte, gpu device.GPU, e *expected) {
	g, now := w.gpus[gpu], time.Now()
	reset := func() {
		g.resets++
		e.unsure = e.unsure || e.broken && now.Sub(e.faultAt) < settled
		e.unsure = e.unsure && now.Sub(e.faultAt) < settled
		g.err, e.ailing, e.broken = nil, false, false
	}
	report := func(xid uint64, fatal bool) {
		heals := device.ByItself
		if fatal {
			heals = device.ByReset
		}
		w.events = append(w.events, device.Event{GPU: gpu, Xid: xid, Heals: heals, Action: "reset_gpu"})
		e.xids++
		if fatal {
			e.broken, e.unsure, e.faultAt = true, false, now
		}
	}
	ails := func(err error) { g.err, e.ailing = err, err != nil }
	switch what {
	case 0:
		report(95, true)
	case 1:
		report(31, false)
	case 2:
		reset()
	case 3: // nobody has seen the reset when the fault comes
		reset()
		report(48, true)
	case 4:
		ails(device.ErrLost)
	case 5:
		ails(&device.Fault{Reason: "recovery_action_gpu_reset", Action: "reset_gpu"})
	case 6:
		ails(nil)
	case 7:
		w.slow = 2*time.Second - w.slow
	}
}

// holds compares with what the board says.
func (e *expected) holds(s device.Status, settled bool) error {
	var xids uint64
	for _, x := range s.Xids {
		xids += x.Count
	}
	switch {
	case e.broken && s.Healthy:
		return errors.New("it waits for a reset")
	case settled && e.ailing && s.Healthy:
		return errors.New("its checks fail")
	case settled && !e.broken && !e.ailing && !e.unsure && !s.Healthy:
		return errors.New("nothing is wrong with it")
	case settled && xids != e.xids:
		return fmt.Errorf("%d reports were counted, want %d", xids, e.xids)
	}
	return nil
}
