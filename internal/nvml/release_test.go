package nvml

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestMonitorReleasesNVML releases the driver during continuous readings,
// resets a GPU, and resumes. No call is made between release and resume, and
// none is in flight during the shutdown.
func TestMonitorReleasesNVML(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 4", "gpu 2 energy 9000")
	started := s.callsOrNone()
	readers, inventory := device.NewReaders(s), &device.Inventory{}
	monitor := device.NewMonitor(s, readers, inventory, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { monitor.Run(ctx) })
	defer func() {
		cancel()
		tasks.Wait()
		monitor.Drain(context.Background())
		readers.Drain(context.Background())
	}()
	reason := func(i int, want string) func() bool {
		return func() bool {
			statuses, _ := inventory.Get()
			return len(statuses) == 4 && statuses[i].Reason == want
		}
	}
	s.eventually("all GPUs are healthy", reason(3, ""))
	gpu := s.id(2)
	var reads atomic.Int64
	tasks.Go(func() {
		for ctx.Err() == nil {
			readers.Read(ctx, []device.GPU{gpu}, true)
			reads.Add(1)
		}
	})
	s.waitForMonitorRegistration(2, started)
	s.sendEvent(2, "xid 95")
	s.eventually("a GPU is unhealthy", reason(2, "xid_95"))

	before := s.calls()
	releaseCtx, stop := context.WithTimeout(ctx, testTimeout)
	defer stop()
	s.must(monitor.Release(releaseCtx))
	s.eventually("the driver is released", reason(2, "released"))
	released := s.calls()
	if n := released.Since(before).Count("nvmlShutdown", nvmltest.NoGPU); n != 1 {
		t.Errorf("shutdowns: got %d, want 1", n)
	}
	for gpu := range nvmltest.NoGPU + 1 {
		if n := released.InFlight(gpu); n != 0 {
			t.Errorf("calls in flight: got %d, want 0", n)
		}
	}
	s.set("gpu 2 energy 1") // a reset
	target := reads.Load() + 1000
	s.eventually("readings are requested", func() bool { return reads.Load() > target })
	for gpu, since := 0, s.calls().Since(released); gpu <= nvmltest.NoGPU; gpu++ {
		if n := since.GPUTotal(gpu); n != 0 {
			t.Errorf("calls while the driver is released: got %d, want 0", n)
		}
	}
	s.must(monitor.Resume(releaseCtx))
	s.eventually("the GPU is healthy again", reason(2, ""))
	s.waitForMonitorRegistration(2, released)
	s.sendEvent(2, "xid 31") // must arrive
	s.eventually("the Xid is counted", func() bool {
		statuses, _ := inventory.Get()
		return len(statuses[2].Xids) > 0 && statuses[2].Xids[0].Code == 31
	})
}

// waitForMonitorRegistration waits until a monitor has registered a GPU.
// Earlier events are lost.
func (s *backendFixture) waitForMonitorRegistration(i int, after nvmltest.CallCounts) {
	s.Helper()
	s.eventually("the GPU is registered",
		func() bool { return s.calls().Since(after).Count("nvmlDeviceRegisterEvents", i) > 0 })
	registered := s.calls()
	s.eventually("Wait is waiting", func() bool {
		return s.calls().Since(registered).
			Count("nvmlEventSetWait_v2", nvmltest.NoGPU) > 0
	})
}

// TestMonitorWithPartitions partitions a GPU, found by the driver's event
// alone, and lets one of its MIG devices fail.
func TestMonitorWithPartitions(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "gpu 1 uuid GPU-1", "gpu 1 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a",
		"gpu 1 slice 2 3g.40gb gi 2 ci 0 uuid MIG-b")
	started := s.callsOrNone()
	readers, inventory := device.NewReaders(s), &device.Inventory{}
	policy := func(xid uint64) device.Policy { // no Xid of the table affects only a MIG device
		if xid == 4242 {
			return device.PolicyUnhealthy
		}
		return device.PolicyDefault
	}
	monitor := device.NewMonitor(s, readers, inventory,
		device.MonitorOptions{Log: slog.New(slog.DiscardHandler), Policy: policy})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { monitor.Run(ctx) })
	defer func() {
		cancel()
		run.Wait()
		monitor.Drain(context.Background())
		readers.Drain(context.Background())
	}()
	waitForReasons := func(what, want string) {
		t.Helper()
		s.eventually(what, func() bool {
			statuses, _ := inventory.Get()
			var got []string
			for _, d := range statuses[min(1, len(statuses)):] {
				got = append(got, string(d.ID)+"="+d.Reason)
			}
			return strings.Join(got, " ") == want
		})
	}
	waitForReasons("unpartitioned GPU", "GPU-1=")
	s.waitForMonitorRegistration(1, started)
	s.set("gpu 1 mig_mode 1")
	s.sendEvent(1, "type 0x100")
	began := time.Now()
	waitForReasons("partitioned GPU", "GPU-1= MIG-a= MIG-b=")
	if took := time.Since(began); took > 8*time.Second { // the next listing is after ten seconds
		t.Errorf("detection of the MIG devices: got %v, want at most 8s", took)
	}
	s.sendEvent(1, "xid 4242 gi 2 ci 0")
	waitForReasons("unhealthy MIG device", "GPU-1= MIG-a= MIG-b=xid_4242")
	s.sendEvent(1, "xid 95 gi 2 ci 0")
	waitForReasons("unhealthy GPU", "GPU-1=xid_95 MIG-a=xid_95 MIG-b=xid_95")
	if links := monitor.Links(); len(links) != 2 {
		t.Errorf("links: got %+v, want 2", links)
	}
}

// TestReleaseDuringListing has a listing that leaves a hanging call behind. The
// release fails, and the other GPU is resumed. After the hang the release
// succeeds.
func TestReleaseDuringListing(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "hang nvmlDeviceGetUUID gpu 1")
	readers, inventory := device.NewReaders(s), &device.Inventory{}
	monitor := device.NewMonitor(s, readers, inventory, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { monitor.Run(ctx) })
	defer func() {
		s.clear("hang")
		cancel()
		run.Wait()
		monitor.Drain(context.Background())
		readers.Drain(context.Background())
	}()
	healthy := func() bool {
		statuses, _ := inventory.Get()
		return len(statuses) == 1 && statuses[0].Healthy
	}
	s.eventually("one GPU is healthy", healthy)
	before := s.calls()
	releaseCtx, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	if err := monitor.Release(releaseCtx); err == nil {
		t.Error("Release during a hanging call: got no error")
	}
	s.eventually("the GPU is resumed", healthy)
	if n := s.calls().Since(before).Count("nvmlShutdown", nvmltest.NoGPU); n != 0 {
		t.Error("the library was shut down during a call")
	}
	s.clear("hang")
	s.eventually("the hang ended", s.Idle)
	releaseCtx, stop = context.WithTimeout(ctx, testTimeout)
	defer stop()
	s.must(monitor.Release(releaseCtx))
	if n := s.calls().Since(before).Count("nvmlShutdown", nvmltest.NoGPU); n != 1 {
		t.Errorf("shutdowns: got %d, want 1", n)
	}
}
