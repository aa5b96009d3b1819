package nvml

import (
	"context"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// TestConcurrentCalls makes all calls concurrently while GPUs are lost, return
// and are partitioned, and the library restarts. The test is for the race
// detector.
func TestConcurrentCalls(t *testing.T) {
	s := newListedFixture(t, "gpus 4")
	ctx, cancel := context.WithCancel(context.Background())
	var callers, waiter sync.WaitGroup
	for i := range 4 {
		id := s.id(i)
		callers.Go(func() {
			for range 200 {
				samples, err := s.Read(id)
				if err == nil && (len(samples) == 0 || samples[0].Device != device.ID(id)) {
					t.Errorf("%s: got samples %v, want some of the GPU", id, samples)
				}
				s.Check(id) //nolint:errcheck // the GPU may be lost
			}
		})
	}
	callers.Go(func() {
		for range 200 {
			s.Devices(ctx) //nolint:errcheck // the library may be shut down
		}
	})
	callers.Go(func() {
		for range 5 {
			for _, line := range []string{"gpu 2 lost", "fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED"} {
				s.set(line)
				s.sendEvent(1, "xid 31")
			}
			for _, line := range []string{
				"gpu 3 mig_mode 1", "gpu 3 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a",
				"gpu 3 slice 0 2g.20gb gi 1 ci 0 uuid MIG-b",
			} {
				s.set(line)
				s.sendEvent(3, "type 0x100")
				s.sendEvent(3, "xid 31 gi 1 ci 0")
			}
			s.clear("fail")
			s.clear("gpu")
		}
	})
	waiter.Go(func() {
		for ctx.Err() == nil {
			s.Wait(ctx) //nolint:errcheck // as above
		}
	})
	callers.Wait()
	cancel()
	waiter.Wait()
	s.list(4)
	for i := range 4 {
		s.values(i)
	}
}
