package device_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
)

// releaseWithin releases or resumes with a deadline.
func within(d time.Duration, order func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return order(ctx)
}

func TestMonitorReleasesTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
		w := watch(t, m, nil)
		defer w.stop()
		held := m.IDs()
		w.after(time.Second)
		w.Fail(held[2], "xid 95")
		w.after(time.Second)
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		statuses := w.after(0)
		want(t, "released", statuses, "released", "released", "released", "released")
		if d := w.monitor.Driver(); d.State != device.DriverReleased || !m.Closed() || w.monitor.Ready() != nil {
			t.Errorf("the driver is %+v, closed %v, ready %v", d, m.Closed(), w.monitor.Ready())
		}
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Errorf("a second release: %v", err)
		}
		late, _ := errorsOf(w.readers, m.GPUs())
		if !errors.Is(late[0], device.ErrNoDriver) || !errors.Is(late[1], device.ErrNoDriver) {
			t.Errorf("readings are %v", late)
		}
		want(t, "an hour later", w.after(time.Hour), "released", "released", "released", "released")
		if !m.Closed() {
			t.Error("somebody started the driver")
		}

		m.Partition(m.GPUs()[0], "1g.10gb", "2g.20gb")
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		want(t, "taken up again", w.after(5*time.Second), "", "", "gone", "", "xid_95")
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		m.Recover(held[2])
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Errorf("a second time: %v", err)
		}
		want(t, "with a reset meanwhile", w.after(15*time.Second), "", "", "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("the driver is %+v", d)
		}
		if m.Misused() {
			t.Error("the driver was closed beneath a call")
		}
	})
}

// errorsOf reads GPUs and returns their errors.
func errorsOf(r *device.Readers, gpus []device.GPU) (errs []error, took time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	for _, reading := range r.Read(ctx, gpus) {
		errs = append(errs, reading.Err)
	}
	return errs, time.Since(began)
}

// TestMonitorDoesNotReleaseBeneathACall has one hang: the release is given up, and
// what it had begun is taken back.
func TestMonitorDoesNotReleaseBeneathACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		w := watch(t, m, nil)
		defer w.stop()
		w.after(time.Second)
		m.Stall(m.IDs()[1])
		w.after(6 * time.Second) // a check hangs
		result := make(chan error, 1)
		go func() { result <- within(5*time.Second, w.monitor.Release) }() // ends with its deadline
		want(t, "meanwhile", w.after(time.Second), "released", "released")
		if err := within(time.Second, w.monitor.Resume); err == nil {
			t.Error("it was taken up beneath a release")
		}
		if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		want(t, "after it", w.after(5*time.Second), "", "released") // the other does not answer
		m.Release()
		want(t, "after the hang", w.after(5*time.Second), "", "")
		if m.Closed() || m.Misused() {
			t.Error("the driver was closed")
		}
		if err := within(10*time.Second, w.monitor.Release); err != nil || m.Misused() {
			t.Errorf("a second try: %v", err)
		}
	})
}

// TestMonitorReleasesUnderScrapes has readings come all the time.
func TestMonitorReleasesUnderScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(4)
		w := watch(t, m, nil)
		w.after(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		scraped := make(chan struct{})
		go func() { // ends with ctx
			defer close(scraped)
			for ctx.Err() == nil {
				errorsOf(w.readers, m.GPUs())
				time.Sleep(time.Millisecond)
			}
		}()
		for range 20 {
			if err := within(10*time.Second, w.monitor.Release); err != nil {
				t.Fatal(err)
			}
			if err := within(10*time.Second, w.monitor.Resume); err != nil {
				t.Fatal(err)
			}
			want(t, "taken up again", w.after(5*time.Second), "", "", "", "")
		}
		cancel()
		<-scraped
		w.stop()
		if m.Misused() {
			t.Error("the driver was closed beneath a call")
		}
	})
}

// sticky is a machine whose driver lets go only when it is told to.
type sticky struct {
	*sim.Machine
	let chan struct{}
}

func (s sticky) Close() {
	<-s.let
	s.Machine.Close()
}

