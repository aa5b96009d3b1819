package device_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/device"
	"github.com/podgauge/podgauge/sim"
)

// watched is a Monitor at work on a simulated machine.
type watched struct {
	*sim.Machine
	board   device.Board
	monitor *device.Monitor
	readers *device.Readers
	stop    func()
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
	w.monitor = device.NewMonitor(b, w.readers, &w.board, slog.New(slog.DiscardHandler))
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
