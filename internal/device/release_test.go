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
func withTimeout(d time.Duration, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return request(ctx)
}

func TestMonitorReleasesTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil)
		defer w.stop()
		held := m.AllocatableIDs()
		w.statusesAfter(time.Second)
		w.Fail(held[2], "xid 95")
		w.statusesAfter(time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		statuses := w.statusesAfter(0)
		requireReasons(t, "released", statuses, "released", "released", "released", "released")
		if d := w.monitor.Driver(); d.State != device.DriverReleased || !m.Closed() || w.monitor.Ready() != nil {
			t.Errorf("the driver is %+v, closed %v, ready %v", d, m.Closed(), w.monitor.Ready())
		}
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Errorf("a second release: %v", err)
		}
		late, _ := readErrors(w.readers, m.GPUs())
		if !errors.Is(late[0], device.ErrNoDriver) || !errors.Is(late[1], device.ErrNoDriver) {
			t.Errorf("readings are %v", late)
		}
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "released", "released", "released", "released")
		if !m.Closed() {
			t.Error("somebody started the driver")
		}

		m.Partition(m.GPUs()[0], "1g.10gb", "2g.20gb")
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		requireReasons(t, "taken up again", w.statusesAfter(5*time.Second), "", "", "gone", "", "xid_95")
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		m.ResetGPU(held[2])
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Errorf("a second time: %v", err)
		}
		requireReasons(t, "with a reset meanwhile", w.statusesAfter(15*time.Second), "", "", "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("the driver is %+v", d)
		}
		if m.ClosedDuringCall() {
			t.Error("the driver was closed beneath a call")
		}
	})
}

// readErrors reads GPUs and returns their errors.
func readErrors(r *device.Readers, gpus []device.GPU) (errs []error, took time.Duration) {
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
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		m.HangGPU(m.AllocatableIDs()[1])
		w.statusesAfter(6 * time.Second) // a check hangs
		result := make(chan error, 1)
		go func() { result <- withTimeout(5*time.Second, w.monitor.Release) }() // ends with its deadline
		requireReasons(t, "meanwhile", w.statusesAfter(time.Second), "released", "released")
		if err := withTimeout(time.Second, w.monitor.Resume); err == nil {
			t.Error("it was taken up beneath a release")
		}
		if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		requireReasons(t, "after it", w.statusesAfter(5*time.Second), "", "released") // the other does not answer
		m.ReleaseHangs()
		requireReasons(t, "after the hang", w.statusesAfter(5*time.Second), "", "")
		if m.Closed() || m.ClosedDuringCall() {
			t.Error("the driver was closed")
		}
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil || m.ClosedDuringCall() {
			t.Errorf("a second try: %v", err)
		}
	})
}

// TestMonitorReleasesUnderScrapes has readings come all the time.
func TestMonitorReleasesUnderScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4)
		w := startMonitor(t, m, nil)
		w.statusesAfter(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		scraped := make(chan struct{})
		go func() { // ends with ctx
			defer close(scraped)
			for ctx.Err() == nil {
				readErrors(w.readers, m.GPUs())
				time.Sleep(time.Millisecond)
			}
		}()
		for range 20 {
			if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
				t.Fatal(err)
			}
			if err := withTimeout(10*time.Second, w.monitor.Resume); err != nil {
				t.Fatal(err)
			}
			requireReasons(t, "taken up again", w.statusesAfter(5*time.Second), "", "", "", "")
		}
		cancel()
		<-scraped
		w.stop()
		if m.ClosedDuringCall() {
			t.Error("the driver was closed beneath a call")
		}
	})
}

// blockingClose is a machine whose driver lets go only when it is told to.
type blockingClose struct {
	*sim.Machine
	unblock chan struct{}
}

func (s blockingClose) Close() {
	<-s.unblock
	s.Machine.Close()
}

// TestMonitorTakesUpWhatWasLetGoOfTooLate has the driver's library hang when it is shut
// down: the release was given up, so what comes of it later is taken back.
func TestMonitorTakesUpWhatWasLetGoOfTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		b := blockingClose{m, make(chan struct{})}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
		defer w.stop()
		w.statusesAfter(time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		requireReasons(t, "while it hangs", w.statusesAfter(time.Minute), "released")
		if err := withTimeout(time.Second, w.monitor.Resume); err == nil {
			t.Error("it was taken up beneath that")
		}
		close(b.unblock)
		requireReasons(t, "after it", w.statusesAfter(5*time.Second), "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("the driver is %+v", d)
		}
	})
}

func TestMonitorAnswersAReleaseAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(1)
		w := startMonitor(t, m, nil)
		w.statusesAfter(time.Second)
		m.HangGPU(m.AllocatableIDs()[0])
		w.statusesAfter(6 * time.Second)
		result := make(chan error, 1)
		go func() { result <- w.monitor.Release(context.Background()) }() // ends with Run
		synctest.Wait()
		w.stop()
		if err := <-result; err == nil {
			t.Error("it says that it is done")
		}
		if err := withTimeout(time.Second, w.monitor.Release); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("nobody is there any more, and it says %v", err)
		}
	})
}

// replacedDriver is a Backend whose driver is, some day, another one.
type replacedDriver struct {
	*sim.Machine
	active atomic.Bool
}

func (r *replacedDriver) Devices(ctx context.Context) ([]device.Device, error) {
	if r.active.Load() {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, device.ErrDriverReplaced)
	}
	return r.Machine.Devices(ctx)
}

// backgroundCalls is a Backend that has left a call behind.
type backgroundCalls struct {
	replacedDriver
	running atomic.Bool
}

func (l *backgroundCalls) Idle() bool { return !l.running.Load() }

// TestMonitorDoesNotEndBeneathACallLeftBehind has the driver be replaced while a call
// is under way that its Backend no longer waits for.
func TestMonitorDoesNotEndBeneathACallLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backgroundCalls{replacedDriver: replacedDriver{Machine: newMachine(1)}}
		b.running.Store(true)
		monitor := device.NewMonitor(b, device.NewReaders(b), &device.Inventory{}, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(context.Background()) }() // ends by itself
		time.Sleep(time.Second)
		b.active.Store(true)
		time.Sleep(time.Minute)
		if len(ended) > 0 {
			t.Error("it has ended beneath a call")
		}
		b.running.Store(false)
		if err := <-ended; !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("it ends with %v", err)
		}
	})
}

// TestMonitorEndsWhenTheDriverIsReplaced waits for the calls that are under way: the
// process is to end, and never with one of them.
func TestMonitorEndsWhenTheDriverIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		b := &replacedDriver{Machine: m}
		readers, inventory := device.NewReaders(b), &device.Inventory{}
		monitor := device.NewMonitor(b, readers, inventory, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(context.Background()) }() // ends by itself
		time.Sleep(time.Second)
		m.HangGPU(m.AllocatableIDs()[0])
		b.active.Store(true)
		time.Sleep(time.Minute)
		if d := monitor.Driver(); d.State != device.DriverReplaced || !errors.Is(d.Err, device.ErrDriverReplaced) || monitor.Ready() != nil {
			t.Errorf("the driver is %+v, ready %v", d, monitor.Ready())
		}
		statuses, _ := inventory.Get()
		if got := reasons(statuses); !slices.Equal(got, []string{"driver_replaced", "driver_replaced"}) {
			t.Errorf("the board has %q", got)
		}
		if len(ended) > 0 || monitor.Alive() != nil {
			t.Error("it has ended beneath a call")
		}
		if err := withTimeout(time.Second, monitor.Release); !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("a release says %v", err)
		}
		m.ReleaseHangs()
		if err := <-ended; !errors.Is(err, device.ErrDriverReplaced) || !readers.Idle() {
			t.Errorf("it ends with %v", err)
		}
		if !monitor.Drain(t.Context()) {
			t.Error("calls are left")
		}
	})
}

// stalledChecks is a Backend whose checks ask nothing while it is so.
type stalledChecks struct {
	*sim.Machine
	active atomic.Bool
}

func (s *stalledChecks) Check(gpu device.GPU) (device.ResetEvidence, error) {
	if s.active.Load() {
		return device.ResetEvidence{}, device.ErrStalled
	}
	return s.Machine.Check(gpu)
}

// TestMonitorForgetsASilenceThatARelease has ended.
func TestMonitorForgetsASilenceThatAReleaseHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told monitorRecorder
		m := newMachine(1)
		s := &stalledChecks{Machine: m}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return s }, told.attach)
		defer w.stop()
		w.statusesAfter(time.Second)
		s.active.Store(true)
		w.statusesAfter(10 * time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		s.active.Store(false)
		w.statusesAfter(time.Hour)
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		requireReasons(t, "taken up again", w.statusesAfter(15*time.Second), "")
		if flaps := w.statusesAfter(0)[0].Flaps; flaps != 0 || len(told.takeEvents()) != 0 {
			t.Errorf("it turned unhealthy %d times", flaps)
		}
	})
}

