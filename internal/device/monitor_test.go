package device_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// monitorFixture is a Monitor at work on a simulated machine.
type monitorFixture struct {
	*sim.Machine
	inventory device.Inventory
	options   device.MonitorOptions
	monitor   *device.Monitor
	readers   *device.Readers
	log       logCounter
	stop      func()
}

// logCounter is a log's handler that counts messages.
type logCounter struct {
	slog.Handler
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func (r *logCounter) Enabled(context.Context, slog.Level) bool { return true }

func (r *logCounter) Handle(_ context.Context, record slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[record.Message]++
	return nil
}

// count is how many messages begin so.
func (r *logCounter) count(prefix string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for message, times := range r.counts {
		if strings.HasPrefix(message, prefix) {
			n += times
		}
	}
	return n
}

// startMonitor runs a Monitor in the test's bubble. wrap may change the Backend, and options set the Monitor's options.
func startMonitor(t *testing.T, m *sim.Machine, wrap func(device.Backend) device.Backend, options ...func(*monitorFixture)) *monitorFixture {
	t.Helper()
	var b device.Backend = m
	if wrap != nil {
		b = wrap(m)
	}
	w := &monitorFixture{Machine: m, readers: device.NewReaders(b)}
	w.options.Log = slog.New(&w.log)
	for _, set := range options {
		set(w)
	}
	w.monitor = device.NewMonitor(b, w.readers, &w.inventory, w.options)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.monitor.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		m.ReleaseHangs()
		if !w.monitor.Drain(context.Background()) || !w.readers.Drain(context.Background()) {
			t.Error("calls are left")
		}
	}
	return w
}

// untilSuspect lets the bubble's time pass until a check of the first device has failed once.
func (f *monitorFixture) untilSuspect() {
	for range 1000 {
		if f.statusesAfter(10 * time.Millisecond)[0].Health == device.Suspect {
			return
		}
	}
}

// statusesAfter lets the bubble's time pass and returns what the board then says.
func (f *monitorFixture) statusesAfter(d time.Duration) []device.Status {
	time.Sleep(d)
	synctest.Wait()
	statuses, _ := f.inventory.Get()
	return statuses
}

// reasons lists why each device is unhealthy; "" for a healthy one.
func reasons(statuses []device.Status) []string {
	list := []string{}
	for _, s := range statuses {
		if s.Healthy != (s.Reason == "") {
			list = append(list, "healthy and reason disagree")
			continue
		}
		list = append(list, s.Reason)
	}
	return list
}

func newMachine(n int) *sim.Machine {
	return sim.NewMachine([]device.Metric{{Name: "nvidia_gpu_power_watts"}}, n, time.Now)
}

func requireReasons(t *testing.T, when string, statuses []device.Status, reason ...string) {
	t.Helper()
	if got := reasons(statuses); !slices.Equal(got, reason) {
		t.Errorf("%s: %q, want %q", when, got, reason)
	}
}

func TestMonitorBlamesTheGPUThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(3), nil)
		defer w.stop()
		ids := w.AllocatableIDs()
		requireReasons(t, "at first", w.statusesAfter(time.Millisecond), "", "", "")
		began := time.Now()
		w.Fail(ids[1], "xid 79")
		bad := w.statusesAfter(time.Millisecond)
		requireReasons(t, "after Xid 79", bad, "", "xid_79", "")
		if s := bad[1]; s.Action != "reboot" || s.Since.Sub(began) > time.Millisecond || len(s.Xids) != 1 || s.Xids[0].Count != 1 {
			t.Errorf("the failed device is %+v", s)
		}
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "", "xid_79", "")
		w.ResetGPU(ids[1])
		requireReasons(t, "at once after the reset", w.statusesAfter(time.Millisecond), "", "xid_79", "")
		requireReasons(t, "after three good checks", w.statusesAfter(4*time.Second), "", "", "")
	})
}

func TestMonitorWantsAResetWhereOneIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Fail(w.AllocatableIDs()[0], "xid 95") // the GPU goes on answering
		requireReasons(t, "a minute later", w.statusesAfter(time.Minute), "xid_95")
		w.ResetGPU(w.AllocatableIDs()[0])
		requireReasons(t, "after a reset", w.statusesAfter(4*time.Second), "")
		w.Fail(w.AllocatableIDs()[0], "xid 95")
		requireReasons(t, "again", w.statusesAfter(time.Minute), "xid_95")
	})
}

