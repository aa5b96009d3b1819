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
	"github.com/podgauge/podgauge/test/bubble"
)

// withTimeout calls Release or Resume with a deadline.
func withTimeout(d time.Duration, request func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return request(ctx)
}

func TestRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.Partition(m.GPUs()[0], "1g.10gb", "1g.10gb")
		w := startMonitor(t, m, nil)
		defer w.stop()
		ids := m.AllocatableIDs()
		w.statusesAfter(time.Second)
		w.Fail(ids[2], "xid 95")
		w.statusesAfter(time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		statuses := w.statusesAfter(0)
		requireReasons(t, "released", statuses, "released", "released", "released", "released")
		if d := w.monitor.Driver(); d.State != device.DriverReleased || !m.Closed() || w.monitor.Ready() != nil {
			t.Errorf("got driver %+v, closed %v, ready %v; want released, closed and ready", d, m.Closed(),
				w.monitor.Ready())
		}
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Errorf("second Release: got %v, want nil", err)
		}
		late, _ := readErrors(w.readers, m.GPUs())
		if !errors.Is(late[0], device.ErrNoDriver) || !errors.Is(late[1], device.ErrNoDriver) {
			t.Errorf("got read errors %v, want ErrNoDriver", late)
		}
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "released", "released", "released", "released")
		if !m.Closed() {
			t.Error("the driver was loaded during the release")
		}

		m.Partition(m.GPUs()[0], "1g.10gb", "2g.20gb")
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		requireReasons(t, "resumed", w.statusesAfter(5*time.Second), "", "", "gone", "", "xid_95")
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		m.ResetGPU(ids[2])
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Errorf("second Resume: got %v, want nil", err)
		}
		requireReasons(t, "with a reset in between", w.statusesAfter(15*time.Second), "", "", "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("driver: got %+v, want up", d)
		}
		if m.ClosedDuringCall() {
			t.Error("the driver was closed during a call")
		}
	})
}

// readErrors reads GPUs and returns their errors.
func readErrors(r *device.Readers, gpus []device.GPU) (errs []error, took time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	began := time.Now()
	for _, reading := range r.Read(ctx, gpus, true) {
		errs = append(errs, reading.Err)
	}
	return errs, time.Since(began)
}

// TestReleaseDuringHang checks that a release during a hanging call fails, and
// that the devices are resumed.
func TestReleaseDuringHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		m.HangGPU(m.AllocatableIDs()[1])
		w.statusesAfter(6 * time.Second) // a check hangs now
		result := make(chan error, 1)
		go func() { result <- withTimeout(5*time.Second, w.monitor.Release) }() // ends with its deadline
		requireReasons(t, "during the release", w.statusesAfter(time.Second), "released", "released")
		if err := withTimeout(time.Second, w.monitor.Resume); err == nil {
			t.Error("Resume during a release: got nil, want an error")
		}
		if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: got %v, want DeadlineExceeded", err)
		}
		// the second GPU does not respond
		requireReasons(t, "after the timeout", w.statusesAfter(5*time.Second), "", "released")
		m.ReleaseHangs()
		requireReasons(t, "after the hang", w.statusesAfter(5*time.Second), "", "")
		if m.Closed() || m.ClosedDuringCall() {
			t.Error("the driver was closed")
		}
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil || m.ClosedDuringCall() {
			t.Errorf("second Release: got %v, want nil, and no Close during a call", err)
		}
	})
}

// TestReleaseDuringReads releases the driver during continuous reads.
func TestReleaseDuringReads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
			requireReasons(t, "resumed", w.statusesAfter(5*time.Second), "", "", "", "")
		}
		cancel()
		<-scraped
		w.stop()
		if m.ClosedDuringCall() {
			t.Error("the driver was closed during a call")
		}
	})
}

// blockingClose is a machine whose Close waits for unblock.
type blockingClose struct {
	*sim.Machine
	unblock chan struct{}
}

func (s blockingClose) Close() {
	<-s.unblock
	s.Machine.Close()
}

// TestResumeAfterLateClose checks that devices whose release timed out in Close
// are resumed when Close returns.
func TestResumeAfterLateClose(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		b := blockingClose{m, make(chan struct{})}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
		defer w.stop()
		w.statusesAfter(time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: got %v, want DeadlineExceeded", err)
		}
		requireReasons(t, "while Close hangs", w.statusesAfter(time.Minute), "released")
		if err := withTimeout(time.Second, w.monitor.Resume); err == nil {
			t.Error("Resume during Close: got nil, want an error")
		}
		close(b.unblock)
		requireReasons(t, "after the timeout", w.statusesAfter(5*time.Second), "")
		if d := w.monitor.Driver(); d.State != device.DriverUp {
			t.Errorf("driver: got %+v, want up", d)
		}
	})
}

func TestReleaseAtEndOfRun(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
			t.Error("Release at the end of Run: got nil, want an error")
		}
		if err := withTimeout(time.Second, w.monitor.Release); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release after Run: got %v, want DeadlineExceeded", err)
		}
	})
}

// replacedDriver is a Backend whose driver is replaced while active is set.
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

// backgroundCalls is a Backend with a call in the background.
type backgroundCalls struct {
	replacedDriver
	running atomic.Bool
}