// TestMonitorTakesUpWhatWasLetGoOfTooLate has the driver's library hang when it is shut
// down: the release was given up, so what comes of it later is taken back.
func TestMonitorTakesUpWhatWasLetGoOfTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		b := sticky{m, make(chan struct{})}
		w := watch(t, m, func(device.Backend) device.Backend { return b })
		defer w.stop()
		w.after(time.Second)
		if err := within(10*time.Second, w.monitor.Release); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		want(t, "while it hangs", w.after(time.Minute), "released")
		if err := within(time.Second, w.monitor.Resume); err == nil {
			t.Error("it was taken up beneath that")
		}
		close(b.let)
		want(t, "after it", w.after(5*time.Second), "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("the driver is %+v", d)
		}
	})
}

func TestMonitorAnswersAReleaseAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(1)
		w := watch(t, m, nil)
		w.after(time.Second)
		m.Stall(m.IDs()[0])
		w.after(6 * time.Second)
		result := make(chan error, 1)
		go func() { result <- w.monitor.Release(context.Background()) }() // ends with Run
		synctest.Wait()
		w.stop()
		if err := <-result; err == nil {
			t.Error("it says that it is done")
		}
		if err := within(time.Second, w.monitor.Release); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nobody is there any more, and it says %v", err)
		}
	})
}

// replaced is a Backend whose driver is, some day, another one.
type replaced struct {
	*sim.Machine
	by atomic.Bool
}

func (r *replaced) Devices(ctx context.Context) ([]device.Device, error) {
	if r.by.Load() {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, device.ErrReplaced)
	}
	return r.Machine.Devices(ctx)
}

// lingering is a Backend that has left a call behind.
type lingering struct {
	replaced
	left atomic.Bool
}

func (l *lingering) Idle() bool { return !l.left.Load() }

// TestMonitorDoesNotEndBeneathACallLeftBehind has the driver be replaced while a call
// is under way that its Backend no longer waits for.
func TestMonitorDoesNotEndBeneathACallLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &lingering{replaced: replaced{Machine: machine(1)}}
		b.left.Store(true)
		monitor := device.NewMonitor(b, device.NewReaders(b), &device.Board{}, slog.New(slog.DiscardHandler))
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(context.Background()) }() // ends by itself
		time.Sleep(time.Second)
		b.by.Store(true)
		time.Sleep(time.Minute)
		if len(ended) > 0 {
			t.Error("it has ended beneath a call")
		}
		b.left.Store(false)
		if err := <-ended; !errors.Is(err, device.ErrReplaced) {
			t.Errorf("it ends with %v", err)
		}
	})
}

// TestMonitorEndsWhenTheDriverIsReplaced waits for the calls that are under way: the
// process is to end, and never with one of them.
func TestMonitorEndsWhenTheDriverIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		b := &replaced{Machine: m}
		readers, board := device.NewReaders(b), &device.Board{}
		monitor := device.NewMonitor(b, readers, board, slog.New(slog.DiscardHandler))
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(context.Background()) }() // ends by itself
		time.Sleep(time.Second)
		m.Stall(m.IDs()[0])
		b.by.Store(true)
		time.Sleep(time.Minute)
		if d := monitor.Driver(); d.State != device.DriverReplaced || !errors.Is(d.Err, device.ErrReplaced) || monitor.Ready() != nil {
			t.Errorf("the driver is %+v, ready %v", d, monitor.Ready())
		}
		statuses, _ := board.Look()
		if got := reasons(statuses); !slices.Equal(got, []string{"driver_replaced", "driver_replaced"}) {
			t.Errorf("the board has %q", got)
		}
		if len(ended) > 0 || monitor.Alive() != nil {
			t.Error("it has ended beneath a call")
		}
		if err := within(time.Second, monitor.Release); !errors.Is(err, device.ErrReplaced) {
			t.Errorf("a release says %v", err)
		}
		m.Release()
		if err := <-ended; !errors.Is(err, device.ErrReplaced) || !readers.Idle() {
			t.Errorf("it ends with %v", err)
		}
		if !monitor.Drain(t.Context()) {
			t.Error("calls are left")
		}
	})
}

// silent is a Backend whose checks ask nothing while it is so.
type silent struct {
	*sim.Machine
	is atomic.Bool
}

func (s *silent) Check(gpu device.GPU) (device.Vitals, error) {
	if s.is.Load() {
		return device.Vitals{}, device.ErrStalled
	}
	return s.Machine.Check(gpu)
}