// TestMonitorTellsAnEarlierReset has a GPU fail again before any check has seen that it
// was reset: that reset mends nothing.
func TestMonitorTellsAnEarlierReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		id := w.AllocatableIDs()[0]
		w.statusesAfter(time.Second)
		w.ResetGPU(id)
		w.Fail(id, "xid 95")
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "xid_95")
		w.ResetGPU(id)
		requireReasons(t, "after a reset", w.statusesAfter(4*time.Second), "")
	})
}

// TestMonitorTakesAResetThatNoCheckPreceded has calls hang from before the fault until
// the GPU is reset.
func TestMonitorTakesAResetThatNoCheckPreceded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		id := w.AllocatableIDs()[0]
		w.statusesAfter(time.Second)
		w.HangGPU(id)
		w.statusesAfter(6 * time.Second) // a check hangs
		w.Fail(id, "xid 95")
		requireReasons(t, "a minute later", w.statusesAfter(time.Minute), "xid_95")
		w.ResetGPU(id)
		requireReasons(t, "after a reset", w.statusesAfter(5*time.Second), "")
	})
}

func TestMonitorCountsWhatApplicationsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		for range 3 {
			w.Fail(w.AllocatableIDs()[0], "xid 31")
		}
		w.Fail(w.AllocatableIDs()[0], "xid 13")
		statuses := w.statusesAfter(time.Second)
		requireReasons(t, "after application errors", statuses, "")
		xids := statuses[0].Xids
		if len(xids) != 2 || xids[0].Code != 13 || xids[0].Count != 1 || xids[1].Code != 31 || xids[1].Count != 3 {
			t.Errorf("counted %+v, want one 13 and three 31", xids)
		}
	})
}

func TestMonitorKeepsWhatIsGoneOnTheBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.RemoveGPU(w.AllocatableIDs()[0])
		statuses := w.statusesAfter(15 * time.Second)
		if len(statuses) != 2 || statuses[0].Healthy || !statuses[1].Healthy {
			t.Errorf("after a GPU was taken out: %q", reasons(statuses))
		}
		w.ResetGPU(w.AllocatableIDs()[0])
		requireReasons(t, "after it was put back", w.statusesAfter(20*time.Second), "", "")
	})
}

func TestMonitorTakesADriverThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.SetDriverError(errors.New("libnvidia-ml.so.1 not found"))
		w := startMonitor(t, m, nil)
		defer w.stop()
		if w.statusesAfter(time.Minute) != nil {
			t.Error("something was posted without a driver")
		}
		if d := w.monitor.Driver(); d.State != device.DriverAbsent || d.Err == nil {
			t.Errorf("the driver is %+v, want absent with a reason", d)
		}
		if err := w.monitor.Ready(); err != nil {
			t.Errorf("a node without a driver is not ready: %v", err)
		}
		w.SetDriverError(nil)
		requireReasons(t, "two seconds after the driver came", w.statusesAfter(2*time.Second), "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp || d.Err != nil {
			t.Errorf("the driver is %+v, want up", d)
		}
	})
}

func TestMonitorOutlivesAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		w.HangGPU(w.AllocatableIDs()[0])
		requireReasons(t, "ten seconds into a stall", w.statusesAfter(10*time.Second), "", "")
		requireReasons(t, "a minute into it", w.statusesAfter(time.Minute), "not_answering", "")
		w.ReleaseHangs()
		requireReasons(t, "after it", w.statusesAfter(5*time.Second), "", "")

		w.HangAll()
		w.statusesAfter(20 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotAnswering {
			t.Errorf("the driver is %+v, want not answering", d)
		}
		if err := w.monitor.Alive(); err != nil {
			t.Errorf("the Monitor hangs with the driver: %v", err)
		}
		w.ReleaseHangs()
		requireReasons(t, "after the driver's hang", w.statusesAfter(5*time.Second), "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("the driver is %+v, want up", d)
		}
	})
}

