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

// watched is a Monitor at work on a simulated machine.
type watched struct {
	*sim.Machine
	board   device.Board
	monitor *device.Monitor
	readers *device.Readers
	log     recorder
	stop    func()
}

// recorder is a log's handler that counts messages.
type recorder struct {
	slog.Handler
	mu    sync.Mutex
	times map[string]int // guarded by mu
}

func (r *recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r *recorder) Handle(_ context.Context, record slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.times == nil {
		r.times = map[string]int{}
	}
	r.times[record.Message]++
	return nil
}

// said is how many messages begin so.
func (r *recorder) said(begin string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for message, times := range r.times {
		if strings.HasPrefix(message, begin) {
			n += times
		}
	}
	return n
}

// watch runs a Monitor in the test's bubble. over may put something between the
// machine and the Monitor, before does something before that runs.
func watch(t *testing.T, m *sim.Machine, over func(device.Backend) device.Backend, before ...func(*watched)) *watched {
	t.Helper()
	var b device.Backend = m
	if over != nil {
		b = over(m)
	}
	w := &watched{Machine: m, readers: device.NewReaders(b)}
	w.monitor = device.NewMonitor(b, w.readers, &w.board, slog.New(&w.log))
	for _, prepare := range before {
		prepare(w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.monitor.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		m.Release()
		if !w.monitor.Drain(context.Background()) || !w.readers.Drain(context.Background()) {
			t.Error("calls are left")
		}
	}
	return w
}

// suspect lets the bubble's time pass until a check of the first device has failed once.
func (w *watched) suspect() {
	for range 1000 {
		if w.after(10 * time.Millisecond)[0].Health == device.Suspect {
			return
		}
	}
}

// after lets the bubble's time pass and returns what the board then says.
func (w *watched) after(d time.Duration) []device.Status {
	time.Sleep(d)
	synctest.Wait()
	statuses, _ := w.board.Look()
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

func machine(n int) *sim.Machine {
	return sim.NewMachine([]device.Metric{{Name: "nvidia_gpu_power_watts"}}, n, time.Now)
}

func want(t *testing.T, when string, statuses []device.Status, reason ...string) {
	t.Helper()
	if got := reasons(statuses); !slices.Equal(got, reason) {
		t.Errorf("%s: %q, want %q", when, got, reason)
	}
}

func TestMonitorBlamesTheGPUThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(3), nil)
		defer w.stop()
		ids := w.IDs()
		want(t, "at first", w.after(time.Millisecond), "", "", "")
		began := time.Now()
		w.Fail(ids[1], "xid 79")
		bad := w.after(time.Millisecond)
		want(t, "after Xid 79", bad, "", "xid_79", "")
		if s := bad[1]; s.Action != "reboot" || s.Since.Sub(began) > time.Millisecond || len(s.Xids) != 1 || s.Xids[0].Count != 1 {
			t.Errorf("the failed device is %+v", s)
		}
		want(t, "an hour later", w.after(time.Hour), "", "xid_79", "")
		w.Recover(ids[1])
		want(t, "at once after the reset", w.after(time.Millisecond), "", "xid_79", "")
		want(t, "after three good checks", w.after(4*time.Second), "", "", "")
	})
}

func TestMonitorWantsAResetWhereOneIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(1), nil)
		defer w.stop()
		w.after(time.Second)
		w.Fail(w.IDs()[0], "xid 95") // the GPU goes on answering
		want(t, "a minute later", w.after(time.Minute), "xid_95")
		w.Recover(w.IDs()[0])
		want(t, "after a reset", w.after(4*time.Second), "")
		w.Fail(w.IDs()[0], "xid 95")
		want(t, "again", w.after(time.Minute), "xid_95")
	})
}

// TestMonitorTellsAnEarlierReset has a GPU fail again before any check has seen that it
// was reset: that reset mends nothing.
func TestMonitorTellsAnEarlierReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(1), nil)
		defer w.stop()
		id := w.IDs()[0]
		w.after(time.Second)
		w.Recover(id)
		w.Fail(id, "xid 95")
		want(t, "an hour later", w.after(time.Hour), "xid_95")
		w.Recover(id)
		want(t, "after a reset", w.after(4*time.Second), "")
	})
}