// TestMonitorForgetsASilenceThatARelease has ended.
func TestMonitorForgetsASilenceThatAReleaseHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told witnessed
		m := machine(1)
		s := &silent{Machine: m}
		w := watch(t, m, func(device.Backend) device.Backend { return s }, told.listen)
		defer w.stop()
		w.after(time.Second)
		s.is.Store(true)
		w.after(10 * time.Second)
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		s.is.Store(false)
		w.after(time.Hour)
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		want(t, "taken up again", w.after(15*time.Second), "")
		if flaps := w.after(0)[0].Flaps; flaps != 0 || len(told.told()) != 0 {
			t.Errorf("it turned unhealthy %d times", flaps)
		}
	})
}

// bare is a machine one of whose GPUs has no energy counter: its checks show no reset.
type bare struct {
	*sim.Machine
	gpu device.GPU
}

func (b bare) Check(gpu device.GPU) (device.Vitals, error) {
	v, err := b.Machine.Check(gpu)
	if gpu == b.gpu {
		v.Resets, v.Odometer = 0, 0
	}
	return v, err
}

// TestAReleaseIsAResetOfABareGPU has a GPU without an energy counter fail, and be released and
// resumed: nothing else could show that it was reset.
func TestAReleaseIsAResetOfABareGPU(t *testing.T) {
	resume := func(t *testing.T, pending bool) (*watched, *witnessed) {
		m, s := machine(2), &witnessed{}
		w := watch(t, m, func(device.Backend) device.Backend { return bare{m, m.GPUs()[0]} }, s.listen)
		w.after(time.Second)
		for _, id := range m.IDs() {
			w.Fail(id, "xid 95")
		}
		want(t, "after Xid 95", w.after(time.Minute), "xid_95", "xid_95")
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		if pending {
			m.Await(m.IDs()[0])
		}
		w.after(time.Minute)
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		return w, s
	}
	t.Run("and its checks pass", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, s := resume(t, false)
			defer w.stop()
			w.after(1750 * time.Millisecond) // the first check may come before the listing, and fail
			if r := record(s.history(), w.GPUs()[0], ""); !r.Reset || r.Again.Resets != 1 {
				t.Errorf("the record is %+v", r)
			}
			want(t, "resumed", w.after(15*time.Second), "", "xid_95")
			w.Fail(w.IDs()[0], "xid 95")
			want(t, "after another Xid 95", w.after(time.Minute), "xid_95", "xid_95")
		})
	})
	t.Run("and a repair waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, _ := resume(t, true)
			defer w.stop()
			want(t, "resumed", w.after(time.Hour), "xid_95", "xid_95")
		})
	})
}

// unread is a machine whose checks get no answer while the flag is set.
type unread struct {
	*sim.Machine
	is atomic.Bool
}

func (u *unread) Check(gpu device.GPU) (device.Vitals, error) {
	if u.is.Load() {
		return device.Vitals{}, errOdd
	}
	return u.Machine.Check(gpu)
}

// TestAReleaseIsNoResetOfAGPUThatWasNotRead: before a check has read its energy counter, a GPU is
// not taken for one that has none.
func TestAReleaseIsNoResetOfAGPUThatWasNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unread{Machine: machine(1)}
		u.is.Store(true)
		w := watch(t, u.Machine, func(device.Backend) device.Backend { return u })
		defer w.stop()
		w.after(time.Second)
		w.Fail(w.IDs()[0], "xid 95")
		want(t, "after Xid 95", w.after(time.Minute), "xid_95")
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		u.is.Store(false)
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		want(t, "resumed without a reset", w.after(time.Minute), "xid_95")
		w.Recover(w.IDs()[0])
		want(t, "after a reset", w.after(15*time.Second), "")
	})
}

// TestMonitorHearsWhileReleased of a fault, of which the reset is that comes before the GPUs
// are taken up again.
func TestMonitorHearsWhileReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := machine(2)
		w := watch(t, m, nil)
		defer w.stop()
		w.after(time.Second)
		if err := within(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		for _, gpu := range m.GPUs() {
			w.monitor.Report(kernel(gpu, 95), time.Now())
		}
		w.after(2 * time.Second)
		m.Recover(m.IDs()[0])
		w.after(2 * time.Second)
		if err := within(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		want(t, "with a reset of one", w.after(15*time.Second), "", "xid_95")
	})
}
