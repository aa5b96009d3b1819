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

// TestMonitorReleasesNVML has readings come all the time while the driver is released,
// a GPU reset, and the driver taken up again: no call is made meanwhile, and none is
// under way when the library is shut down.
func TestMonitorReleasesNVML(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 4", "gpu 2 energy 9000")
	started := s.callsOrNone()
	readers, board := device.NewReaders(s), &device.Inventory{}
	monitor := device.NewMonitor(s, readers, board, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
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
			statuses, _ := board.Get()
			return len(statuses) == 4 && statuses[i].Reason == want
		}
	}
	s.eventually("all are well", reason(3, ""))
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
	s.eventually("a GPU has failed", reason(2, "xid_95"))

	before := s.calls()
	order, stop := context.WithTimeout(ctx, testTimeout)
	defer stop()
	s.must(monitor.Release(order))
	s.eventually("it is released", reason(2, "released"))
	released := s.calls()
	if n := released.Since(before).Count("nvmlShutdown", nvmltest.NoGPU); n != 1 {
		t.Errorf("the library was shut down %d times", n)
	}
	for gpu := range nvmltest.NoGPU + 1 {
		if n := released.InFlight(gpu); n != 0 {
			t.Errorf("%d calls are under way", n)
		}
	}
	s.set("gpu 2 energy 1") // it is reset
	enough := reads.Load() + 1000
	s.eventually("it was asked for readings", func() bool { return reads.Load() > enough })
	for gpu, since := 0, s.calls().Since(released); gpu <= nvmltest.NoGPU; gpu++ {
		if n := since.GPUTotal(gpu); n != 0 {
			t.Errorf("%d calls were made while it was released", n)
		}
	}
	s.must(monitor.Resume(order))
	s.eventually("the GPU is well again", reason(2, ""))
	s.waitForMonitorRegistration(2, released)
	s.sendEvent(2, "xid 31") // and is heard
	s.eventually("it has reported", func() bool {
		statuses, _ := board.Get()
		return len(statuses[2].Xids) > 0 && statuses[2].Xids[0].Code == 31
	})
}

// waitForMonitorRegistration waits until a monitor has registered a GPU. Earlier events are lost.
func (s *backendFixture) waitForMonitorRegistration(i int, after nvmltest.CallCounts) {
	s.Helper()
	s.eventually("it is registered", func() bool { return s.calls().Since(after).Count("nvmlDeviceRegisterEvents", i) > 0 })
	registered := s.calls()
	s.eventually("it is listened to", func() bool { return s.calls().Since(registered).Count("nvmlEventSetWait_v2", nvmltest.NoGPU) > 0 })
}

// TestMonitorWithPartitions has a GPU partitioned with the driver's report alone, and
// one of its slices fail.
func TestMonitorWithPartitions(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "gpu 1 uuid GPU-1", "gpu 1 slice 0 1g.10gb gi 1 ci 0 uuid MIG-a", "gpu 1 slice 2 3g.40gb gi 2 ci 0 uuid MIG-b")
	started := s.callsOrNone()
	readers, board := device.NewReaders(s), &device.Inventory{}
	policy := func(xid uint64) device.Policy { // no row of the table marks a MIG device alone
		if xid == 4242 {
			return device.PolicyUnhealthy
		}
		return device.PolicyDefault
	}
	monitor := device.NewMonitor(s, readers, board, device.MonitorOptions{Log: slog.New(slog.DiscardHandler), Policy: policy})
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { monitor.Run(ctx) })
	defer func() {
		cancel()
		run.Wait()
		monitor.Drain(context.Background())
		readers.Drain(context.Background())
	}()
	shows := func(what, want string) {
		t.Helper()
		s.eventually(what, func() bool {
			statuses, _ := board.Get()
			var got []string
			for _, d := range statuses[min(1, len(statuses)):] {
				got = append(got, string(d.ID)+"="+d.Reason)
			}
			return strings.Join(got, " ") == want
		})
	}
	shows("it is whole", "GPU-1=")
	s.waitForMonitorRegistration(1, started)
	s.set("gpu 1 mig_mode 1")
	s.sendEvent(1, "type 0x100")
	began := time.Now()
	shows("it is partitioned", "GPU-1= MIG-a= MIG-b=")
	if took := time.Since(began); took > 8*time.Second { // the next listing comes after ten
		t.Errorf("that took %v", took)
	}
	s.sendEvent(1, "xid 4242 gi 2 ci 0")
	shows("a slice has failed", "GPU-1= MIG-a= MIG-b=xid_4242")
	s.sendEvent(1, "xid 95 gi 2 ci 0")
	shows("the GPU has failed", "GPU-1=xid_95 MIG-a=xid_95 MIG-b=xid_95")
	if links := monitor.Links(); len(links) != 2 {
		t.Errorf("the links are %+v", links)
	}
}

// TestReleaseDuringListing has a listing leave behind a question that
// hangs: the release is given up as beneath any other call, and the other GPU is taken
// up again. When the hang has ended the driver can be let go of.
func TestReleaseDuringListing(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "hang nvmlDeviceGetUUID gpu 1")
	readers, board := device.NewReaders(s), &device.Inventory{}
	monitor := device.NewMonitor(s, readers, board, device.MonitorOptions{Log: slog.New(slog.DiscardHandler)})
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
	well := func() bool {
		statuses, _ := board.Get()
		return len(statuses) == 1 && statuses[0].Healthy
	}
	s.eventually("one is well", well)
	before := s.calls()
	order, stop := context.WithTimeout(ctx, 3*time.Second)
	defer stop()
	if err := monitor.Release(order); err == nil {
		t.Error("it was released beneath a question")
	}
	s.eventually("it is taken up again", well)
	if n := s.calls().Since(before).Count("nvmlShutdown", nvmltest.NoGPU); n != 0 {
		t.Error("the library was shut down")
	}
	s.clear("hang")
	s.eventually("it has answered", s.Idle)
	order, stop = context.WithTimeout(ctx, testTimeout)
	defer stop()
	s.must(monitor.Release(order))
	if n := s.calls().Since(before).Count("nvmlShutdown", nvmltest.NoGPU); n != 1 {
		t.Errorf("the library was shut down %d times", n)
	}
}