func (l *backgroundCalls) Idle() bool { return !l.running.Load() }

// TestDriverReplacedDuringBackgroundCall checks that Run does not end during a
// Backend's background call.
func TestDriverReplacedDuringBackgroundCall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &backgroundCalls{replacedDriver: replacedDriver{Machine: newMachine(1)}}
		b.running.Store(true)
		monitor := device.NewMonitor(b, device.NewReaders(b), &device.Inventory{},
			device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(context.Background()) }() // ends by itself
		time.Sleep(time.Second)
		b.active.Store(true)
		time.Sleep(time.Minute)
		if len(ended) > 0 {
			t.Error("Run ended during a call")
		}
		b.running.Store(false)
		if err := <-ended; !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("Run: got %v, want ErrDriverReplaced", err)
		}
	})
}

// TestDriverReplaced checks that Run ends after the last call.
func TestDriverReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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
		if d := monitor.Driver(); d.State != device.DriverReplaced || !errors.Is(d.Err, device.ErrDriverReplaced) ||
			monitor.Ready() != nil {
			t.Errorf("got driver %+v, ready %v; want replaced with an error, and ready", d, monitor.Ready())
		}
		statuses, _ := inventory.Get()
		if got := reasons(statuses); !slices.Equal(got, []string{"driver_replaced", "driver_replaced"}) {
			t.Errorf("got reasons %q, want driver_replaced", got)
		}
		if len(ended) > 0 || monitor.Alive() != nil {
			t.Error("Run ended during a call, or is not alive")
		}
		if err := withTimeout(time.Second, monitor.Release); !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("Release: got %v, want ErrDriverReplaced", err)
		}
		m.ReleaseHangs()
		if err := <-ended; !errors.Is(err, device.ErrDriverReplaced) || !readers.Idle() {
			t.Errorf("Run: got %v, want ErrDriverReplaced after the last call", err)
		}
		if !monitor.Drain(t.Context()) {
			t.Error("Drain: got false, want true")
		}
	})
}

// stalledChecks is a Backend whose checks return ErrStalled while active is set.
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

// TestReleaseEndsStall checks that a stall from before a release does not count
// after the resume.
func TestReleaseEndsStall(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var recorder monitorRecorder
		m := newMachine(1)
		s := &stalledChecks{Machine: m}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return s }, recorder.attach)
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
		requireReasons(t, "resumed", w.statusesAfter(15*time.Second), "")
		if flaps := w.statusesAfter(0)[0].Flaps; flaps != 0 || len(recorder.takeEvents()) != 0 {
			t.Errorf("got %d flaps, or events; want none", flaps)
		}
	})
}

// noEnergyCounter is a machine with a GPU that has no energy counter and
// reports no resets.
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

// TestReleaseWithoutEnergyCounter checks that release and resume count as a
// reset of a GPU without an energy counter.
func TestReleaseWithoutEnergyCounter(t *testing.T) {
	resume := func(t *testing.T, pending bool) (*monitorFixture, *monitorRecorder) {
		m, s := newMachine(2), &monitorRecorder{}
		w := startMonitor(t, m, func(device.Backend) device.Backend { return noEnergyCounter{m, m.GPUs()[0]} },
			s.attach)
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
		bubble.Test(t, func(t *testing.T) {
			w, s := resume(t, false)
			defer w.stop()
			w.statusesAfter(1750 * time.Millisecond) // the first check may fail before the listing
			if r := findRecord(s.savedHistory(), w.GPUs()[0], ""); !r.ResetSeen || r.FailedResets.Count != 1 {
				t.Errorf("got record %+v, want a reset and one failed reset", r)
			}
			requireReasons(t, "resumed", w.statusesAfter(15*time.Second), "", "xid_95")
			w.Fail(w.AllocatableIDs()[0], "xid 95")
			requireReasons(t, "after another Xid 95", w.statusesAfter(time.Minute), "xid_95", "xid_95")
		})
	})
	t.Run("and a repair is pending", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			w, _ := resume(t, true)
			defer w.stop()
			requireReasons(t, "resumed", w.statusesAfter(time.Hour), "xid_95", "xid_95")
		})
	})
}

// unreadEnergyCounter is a machine whose checks fail while the flag is set.
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

// TestReleaseBeforeEnergyCounterIsRead checks that the release is no reset if
// the energy counter was not read yet: it may exist.
func TestReleaseBeforeEnergyCounterIsRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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

// TestFaultDuringRelease checks that a reset between the fault and the resume counts.
func TestFaultDuringRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		if err := withTimeout(10*time.Second, w.monitor.Release); err != nil {
			t.Fatal(err)
		}
		for _, gpu := range m.GPUs() {
			w.report(t, kernelEvent(gpu, 95), 1)
		}
		w.statusesAfter(2 * time.Second)
		m.ResetGPU(m.AllocatableIDs()[0])
		w.statusesAfter(2 * time.Second)
		if err := withTimeout(time.Second, w.monitor.Resume); err != nil {
			t.Fatal(err)
		}
		requireReasons(t, "with a reset of the first GPU", w.statusesAfter(15*time.Second), "", "xid_95")
	})
}