// TestMonitorTakesAResetThatNoCheckPreceded has calls hang from before the fault until
// the GPU is reset.
func TestMonitorTakesAResetThatNoCheckPreceded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(1), nil)
		defer w.stop()
		id := w.IDs()[0]
		w.after(time.Second)
		w.Stall(id)
		w.after(6 * time.Second) // a check hangs
		w.Fail(id, "xid 95")
		want(t, "a minute later", w.after(time.Minute), "xid_95")
		w.Recover(id)
		want(t, "after a reset", w.after(5*time.Second), "")
	})
}

func TestMonitorCountsWhatApplicationsCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(1), nil)
		defer w.stop()
		w.after(time.Second)
		for range 3 {
			w.Fail(w.IDs()[0], "xid 31")
		}
		w.Fail(w.IDs()[0], "xid 13")
		statuses := w.after(time.Second)
		want(t, "after application errors", statuses, "")
		xids := statuses[0].Xids
		if len(xids) != 2 || xids[0].Code != 13 || xids[0].Count != 1 || xids[1].Code != 31 || xids[1].Count != 3 {
			t.Errorf("counted %+v, want one 13 and three 31", xids)
		}
	})
}

func TestMonitorKeepsWhatIsGoneOnTheBoard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(2), nil)
		defer w.stop()
		w.after(time.Second)
		w.Remove(w.IDs()[0])
		statuses := w.after(15 * time.Second)
		if len(statuses) != 2 || statuses[0].Healthy || !statuses[1].Healthy {
			t.Errorf("after a GPU was taken out: %q", reasons(statuses))
		}
		w.Recover(w.IDs()[0])
		want(t, "after it was put back", w.after(20*time.Second), "", "")
	})
}

func TestMonitorTakesADriverThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		m.Unload(errors.New("libnvidia-ml.so.1 not found"))
		w := watch(t, m, nil)
		defer w.stop()
		if w.after(time.Minute) != nil {
			t.Error("something was posted without a driver")
		}
		if d := w.monitor.Driver(); d.State != device.DriverAbsent || d.Err == nil {
			t.Errorf("the driver is %+v, want absent with a reason", d)
		}
		if err := w.monitor.Ready(); err != nil {
			t.Errorf("a node without a driver is not ready: %v", err)
		}
		w.Unload(nil)
		want(t, "two seconds after the driver came", w.after(2*time.Second), "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp || d.Err != nil {
			t.Errorf("the driver is %+v, want up", d)
		}
	})
}

func TestMonitorOutlivesAHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(2), nil)
		defer w.stop()
		w.after(time.Second)
		w.Stall(w.IDs()[0])
		want(t, "ten seconds into a stall", w.after(10*time.Second), "", "")
		want(t, "a minute into it", w.after(time.Minute), "not_answering", "")
		w.Release()
		want(t, "after it", w.after(5*time.Second), "", "")

		w.Wedge()
		w.after(20 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotAnswering {
			t.Errorf("the driver is %+v, want not answering", d)
		}
		if err := w.monitor.Alive(); err != nil {
			t.Errorf("the Monitor hangs with the driver: %v", err)
		}
		w.Release()
		want(t, "after the driver's hang", w.after(5*time.Second), "", "")
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
				w := watch(t, machine(gpus), nil)
				defer w.stop()
				w.after(20*time.Second + offset)
				state := func(when string, want device.DriverState) {
					t.Helper()
					if d := w.monitor.Driver(); d.State != want {
						t.Errorf("%d GPUs, %v: %s the driver is %+v, want %v", gpus, offset, when, d, want)
					}
				}
				w.Wedge()
				w.after(5 * time.Second)
				state("in a hang", device.DriverNotAnswering)
				w.after(15 * time.Second)
				if n := w.log.said("no devices from the driver"); n != 1 {
					t.Errorf("%d GPUs, %v: a hang of 20 s is logged %d times", gpus, offset, n)
				}
				w.Release()
				w.after(time.Second)
				state("after it", device.DriverUp)

				for _, id := range w.IDs() {
					w.Stall(id)
				}
				w.after(5 * time.Second)
				state("with calls about all GPUs hanging", device.DriverNotAnswering)
				w.after(15 * time.Second)
				state("a listing later", device.DriverNotAnswering)
				w.Release()
				w.after(time.Second)
				state("after that", device.DriverUp)

				if gpus > 1 {
					w.Stall(w.IDs()[gpus-1])
					for range 20 {
						w.after(time.Second)
						state("with one GPU hanging", device.DriverUp)
					}
					w.Wedge()
					w.after(5 * time.Second)
					state("in a hang that follows", device.DriverNotAnswering)
				}
			})
		}
	}
}