// noEnergyCounter is a machine one of whose GPUs has no energy counter: its checks show no reset.
type noEnergyCounter struct {
	*sim.Machine
	gpu device.GPU
}

func (b noEnergyCounter) Check(gpu device.GPU) (device.ResetEvidence, error) {
	v, err := b.Machine.Check(gpu)
	if gpu == b.gpu {
		v.Resets, v.EnergyCounter = 0, 0
	}
	return v, err
}

// TestAReleaseIsAResetOfABareGPU has a GPU without an energy counter fail, and be released and
// resumed: nothing else could show that it was reset.
func TestAReleaseIsAResetOfABareGPU(t *testing.T) {
	resume := func(t *testing.T, pending bool) (*monitorFixture, *monitorRecorder) {
		m, s := newMachine(2), &monitorRecorder{}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return noEnergyCounter{m, m.GPUs()[0]} }, s.attach)
		w.statusesAfter(time.Second)
		for _, id := range m.AllocatableIDs() {
			w.Fail(id, "xid 95")
		}
		requireReasons(t, "after Xid 95", w.statusesAfter(time.Minute), "xid_95", "xid_95")
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		if pending {
			m.SetRepairPending(m.AllocatableIDs()[0])
		}
		w.statusesAfter(time.Minute)
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		return w, s
	}
	t.Run("and its checks pass", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, s := resume(t, false)
			defer w.stop()
			w.statusesAfter(1750 * time.Millisecond) // the first check may come before the listing, and fail
			if r := findRecord(s.savedHistory(), w.GPUs()[0], ""); !r.ResetSeen || r.FailedResets.Count != 1 {
				t.Errorf("the record is %+v", r)
			}
			requireReasons(t, "resumed", w.statusesAfter(15*time.Second), "", "xid_95")
			w.Fail(w.AllocatableIDs()[0], "xid 95")
			requireReasons(t, "after another Xid 95", w.statusesAfter(time.Minute), "xid_95", "xid_95")
		})
	})
	t.Run("and a repair waits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, _ := resume(t, true)
			defer w.stop()
			requireReasons(t, "resumed", w.statusesAfter(time.Hour), "xid_95", "xid_95")
		})
	})
}

// unreadEnergyCounter is a machine whose checks get no answer while the flag is set.
type unreadEnergyCounter struct {
	*sim.Machine
	active atomic.Bool
}

func (u *unreadEnergyCounter) Check(gpu device.GPU) (device.ResetEvidence, error) {
	if u.active.Load() {
		return device.ResetEvidence{}, errUnknown
	}
	return u.Machine.Check(gpu)
}

// TestAReleaseIsNoResetOfAGPUThatWasNotRead: before a check has read its energy counter, a GPU is
// not taken for one that has none.
func TestAReleaseIsNoResetOfAGPUThatWasNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unreadEnergyCounter{Machine: newMachine(1)}
		u.active.Store(true)
		w := startMonitor(t, u.Machine, func(device.Backend) device.Backend { return u })
		defer w.stop()
		w.statusesAfter(time.Second)
		w.Fail(w.AllocatableIDs()[0], "xid 95")
		requireReasons(t, "after Xid 95", w.statusesAfter(time.Minute), "xid_95")
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		u.active.Store(false)
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		requireReasons(t, "resumed without a reset", w.statusesAfter(time.Minute), "xid_95")
		w.ResetGPU(w.AllocatableIDs()[0])
		requireReasons(t, "after a reset", w.statusesAfter(15*time.Second), "")
	})
}

// TestMonitorHearsWhileReleased of a fault, of which the reset is that comes before the GPUs
// are taken up again.
func TestMonitorHearsWhileReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		for _, gpu := range m.GPUs() {
			w.monitor.Report(kernelEvent(gpu, 95), time.Now())
		}
		w.statusesAfter(2 * time.Second)
		m.ResetGPU(m.AllocatableIDs()[0])
		w.statusesAfter(2 * time.Second)
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		requireReasons(t, "with a reset of one", w.statusesAfter(15*time.Second), "", "xid_95")
	})
}