// TestDriverHang has the driver hang at any time between two checks and listings, in calls of
// all kinds or in those about GPUs alone: five seconds later it is known, and soon after the
// hang that it is over. One GPU that hangs beside others is no hang of the driver.
func TestDriverHang(t *testing.T) {
	for _, gpus := range []int{1, 2, 3, 8} {
		for offset := time.Duration(0); offset < 11*time.Second; offset += 700 * time.Millisecond {
			synctest.Test(t, func(t *testing.T) {
				w := startMonitor(t, newMachine(gpus), nil)
				defer w.stop()
				w.statusesAfter(20*time.Second + offset)
				state := func(when string, want device.DriverState) {
					t.Helper()
					if d := w.monitor.Driver(); d.State != want {
						t.Errorf("%d GPUs, %v: %s the driver is %+v, want %v", gpus, offset, when, d, want)
					}
				}
				w.HangAll()
				w.statusesAfter(5 * time.Second)
				state("in a hang", device.DriverNotAnswering)
				w.statusesAfter(15 * time.Second)
				if n := w.log.count("driver lists no devices"); n != 1 {
					t.Errorf("%d GPUs, %v: a hang of 20 s is logged %d times", gpus, offset, n)
				}
				w.ReleaseHangs()
				w.statusesAfter(time.Second)
				state("after it", device.DriverUp)

				for _, id := range w.AllocatableIDs() {
					w.HangGPU(id)
				}
				w.statusesAfter(5 * time.Second)
				state("with calls about all GPUs hanging", device.DriverNotAnswering)
				w.statusesAfter(15 * time.Second)
				state("a listing later", device.DriverNotAnswering)
				w.ReleaseHangs()
				w.statusesAfter(time.Second)
				state("after that", device.DriverUp)

				if gpus > 1 {
					w.HangGPU(w.AllocatableIDs()[gpus-1])
					for range 20 {
						w.statusesAfter(time.Second)
						state("with one GPU hanging", device.DriverUp)
					}
					w.HangAll()
					w.statusesAfter(5 * time.Second)
					state("in a hang that follows", device.DriverNotAnswering)
				}
			})
		}
	}
}

func TestMonitorSaysSoWhenTheDriverHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		m.HangAll()
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(6 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotAnswering || w.monitor.Ready() != nil {
			t.Errorf("the driver is %+v, ready %v; want not answering, and ready", d, w.monitor.Ready())
		}
		w.ReleaseHangs()
		requireReasons(t, "after the hang", w.statusesAfter(2*time.Second), "")
	})
}

func TestMonitorWaitsForAVerdictOnEachDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.HangGPU(m.AllocatableIDs()[1])
		w := startMonitor(t, m, nil)
		defer w.stop()
		if w.statusesAfter(4*time.Second) != nil {
			t.Error("posted before each device had a verdict")
		}
		requireReasons(t, "when the time for it is over", w.statusesAfter(2*time.Second), "", "not_answering")
	})
}

// TestMonitorPostsWhileAGPUHasNoVerdict has one put in whose first check hangs.
func TestMonitorPostsWhileAGPUHasNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(9 * time.Second)
		m.HangGPU(device.ID(m.AddGPU()))
		requireReasons(t, "when it was listed", w.statusesAfter(2*time.Second), "", "")
		m.Fail(m.AllocatableIDs()[0], "xid 79")
		requireReasons(t, "after Xid 79 of another", w.statusesAfter(time.Millisecond), "xid_79", "")
		requireReasons(t, "when its time for a verdict is over", w.statusesAfter(5*time.Second), "xid_79", "", "not_answering")
	})
}

// failingWait is a Backend whose Wait fails.
type failingWait struct{ device.Backend }

func (failingWait) Wait(context.Context) (device.Event, error) {
	return device.Event{}, errors.New("GPU is lost")
}

func TestMonitorBlamesNobodyForAFailedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), func(b device.Backend) device.Backend { return failingWait{b} })
		defer w.stop()
		requireReasons(t, "after failed waits", w.statusesAfter(10*time.Second), "", "")
		w.Fail(w.AllocatableIDs()[1], "lost")
		requireReasons(t, "a second after a GPU was lost", w.statusesAfter(1500*time.Millisecond), "", "lost")
	})
}

// countingChecks is a Backend that counts checks.
type countingChecks struct {
	device.Backend
	checks *atomic.Int64
}

func (b countingChecks) Check(gpu device.GPU) (device.ResetEvidence, error) {
	b.checks.Add(1)
	return b.Backend.Check(gpu)
}