func TestMonitorSaysSoWhenTheDriverHangsAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		m.Wedge()
		w := watch(t, m, nil)
		defer w.stop()
		w.after(6 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotAnswering || w.monitor.Ready() != nil {
			t.Errorf("the driver is %+v, ready %v; want not answering, and ready", d, w.monitor.Ready())
		}
		w.Release()
		want(t, "after the hang", w.after(2*time.Second), "")
	})
}

func TestMonitorWaitsForAVerdictOnEachDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		m.Stall(m.IDs()[1])
		w := watch(t, m, nil)
		defer w.stop()
		if w.after(4*time.Second) != nil {
			t.Error("posted before each device had a verdict")
		}
		want(t, "when the time for it is over", w.after(2*time.Second), "", "not_answering")
	})
}

// TestMonitorPostsWhileAGPUHasNoVerdict has one put in whose first check hangs.
func TestMonitorPostsWhileAGPUHasNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		w := watch(t, m, nil)
		defer w.stop()
		w.after(9 * time.Second)
		m.Stall(device.ID(m.Add()))
		want(t, "when it was listed", w.after(2*time.Second), "", "")
		m.Fail(m.IDs()[0], "xid 79")
		want(t, "after Xid 79 of another", w.after(time.Millisecond), "xid_79", "")
		want(t, "when its time for a verdict is over", w.after(5*time.Second), "xid_79", "", "not_answering")
	})
}

// deaf is a Backend whose Wait fails.
type deaf struct{ device.Backend }

func (deaf) Wait(context.Context) (device.Event, error) {
	return device.Event{}, errors.New("GPU is lost")
}

func TestMonitorBlamesNobodyForAFailedWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(2), func(b device.Backend) device.Backend { return deaf{b} })
		defer w.stop()
		want(t, "after failed waits", w.after(10*time.Second), "", "")
		w.Fail(w.IDs()[1], "lost")
		want(t, "a second after a GPU was lost", w.after(1500*time.Millisecond), "", "lost")
	})
}

// busy is a Backend that counts checks.
type busy struct {
	device.Backend
	checks *atomic.Int64
}

func (b busy) Check(gpu device.GPU) (device.Vitals, error) {
	b.checks.Add(1)
	return b.Backend.Check(gpu)
}

// TestMonitorInAStorm has the driver report a thousand errors in ten seconds. Each is
// counted, and few make a line of the log, a check or a post.
func TestMonitorInAStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int64
		w := watch(t, machine(1), func(b device.Backend) device.Backend { return busy{b, &checks} })
		defer w.stop()
		id := w.IDs()[0]
		w.after(time.Second)
		checks.Store(0)
		posts := 0
		_, changed := w.board.Look()
		for range 1000 {
			w.Fail(id, "xid 31")
			w.after(10 * time.Millisecond)
			select {
			case <-changed:
				posts++
				_, changed = w.board.Look()
			default:
			}
		}
		if n := checks.Load(); n < 10 || n > 250 {
			t.Errorf("%d checks", n)
		}
		if posts < 10 || posts > 50 {
			t.Errorf("%d posts", posts)
		}
		said := w.log.said("driver event")
		if said < 1 || said > 2 {
			t.Errorf("%d lines in the log", said)
		}
		statuses := w.after(time.Second)
		if xids := statuses[0].Xids; len(xids) != 1 || xids[0].Count != 1000 {
			t.Errorf("counted %+v", xids)
		}
		w.Fail(id, "xid 13")
		if w.after(time.Millisecond); w.log.said("driver event") != said+1 {
			t.Error("a report of another kind is not in the log")
		}
		w.Fail(id, "xid 79")
		want(t, "at once", w.after(time.Millisecond), "xid_79")
	})
}

