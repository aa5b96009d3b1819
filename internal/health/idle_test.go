package health_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

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
