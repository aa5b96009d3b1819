package health_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/health"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/bubble"
)

func TestRelease(t *testing.T) {
	runScenarios(t, []scenario{
		{"and resume", 2, `partition g0 1g.10gb 1g.10gb; start; 1s; fail d2 xid 95; 1s; release
			0s: released released released released; driver released; closed true; ready true; release; read no driver
			1h: released released released released; closed true
			partition g0 1g.10gb 2g.20gb; resume; 5s: - - gone - xid_95
			release; reset d2; resume; resume; 15s: - - - -; driver up`},
		// A release during a hang fails, and the devices are resumed.
		{"during a hang", 2, `1s; hang d1; 6s; begin-release; 1s: released released; resume in progress
			end-release deadline exceeded; 5s: - released; respond; 5s: - -; closed false; release`},
		{"during a late Close", 1, `1s; holdclose; release deadline exceeded; 1m: released; resume unloaded
			go; 5s: -; driver up`},
		{"at the end of Run", 1, `1s; hang d0; 6s; begin-release; 1s; stop; end-release context canceled
			release deadline exceeded`},
		// A stall from before a release does not count after the resume.
		{"ends a stall", 1, `1s; check d0 stalled; 10s; release; check d0 ok; 1h; resume; 15s: -; flaps 0; events`},
		// Release and resume count as a reset of a GPU without an energy counter.
		{"without an energy counter", 2, `no-counter g0; start; 1s; fail d0 xid 95; fail d1 xid 95; 1m: xid_95 xid_95
			release; 1m; resume; 1750ms; records xid_95+reset+failed1 xid_95; 15s: - xid_95
			fail d0 xid 95; 1m: xid_95 xid_95`},
		{"without an energy counter, and a repair is pending", 2, `no-counter g0; start; 1s; fail d0 xid 95; 1m
			release; repair d0; 1m; resume; 20m: xid_95 -`},
		// The energy counter that was not read yet may exist.
		{"before the energy counter is read", 1, `blind true; start; 1s; fail d0 xid 95; 1m: xid_95; release
			blind false
			resume; 1m: xid_95; reset d0; 15s: -`},
		{"a reset between the fault and the resume", 2, `1s; release; kernel d0 95; kernel d1 95; 2s; reset d0; 2s
			resume; 15s: - xid_95`},
	})
}

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

// replacedDriver is a Backend whose driver is replaced while active is set, with
// a call in the background while running is set.
type replacedDriver struct {
	*sim.Machine
	active, running atomic.Bool
}

func (r *replacedDriver) Devices(ctx context.Context) ([]device.Device, error) {
	if r.active.Load() {
		return nil, fmt.Errorf("%w: %w", device.ErrNoDriver, device.ErrDriverReplaced)
	}
	return r.Machine.Devices(ctx)
}

func (r *replacedDriver) Idle() bool { return !r.running.Load() }

// TestDriverReplaced checks that Run ends after the last call, and after the
// Backend's background call.
func TestDriverReplaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := newMachine(2)
		b := &replacedDriver{Machine: m}
		b.running.Store(true)
		readers, inventory := health.NewReaders(b), &device.Inventory{}
		monitor := health.NewMonitor(b, readers, inventory, health.Options{Log: slog.New(slog.DiscardHandler)})
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