// mute is a Backend that fails to list from some time on.
type mute struct {
	device.Backend
	now *atomic.Bool
}

func (m mute) Devices(ctx context.Context) ([]device.Device, error) {
	if m.now.Load() {
		return nil, errors.New("count GPUs: UNKNOWN")
	}
	return m.Backend.Devices(ctx)
}

// TestMonitorTellsWhatIsKnown has listings fail at once: that is not a driver that
// hangs, and what was listed stays.
func TestMonitorTellsWhatIsKnown(t *testing.T) {
	const before, after = "no devices from the driver; will take them", "no devices from the driver; those that are known stay"
	synctest.Test(t, func(t *testing.T) {
		var muted atomic.Bool
		muted.Store(true)
		w := watch(t, machine(1), func(b device.Backend) device.Backend { return mute{b, &muted} })
		defer w.stop()
		fails := func(first, later int) {
			t.Helper()
			w.after(time.Minute)
			if d := w.monitor.Driver(); d.State != device.DriverFailing || w.monitor.Ready() != nil {
				t.Errorf("the driver is %+v, ready: %v", d, w.monitor.Ready())
			}
			if w.log.said(before) != first || w.log.said(after) != later {
				t.Errorf("said %v", w.log.times)
			}
		}
		fails(1, 0)
		muted.Store(false)
		want(t, "when it lists", w.after(2*time.Second), "")
		muted.Store(true)
		fails(1, 1)
		want(t, "what is known stays", w.after(time.Minute), "")
	})
}

// muffled is a Backend whose Wait does not come back while a hand is on it.
type muffled struct {
	device.Backend
	hand chan struct{} // has room for one: it is on while there is one
}

func (m muffled) Wait(ctx context.Context) (device.Event, error) {
	m.hand <- struct{}{}
	<-m.hand
	return m.Backend.Wait(ctx)
}

func TestMonitorSaysThatItIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hand := make(chan struct{}, 1)
		w := watch(t, machine(1), func(b device.Backend) device.Backend { return muffled{b, hand} })
		defer w.stop()
		w.after(time.Minute)
		said := func(when string, deaf bool, no, yes int) {
			t.Helper()
			if (w.monitor.Deaf() > 0) != deaf || w.log.said("driver events are not heard") != no || w.log.said("driver events are heard again") != yes {
				t.Errorf("%s: deaf for %s, and said %v", when, w.monitor.Deaf(), w.log.times)
			}
		}
		said("while nothing happens", false, 0, 0)
		hand <- struct{}{}
		w.after(5 * time.Second)
		said("soon", false, 0, 0)
		w.after(time.Minute)
		said("when a wait has not come back", true, 1, 0)
		if d := w.monitor.Deaf(); d < time.Minute || d > 70*time.Second {
			t.Errorf("deaf for %s", d)
		}
		<-hand
		w.after(2 * time.Second)
		said("when it has", false, 1, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(1), func(b device.Backend) device.Backend { return deaf{b} })
		defer w.stop()
		w.after(time.Minute)
		if d := w.monitor.Deaf(); d < 50*time.Second || w.log.said("driver events are not heard") != 1 {
			t.Errorf("when each wait has failed: deaf for %s, and said %v", d, w.log.times)
		}
	})
}

func TestMonitorPostsOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, machine(2), nil)
		defer w.stop()
		w.after(time.Second)
		_, changed := w.board.Look()
		w.after(time.Hour)
		select {
		case <-changed:
			t.Error("the board changed in an hour in which nothing happened")
		default:
		}
	})
}
