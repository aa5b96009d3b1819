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
	"github.com/podgauge/podgauge/test/bubble"
)

// monitorFixture is a running Monitor of a simulated machine.
type monitorFixture struct {
	*sim.Machine
	inventory device.Inventory
	options   device.MonitorOptions
	monitor   *device.Monitor
	readers   *device.Readers
	log       logCounter
	stop      func()
}

// logCounter is a log handler that counts messages.
type logCounter struct {
	slog.Handler
	mu     sync.Mutex
	counts map[string]int // guarded by mu
}

func (r *logCounter) Enabled(_ context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo
}

func (r *logCounter) Handle(_ context.Context, record slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[record.Message]++
	return nil
}

// count returns the number of messages with a prefix.
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

// startMonitor runs a Monitor in the test's bubble. wrap may replace the
// Backend, and options set the Monitor's options.
func startMonitor(t *testing.T, m *sim.Machine, wrap func(device.Backend) device.Backend,
	options ...func(*monitorFixture),
) *monitorFixture {
	t.Helper()
	var b device.Backend = m
	if wrap != nil {
		b = wrap(m)
	}
	m.BeginProcess()
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
			t.Error("Drain: got false, want no running calls")
		}
	}
	return w
}

// untilSuspect waits until the first device is suspect.
func (f *monitorFixture) untilSuspect() {
	for range 1000 {
		if f.statusesAfter(10 * time.Millisecond)[0].Health == device.Suspect {
			return
		}
	}
}

// statusesAfter waits for d and returns the statuses of the Inventory.
func (f *monitorFixture) statusesAfter(d time.Duration) []device.Status {
	time.Sleep(d)
	synctest.Wait()
	statuses, _ := f.inventory.Get()
	return statuses
}

// reasons returns the reason of each device, "" if healthy.
func reasons(statuses []device.Status) []string {
	list := []string{}
	for _, s := range statuses {
		if s.Healthy != (s.Reason == "") {
			list = append(list, "Healthy and Reason disagree")
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
		t.Errorf("reasons %s: got %q, want %q", when, got, reason)
	}
}

func TestFaultOfGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(3), nil)
		defer w.stop()
		ids := w.AllocatableIDs()
		requireReasons(t, "at first", w.statusesAfter(time.Millisecond), "", "", "")
		began := time.Now()
		w.Fail(ids[1], "xid 79")
		bad := w.statusesAfter(time.Millisecond)
		requireReasons(t, "after Xid 79", bad, "", "xid_79", "")
		if s := bad[1]; s.Action != "reboot" || s.Since.Sub(began) > time.Millisecond || len(s.Xids) != 1 ||
			s.Xids[0].Count != 1 {
			t.Errorf("failed device: got %+v, want action reboot and one Xid, at once", s)
		}
		requireReasons(t, "an hour later", w.statusesAfter(time.Hour), "", "xid_79", "")
		w.ResetGPU(ids[1])
		requireReasons(t, "at once after the reset", w.statusesAfter(time.Millisecond), "", "xid_79", "")
		requireReasons(t, "after three passed checks", w.statusesAfter(4*time.Second), "", "", "")
	})
}

func TestDriverLoadedLate(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.SetDriverError(errors.New("libnvidia-ml.so.1 not found"))
		w := startMonitor(t, m, nil)
		defer w.stop()
		if w.statusesAfter(time.Minute) != nil {
			t.Error("got statuses without a driver, want nil")
		}
		if d := w.monitor.Driver(); d.State != device.DriverAbsent || d.Err == nil {
			t.Errorf("driver: got %+v, want absent with an error", d)
		}
		if err := w.monitor.Ready(); err != nil {
			t.Errorf("Ready on a node without a driver: got %v, want nil", err)
		}
		w.SetDriverError(nil)
		requireReasons(t, "two seconds after the driver was loaded", w.statusesAfter(2*time.Second), "", "")
		if d := w.monitor.Driver(); d.State != device.DriverUp || d.Err != nil {
			t.Errorf("driver: got %+v, want up", d)
		}
	})
}

// TestDriverHang lets the driver hang at different times between checks and
// listings: all calls, or only calls about GPUs. The hang is detected within
// five seconds, and its end soon after. One hanging GPU of several is not a
// hang of the driver.
func TestDriverHang(t *testing.T) {
	for _, gpus := range []int{1, 2, 3, 8} {
		for offset := time.Duration(0); offset < 11*time.Second; offset += 700 * time.Millisecond {
			bubble.Test(t, func(t *testing.T) {
				w := startMonitor(t, newMachine(gpus), nil)
				defer w.stop()
				w.statusesAfter(20*time.Second + offset)
				state := func(when string, want device.DriverState) {
					t.Helper()
					if d := w.monitor.Driver(); d.State != want {
						t.Errorf("%d GPUs, offset %v: driver %s: got %+v, want %v", gpus, offset, when, d, want)
					}
				}
				w.HangAll()
				w.statusesAfter(5 * time.Second)
				state("in a hang", device.DriverNotResponding)
				if err := w.monitor.Alive(); err != nil {
					t.Errorf("Alive while the driver hangs: got %v, want nil", err)
				}
				w.statusesAfter(15 * time.Second)
				if n := w.log.count("driver unusable"); n != 1 {
					t.Errorf("%d GPUs, offset %v: messages about a hang of 20 s: got %d, want 1", gpus, offset, n)
				}
				w.ReleaseHangs()
				w.statusesAfter(time.Second)
				state("after the timeout", device.DriverUp)

				for _, id := range w.AllocatableIDs() {
					w.HangGPU(id)
				}
				w.statusesAfter(5 * time.Second)
				state("with calls about all GPUs hanging", device.DriverNotResponding)
				w.statusesAfter(15 * time.Second)
				state("a listing later", device.DriverNotResponding)
				w.ReleaseHangs()
				w.statusesAfter(time.Second)
				state("after the hang of all GPUs", device.DriverUp)

				if gpus > 1 {
					w.HangGPU(w.AllocatableIDs()[gpus-1])
					for range 20 {
						w.statusesAfter(time.Second)
						state("with one GPU hanging", device.DriverUp)
					}
					w.HangAll()
					w.statusesAfter(5 * time.Second)
					state("in a hang that follows", device.DriverNotResponding)
				}
			})
		}
	}
}

func TestDriverHangAtStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(1)
		m.HangAll()
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(6 * time.Second)
		if d := w.monitor.Driver(); d.State != device.DriverNotResponding || w.monitor.Ready() != nil {
			t.Errorf("got driver %+v, ready %v; want not responding, and ready", d, w.monitor.Ready())
		}
		w.ReleaseHangs()
		requireReasons(t, "after the hang", w.statusesAfter(2*time.Second), "")
	})
}

func TestFirstPublicationWaits(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		m.HangGPU(m.AllocatableIDs()[1])
		w := startMonitor(t, m, nil)
		defer w.stop()
		if w.statusesAfter(4*time.Second) != nil {
			t.Error("published before each device was assessed")
		}
		requireReasons(t, "after the timeout of the first check", w.statusesAfter(2*time.Second), "", "not_responding")
	})
}

// TestPublicationWithoutUnassessedGPU adds a GPU with a hanging first check.
// The other GPUs are published without it.
func TestPublicationWithoutUnassessedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		w := startMonitor(t, m, nil)
		defer w.stop()
		w.statusesAfter(9 * time.Second)
		m.HangGPU(device.ID(m.AddGPU()))
		requireReasons(t, "after the listing", w.statusesAfter(2*time.Second), "", "")
		m.Fail(m.AllocatableIDs()[0], "xid 79")
		requireReasons(t, "after Xid 79 of the first GPU", w.statusesAfter(time.Millisecond), "xid_79", "")
		requireReasons(t, "after the timeout of the first check", w.statusesAfter(5*time.Second), "xid_79", "",
			"not_responding")
	})
}

// failingWait is a Backend whose Wait fails.
type failingWait struct{ device.Backend }

func (failingWait) Wait(context.Context) (device.Event, error) {
	return device.Event{}, errors.New("GPU is lost")
}

func TestFailedWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
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

// noDriverBackend is a Backend whose listings fail while on is set.
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

// TestFailedListings lets listings fail at once. The driver does not count as
// hanging, and known devices are kept.
func TestFailedListings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		failing.Store(true)
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend {
			return noDriverBackend{b, &failing}
		})
		defer w.stop()
		fails := func(lines int) {
			t.Helper()
			w.statusesAfter(time.Minute)
			if d := w.monitor.Driver(); d.State != device.DriverFailing || w.monitor.Ready() != nil {
				t.Errorf("got driver %+v, ready %v; want failing, and ready", d, w.monitor.Ready())
			}
			if w.log.count("driver unusable") != lines {
				t.Errorf("got log %v, want %d messages about listings", w.log.counts, lines)
			}
		}
		fails(1)
		failing.Store(false)
		requireReasons(t, "after a listing", w.statusesAfter(2*time.Second), "")
		failing.Store(true)
		fails(2)
		requireReasons(t, "a minute after listings failed", w.statusesAfter(time.Minute), "")
	})
}

// blockableWait is a Backend whose Wait hangs while block is full.
type blockableWait struct {
	device.Backend
	block chan struct{} // capacity 1; full: Wait hangs
}

func (m blockableWait) Wait(ctx context.Context) (device.Event, error) {
	m.block <- struct{}{}
	<-m.block
	return m.Backend.Wait(ctx)
}

func TestEventsInterrupted(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		block := make(chan struct{}, 1)
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return blockableWait{b, block} })
		defer w.stop()
		w.statusesAfter(time.Minute)
		require := func(when string, outage bool, interrupted, resumed int) {
			t.Helper()
			if w.monitor.EventsInterrupted() != outage || w.log.count("driver events interrupted") != interrupted ||
				w.log.count("driver events resumed") != resumed {
				t.Errorf("%s: got %v and log %v, want %v, %d and %d", when, !outage, w.log.counts, outage, interrupted,
					resumed)
			}
		}
		require("while nothing happens", false, 0, 0)
		block <- struct{}{}
		w.statusesAfter(5 * time.Second)
		require("soon", false, 0, 0)
		w.statusesAfter(time.Minute)
		require("when a Wait hangs", true, 1, 0)
		<-block
		w.statusesAfter(2 * time.Second)
		require("when Wait has returned", false, 1, 1)
	})
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(1), func(b device.Backend) device.Backend { return failingWait{b} })
		defer w.stop()
		w.statusesAfter(time.Minute)
		if !w.monitor.EventsInterrupted() || w.log.count("driver events interrupted") != 1 {
			t.Errorf("when each Wait fails: got log %v, want one interruption", w.log.counts)
		}
	})
}

func TestOnlyChangesArePublished(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := startMonitor(t, newMachine(2), nil)
		defer w.stop()
		w.statusesAfter(time.Second)
		_, changed := w.inventory.Get()
		w.statusesAfter(time.Hour)
		select {
		case <-changed:
			t.Error("got a publication without a change, want none")
		default:
		}
	})
}
