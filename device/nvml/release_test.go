package nvml

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/podgauge/podgauge/device"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestMonitorReleasesNVML has readings come all the time while the driver is released,
// a GPU reset, and the driver taken up again: no call is made meanwhile, and none is
// under way when the library is shut down.
func TestMonitorReleasesNVML(t *testing.T) {
	s := newStage(t, Options{}, "gpus 4", "gpu 2 energy 9000")
	readers, board := device.NewReaders(s), &device.Board{}
	monitor := device.NewMonitor(s, readers, board, slog.New(slog.DiscardHandler))
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
			statuses, _ := board.Look()
			return len(statuses) == 4 && statuses[i].Reason == want
		}
	}
	s.eventually("all are well", reason(3, ""))
	gpu := s.id(2)
	var reads atomic.Int64
	tasks.Go(func() {
		for ctx.Err() == nil {
			readers.Read(ctx, []device.GPU{gpu})
			reads.Add(1)
		}
	})
	s.eventually("its driver listens", func() bool { return s.calls().Of("nvmlEventSetWait_v2", nvmltest.NoGPU) > 0 })
	s.event(2, "xid 95")
	s.eventually("a GPU has failed", reason(2, "xid_95"))

	before := s.calls()
	order, stop := context.WithTimeout(ctx, patience)
	defer stop()
	s.must(monitor.Release(order))
	s.eventually("it is released", reason(2, "released"))
	released := s.calls()
	if n := released.Since(before).Of("nvmlShutdown", nvmltest.NoGPU); n != 1 {
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
		if n := since.PerGPU(gpu); n != 0 {
			t.Errorf("%d calls were made while it was released", n)
		}
	}
	s.must(monitor.Resume(order))
	s.eventually("the GPU is well again", reason(2, ""))
	s.event(2, "xid 31") // and is heard
	s.eventually("it has reported", func() bool {
		statuses, _ := board.Look()
		return len(statuses[2].Xids) > 0 && statuses[2].Xids[0].Code == 31
	})
}
