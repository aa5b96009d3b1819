package health_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestPublication(t *testing.T) {
	runScenarios(t, []scenario{
		{"only changes", 2, `1s; quiet 20m`},
		{"the first waits for all GPUs", 2, `hang d1; start; 4s: none; 2s: - not_responding`},
		// The others are published without a GPU whose first check hangs.
		{"an added GPU that hangs", 2, `9s; add; hang d2; 2s: - -; fail d0 xid 79; 1ms: xid_79 -
			5s: xid_79 - not_responding`},
	})
}

func TestDriverState(t *testing.T) { runScenarioFile(t, "driver_state") }

// TestDriverHang lets the driver hang at different times between checks and
// listings: all calls, or only calls about GPUs. The hang is detected within
// five seconds, and its end soon after. One hanging GPU of several is not a
// hang of the driver.
func TestDriverHang(t *testing.T) {
	for _, gpus := range []int{1, 2, 3, 8} {
		for offset := time.Duration(0); offset < 11*time.Second; offset += 700 * time.Millisecond {
			inScenario(t, gpus, func(t *testing.T, s *scenarioRun) {
				s.script(fmt.Sprintf("start; 20s; %s", offset))
				s.script(`hangall; 5s; driver not responding; alive true; 15s; log 1 driver unusable
					respond; 1s; driver up`)
				for _, id := range s.ids {
					s.HangGPU(id)
				}
				s.script("5s; driver not responding; 15s; driver not responding; respond; 1s; driver up")
				if gpus > 1 {
					s.HangGPU(s.ids[gpus-1])
					for range 20 {
						s.script("1s; driver up")
					}
					s.script("hangall; 5s; driver not responding")
				}
				s.ReleaseHangs()
			})
		}
	}
}

// TestUndeliveredCheckIsRunning checks that a check counts as running until the
// Monitor has its result: a release waits for the result.
func TestUndeliveredCheckIsRunning(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		m := newMachine(1)
		id := m.AllocatableIDs()[0]
		w := startMonitor(t, m, nil, func(w *monitorFixture) {
			w.options.OnHealthEvent = func(device.HealthEvent) { <-busy }
		})
		defer w.stop()
		w.statusesAfter(500 * time.Millisecond)
		m.HangGPU(id)
		w.statusesAfter(time.Second) // a check hangs
		m.Fail(id, "xid 95")
		synctest.Wait()
		m.ReleaseHangs()
		synctest.Wait()
		if w.readers.Idle() {
			t.Error("Idle while the Monitor is busy: got true, want false")
		}
		close(busy)
		synctest.Wait()
		if !w.readers.Idle() {
			t.Error("Idle after the result: got false, want true")
		}
	})
}

// countingBackend counts its calls.
type countingBackend struct {
	device.Backend
	mu sync.Mutex
	// All below are guarded by mu.
	lists, waits int
	checks       map[time.Time]int // at each time
}

func (b *countingBackend) count(add func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	add()
}

// checkTimes returns the number of times with checks.
func (b *countingBackend) checkTimes() (n int) {
	b.count(func() { n = len(b.checks) })
	return n
}

func (b *countingBackend) Devices(ctx context.Context) ([]device.Device, error) {
	b.count(func() { b.lists++ })
	return b.Backend.Devices(ctx)
}

func (b *countingBackend) Wait(ctx context.Context) (device.Event, error) {
	b.count(func() { b.waits++ })
	return b.Backend.Wait(ctx)
}

func (b *countingBackend) Check(gpu device.GPU) (device.ResetEvidence, error) {
	b.count(func() { b.checks[time.Now()]++ })
	return b.Backend.Check(gpu)
}

// TestIdleMinute checks that the Monitor of a healthy node makes few calls, on
// whole seconds, and checks the GPUs in groups.
func TestIdleMinute(t *testing.T) {
	for gpus, want := range map[int]struct{ checks, atOnce int }{
		1: {60, 1}, 2: {60, 1}, 3: {60, 1}, 8: {96, 2}, 16: {192, 4},
	} {
		bubble.Test(t, func(t *testing.T) {
			m := newMachine(gpus)
			b := &countingBackend{Backend: m, checks: map[time.Time]int{}}
			w := startMonitor(t, m, func(device.Backend) device.Backend { return b })
			w.statusesAfter(20*time.Second + time.Second/2)
			b.count(func() { b.lists, b.waits, b.checks = 0, 0, map[time.Time]int{} })
			w.statusesAfter(time.Minute)
			w.stop()
			checks := 0
			for at, n := range b.checks {
				checks += n
				if at.Nanosecond() != 0 || n > want.atOnce {
					t.Errorf("%d GPUs: got %d checks at %s, want a whole second and %d", gpus, n, at, want.atOnce)
				}
			}
			if checks != want.checks || b.lists != 6 || b.waits > 60 {
				t.Errorf("%d GPUs: got %d checks, %d listings and %d waits; want %d, 6 and at most 60",
					gpus, checks, b.lists, b.waits, want.checks)
			}
		})
	}
}