// TestMonitorInAStorm has the driver report a thousand errors in ten seconds. Each is
// counted, and few make a line of the log, a check or a post.
func TestMonitorInAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int64
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return countingChecks{b, &checks} })
		defer w.stop()
		id := w.AllocatableIDs()[0]
		w.statusesAfter(time.Second)
		checks.Store(0)
		posts := 0
		_, changed := w.inventory.Get()
		for range 1000 {
			w.Fail(id, "xid 31")
			w.statusesAfter(10 * time.Millisecond)
			select {
			case <-changed:
				posts++
				_, changed = w.inventory.Get()
			default:
			}
		}
		if n := checks.Load(); n < 10 || n > 250 {
			t.Errorf("%d checks", n)
		}
		if posts < 10 || posts > 50 {
			t.Errorf("%d posts", posts)
		}
		said := w.log.count("driver event")
		if said < 1 || said > 2 {
			t.Errorf("%d lines in the log", said)
		}
		statuses := w.statusesAfter(time.Second)
		if xids := statuses[0].Xids; len(xids) != 1 || xids[0].Count != 1000 {
			t.Errorf("counted %+v", xids)
		}
		w.Fail(id, "xid 13")
		if w.statusesAfter(time.Millisecond); w.log.count("driver event") != said+1 {
			t.Error("a report of another kind is not in the log")
		}
		w.Fail(id, "xid 79")
		requireReasons(t, "at once", w.statusesAfter(time.Millisecond), "xid_79")
	})
}

// noDriverBackend is a Backend that fails to list from some time on.
type noDriverBackend struct {
	device.Backend
	on *atomic.Bool
}

func (m noDriverBackend) Devices(ctx context.Context) ([]device.Device, error) {
	if m.on.Load() {
		return nil, errors.New("count GPUs: UNKNOWN")
	}
	return m.Backend.Devices(ctx)
}

// TestMonitorTellsWhatIsKnown has listings fail at once: that is not a driver that
// hangs, and what was listed stays.
func TestMonitorTellsWhatIsKnown(t *testing.T) {
	const before, after = "driver lists no devices, waiting", "driver lists no devices, keeping"
	synctest.Test(t, func(t *testing.T) {
		var muted atomic.Bool
		muted.Store(true)
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return noDriverBackend{b, &muted} })
		defer w.stop()
		fails := func(first, later int) {
			t.Helper()
			w.statusesAfter(time.Minute)
			if d := w.monitor.Driver(); d.State != device.DriverFailing || w.monitor.Ready() != nil {
				t.Errorf("the driver is %+v, ready: %v", d, w.monitor.Ready())
			}
			if w.log.count(before) != first || w.log.count(after) != later {
				t.Errorf("said %v", w.log.counts)
			}
		}
		fails(1, 0)
		muted.Store(false)
		requireReasons(t, "when it lists", w.statusesAfter(2*time.Second), "")
		muted.Store(true)
		fails(1, 1)
		requireReasons(t, "what is known stays", w.statusesAfter(time.Minute), "")
	})
}

// blockableWait is a Backend whose Wait does not come back while a hand is on it.
type blockableWait struct {
	device.Backend
	block chan struct{} // has room for one: it is on while there is one
}

func (m blockableWait) Wait(ctx context.Context) (device.Event, error) {
	m.block <- struct{}{}
	<-m.block
	return m.Backend.Wait(ctx)
}

func TestMonitorSaysThatItIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hand := make(chan struct{}, 1)
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return blockableWait{b, hand} })
		defer w.stop()
		w.statusesAfter(time.Minute)
		said := func(when string, deaf bool, no, yes int) {
			t.Helper()
			if (w.monitor.EventOutage() > 0) != deaf || w.log.count("driver events interrupted") != no || w.log.count("driver events resumed") != yes {
				t.Errorf("%s: deaf for %s, and said %v", when, w.monitor.EventOutage(), w.log.counts)
			}
		}
		said("while nothing happens", false, 0, 0)
		hand <- struct{}{}
		w.statusesAfter(5 * time.Second)
		said("soon", false, 0, 0)
		w.statusesAfter(time.Minute)
		said("when a wait has not come back", true, 1, 0)
		if d := w.monitor.EventOutage(); d < time.Minute || d > 70*time.Second {
			t.Errorf("deaf for %s", d)
		}
		<-hand
		w.statusesAfter(2 * time.Second)
		said("when it has", false, 1, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return failingWait{b} })
		defer w.stop()
		w.statusesAfter(time.Minute)
		if d := w.monitor.EventOutage(); d < 50*time.Second || w.log.count("driver events interrupted") != 1 {
			t.Errorf("when each wait has failed: deaf for %s, and said %v", d, w.log.counts)
		}
	})
}

func TestMonitorPostsOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		_, changed := w.inventory.Get()
		w.statusesAfter(time.Hour)
		select {
		case <-changed:
			t.Error("the board changed in an hour in which nothing happened")
		default:
		}
	})
}
