package device

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/test/bubble"
)

// quietBackend has healthy GPUs, and counts listings, waits and checks.
type quietBackend struct {
	Backend
	gpus            int
	listings, waits atomic.Int64   // calls so far
	checks          chan time.Time // starts of checks
}

func (b *quietBackend) Devices(context.Context) (devices []Device, err error) {
	b.listings.Add(1)
	for i := range b.gpus {
		id := fmt.Sprint("GPU-", i)
		devices = append(devices, Device{ID: ID(id), GPU: GPU(id), Index: i, MIGDeviceIndex: -1})
	}
	return devices, nil
}

func (b *quietBackend) Wait(context.Context) (Event, error) {
	b.waits.Add(1)
	time.Sleep(retry.Aligned(2 * time.Second))
	return Event{}, nil
}

func (b *quietBackend) Check(GPU) (ResetEvidence, error) {
	b.checks <- time.Now()
	return ResetEvidence{EnergyCounter: 1}, nil
}

// TestIdleMinute checks that an idle Monitor wakes up at most once a second, on whole seconds, and checks the GPUs in groups.
func TestIdleMinute(t *testing.T) {
	for gpus, want := range map[int]struct{ checks, checksPerSecond int }{1: {60, 1}, 2: {60, 1}, 3: {60, 1}, 8: {96, 2}, 16: {192, 4}} {
		bubble.Test(t, func(t *testing.T) {
			b := &quietBackend{gpus: gpus, checks: make(chan time.Time, 1000)}
			m := NewMonitor(b, NewReaders(b), &Inventory{}, MonitorOptions{Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- m.Run(ctx) }() // ends with ctx; received below
			time.Sleep(20*time.Second - time.Millisecond)
			synctest.Wait()
			for len(b.checks) > 0 {
				<-b.checks
			}
			listings, waits, moments := b.listings.Load(), b.waits.Load(), map[time.Time]bool{}
			for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(time.Millisecond) {
				synctest.Wait()
				moments[m.last.Load().Round(0)] = true
			}
			seconds := map[int64]int{} // checks in each second with a wake-up
			for at := range moments {
				seconds[at.Unix()] = 0
				if at.Nanosecond() != 0 {
					t.Fatalf("%d GPUs: got a wake-up at %s, want whole seconds", gpus, at)
				}
			}
			checks, maxPerSecond := len(b.checks), 0
			for range checks {
				at := (<-b.checks).Unix()
				seconds[at]++
				maxPerSecond = max(maxPerSecond, seconds[at])
			}
			if len(seconds) > 61 || checks != want.checks || maxPerSecond != want.checksPerSecond ||
				b.listings.Load()-listings != 6 || b.waits.Load()-waits != 30 {
				t.Errorf("%d GPUs: got %d wake-ups, %d checks, %d a second, %d listings, %d waits; want at most 61, %+v, 6, 30",
					gpus, len(seconds), checks, maxPerSecond, b.listings.Load()-listings, b.waits.Load()-waits, want)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			m.Drain(context.Background())
			m.readers.Drain(context.Background())
		})
	}
}

// hangingBackend has one GPU whose checks hang.
type hangingBackend struct {
	quietBackend
	ended chan struct{} // closed: checks return
}

func (b *hangingBackend) Check(GPU) (ResetEvidence, error) {
	<-b.ended
	return ResetEvidence{}, nil
}

// TestWakeUpsDuringHang checks that a due check that cannot begin wakes the Monitor only every callPollInterval while the GPU hangs.
func TestWakeUpsDuringHang(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := &hangingBackend{quietBackend{gpus: 1}, make(chan struct{})}
		m := NewMonitor(b, NewReaders(b), &Inventory{}, MonitorOptions{Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }() // ends with ctx; received below
		time.Sleep(40 * time.Second)
		moments := map[time.Time]bool{}
		for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(time.Millisecond) {
			synctest.Wait()
			moments[*m.last.Load()] = true
		}
		if maxWakeUps := 2 * int(10*time.Second/callPollInterval); len(moments) > maxWakeUps {
			t.Errorf("got %d wake-ups in ten seconds, want at most %d", len(moments), maxWakeUps)
		}
		close(b.ended)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		m.Drain(context.Background())
		m.readers.Drain(context.Background())
	})
}