func TestRelease(t *testing.T) { runScenarioFile(t, "release") }

// TestReleaseDuringReads releases the driver during continuous reads.
func TestReleaseDuringReads(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := newScenarioRun(t, 4)
		s.script("start; 1s")
		ctx, cancel := context.WithCancel(t.Context())
		scraped := make(chan struct{})
		go func() { // ends with ctx
			defer close(scraped)
			for ctx.Err() == nil {
				s.readers.Read(ctx, s.GPUs(), true)
				time.Sleep(time.Millisecond)
			}
		}()
		for range 10 {
			s.script("release; resume; 5s: - - - -")
		}
		cancel()
		<-scraped
		s.end()
	})
}

// busyDriver is a Backend with a call in the background while running is set.
type busyDriver struct {
	*scriptedBackend
	running atomic.Bool
}

func (d *busyDriver) Idle() bool { return !d.running.Load() }

// TestDriverReplaced checks that Run ends after the last call, and after the
// Backend's background call.
func TestDriverReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		b := &busyDriver{scriptedBackend: &scriptedBackend{Machine: m}}
		b.running.Store(true)
		readers, inventory := health.NewReaders(b), &device.Inventory{}
		monitor := health.NewMonitor(b, readers, inventory, health.Options{Log: slog.New(slog.DiscardHandler)})
		ended := make(chan error, 1)
		go func() { ended <- monitor.Run(context.Background()) }() // ends by itself
		time.Sleep(time.Second)
		m.HangGPU(m.AllocatableIDs()[0])
		b.locked(func() { b.listErr = fmt.Errorf("%w: %w", device.ErrNoDriver, device.ErrDriverReplaced) })
		time.Sleep(time.Minute)
		if d := monitor.Driver(); d.State != device.DriverReplaced || !errors.Is(d.Err, device.ErrDriverReplaced) ||
			monitor.Ready() != nil {
			t.Errorf("got driver %+v, ready %v; want replaced with an error, and ready", d, monitor.Ready())
		}
		statuses, _ := inventory.Get()
		expect.EqualSlices(t, reasons(statuses), []string{"driver_replaced", "driver_replaced"})
		if len(ended) > 0 || monitor.Alive() != nil {
			t.Error("Run ended during a call, or is not alive")
		}
		if err := monitor.Release(t.Context()); !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("Release: got %v, want ErrDriverReplaced", err)
		}
		m.ReleaseHangs()
		time.Sleep(time.Minute)
		if len(ended) > 0 {
			t.Error("Run ended during a call in the background")
		}
		b.running.Store(false)
		if err := <-ended; !errors.Is(err, device.ErrDriverReplaced) || !readers.Idle() {
			t.Errorf("Run: got %v, want ErrDriverReplaced after the last call", err)
		}
		if !monitor.Drain(t.Context()) {
			t.Error("Drain: got false, want true")
		}
	})
}

// TestRetire checks that a retired device is unhealthy, independent of other
// evidence, until it is trusted.
func TestRetire(t *testing.T) { runScenarioFile(t, "retire") }

// TestListed checks that a device in the list of retirements is unhealthy while it is listed, independent of the
// commands on the node.
func TestListed(t *testing.T) { runScenarioFile(t, "listed") }

// TestFaultBehind checks that a retired device shows its fault, and whether the device still has it.
func TestFaultBehind(t *testing.T) { runScenarioFile(t, "fault_behind") }

// TestTrust checks that a trusted device that passes its check is healthy at
// once, without a reset or a recovery period, and that trust ends no cause that
// the check finds.
func TestTrust(t *testing.T) { runScenarioFile(t, "trust") }

// TestXidsOver checks that a recovery, a Trust and a release of the driver end
// the Xids before.
func TestXidsOver(t *testing.T) {
	runScenarios(t, []scenario{
		{"recovered", 1, `1s; fail d0 xid 31; 1s; over false; fail d0 xid 95; 1m; reset d0; 20m; over true`},
		{"trusted", 1, `1s; fail d0 xid 31; 1s; over false; trust d0; 1s; over true`},
		{"released", 1, `1s; fail d0 xid 31; 1s; over false; release; resume; 1s; over true`},
	})
}
