package nvmltest

import (
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestLost(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		lost, well := n.gpu(3), n.gpu(4)
		uuid, _ := well.GetUUID()
		set, ret := n.EventSetCreate()
		n.want(nvml.SUCCESS, ret)
		n.want(nvml.SUCCESS, lost.RegisterEvents(nvml.EventTypeXidCriticalError, set))
		n.want(nvml.SUCCESS, well.RegisterEvents(nvml.EventTypeXidCriticalError, set))

		n.set("gpu 3 lost")
		n.want(nvml.ERROR_GPU_IS_LOST, second(lost.GetPowerUsage()))
		n.want(nvml.ERROR_GPU_IS_LOST, lost.GetFieldValues(make([]nvml.FieldValue, 1)))
		n.want(nvml.ERROR_GPU_IS_LOST, second(n.DeviceGetHandleByIndex(3)))
		n.want(nvml.ERROR_GPU_IS_LOST, second(n.DeviceGetHandleByUUID(uuid))) // the search meets the lost one
		n.want(nvml.ERROR_GPU_IS_LOST, second(n.DeviceGetHandleByPciBusId("0000:13:00.0")))
		n.want(nvml.SUCCESS, second(n.DeviceGetHandleByPciBusId("0000:14:00.0")))
		n.want(nvml.SUCCESS, second(well.GetPowerUsage()))
		if count, _ := n.DeviceGetCount(); count != 8 {
			n.Errorf("%d GPUs are counted, want 8", count)
		}
		begin := time.Now()
		for range 100 {
			n.want(nvml.ERROR_GPU_IS_LOST, second(set.Wait(60_000)))
		}
		if took := time.Since(begin); took > patience {
			n.Errorf("100 waits took %v", took)
		}
		n.event(4, "xid 31")
		e, ret := set.Wait(60_000)
		n.want(nvml.SUCCESS, ret)
		if e.Device != well || e.EventData != 31 {
			n.Errorf("got %+v", e)
		}
		n.want(nvml.ERROR_GPU_IS_LOST, second(set.Wait(60_000)))

		n.clear("gpu 3 lost")
		n.want(nvml.SUCCESS, second(lost.GetPowerUsage()))
		n.want(nvml.ERROR_TIMEOUT, second(set.Wait(0)))
	})
}

func TestFail(t *testing.T) {
	onNode(t, func(n *node) {
		n.start("fail nvmlDeviceGetPowerUsage gpu 2 NOT_SUPPORTED", "fail field:82 gpu * NOT_SUPPORTED")
		n.want(nvml.ERROR_NOT_SUPPORTED, second(n.gpu(2).GetPowerUsage()))
		n.want(nvml.SUCCESS, second(n.gpu(2).GetUUID()))
		n.want(nvml.SUCCESS, second(n.gpu(1).GetPowerUsage()))

		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}, {FieldId: nvml.FI_DEV_ENERGY}}
		n.want(nvml.SUCCESS, n.gpu(5).GetFieldValues(values))
		n.want(nvml.ERROR_NOT_SUPPORTED, nvml.Return(values[0].NvmlReturn))
		n.want(nvml.SUCCESS, nvml.Return(values[1].NvmlReturn))

		gpu := n.gpu(2)
		n.set("fail * gpu 2 NVML_ERROR_RESET_REQUIRED")
		n.want(nvml.ERROR_RESET_REQUIRED, second(gpu.GetPowerUsage()))
		n.want(nvml.ERROR_RESET_REQUIRED, second(gpu.GetUUID()))
		n.want(nvml.ERROR_RESET_REQUIRED, second(n.DeviceGetHandleByIndex(2)))
		n.want(nvml.SUCCESS, second(n.DeviceGetCount()))
		n.set("fail nvmlDeviceGetUUID gpu * 4242") // a code from the future, and a later line
		n.want(nvml.Return(4242), second(gpu.GetUUID()))

		n.clear("fail")
		n.set("fail nvmlEventSetCreate gpu - UNKNOWN")
		n.want(nvml.ERROR_UNKNOWN, second(n.EventSetCreate()))
		n.clear("")
		n.want(nvml.SUCCESS, second(n.EventSetCreate()))
		n.want(nvml.SUCCESS, second(gpu.GetPowerUsage()))
	})
}

func TestSlow(t *testing.T) {
	onNode(t, func(n *node) {
		const delay = 200 * time.Millisecond
		n.start("slow nvmlDeviceGetFieldValues gpu 1 200ms")
		slow := n.gpu(1)
		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_ENERGY}}
		begin := time.Now()
		n.want(nvml.SUCCESS, slow.GetFieldValues(values))
		if took := time.Since(begin); took < delay {
			n.Errorf("the slow call took %v", took)
		}
		if latency := time.Duration(values[0].LatencyUsec) * time.Microsecond; latency < delay {
			n.Errorf("the slow call says that it took %v", latency)
		}
		n.clear("slow")
		begin = time.Now()
		n.want(nvml.SUCCESS, slow.GetFieldValues(values))
		if latency := time.Duration(values[0].LatencyUsec) * time.Microsecond; latency > time.Since(begin) {
			n.Errorf("the quick call says that it took %v", latency)
		}
	})
}

func TestHang(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		stuck, well := n.gpu(3), n.gpu(4)
		power := func() nvml.Return { return second(stuck.GetPowerUsage()) }

		n.set("hang nvmlDeviceGetPowerUsage gpu 3")
		answer := begin(power)
		n.hangs(3, answer)
		n.want(nvml.SUCCESS, second(well.GetPowerUsage()))
		n.want(nvml.SUCCESS, second(stuck.GetUUID()))
		n.set("gpu 3 temperature 99") // another change does not end it
		n.hangs(3, answer)
		n.clear("hang")
		n.ends(nvml.SUCCESS, answer)

		n.set("hang * gpu 3")
		answer = begin(power)
		n.hangs(3, answer)
		n.set("fail * gpu 3 GPU_IS_LOST") // what it answers is what holds when it ends
		n.clear("hang")
		n.ends(nvml.ERROR_GPU_IS_LOST, answer)
		n.clear("fail")
		n.want(nvml.SUCCESS, power())
	})
}

func TestHangOfInit(t *testing.T) {
	onNode(t, func(n *node) {
		n.set("hang nvmlInit_v2 gpu -")
		answer := begin(n.Init)
		// The calls are counted from the moment that the library is loaded.
		n.eventually("the library is loaded", func() bool { _, err := ReadCalls(n.calls); return err == nil })
		n.hangs(NoGPU, answer)
		n.clear("hang")
		n.ends(nvml.SUCCESS, answer)
		n.want(nvml.SUCCESS, second(n.DeviceGetCount()))
	})
}

func TestDriverLock(t *testing.T) {
	onNode(t, func(n *node) {
		n.start("lock driver")
		gpus := make([]nvml.Device, 8)
		for i := range gpus {
			gpus[i] = n.gpu(i)
		}
		set, ret := n.EventSetCreate()
		n.want(nvml.SUCCESS, ret)
		n.want(nvml.SUCCESS, gpus[0].RegisterEvents(nvml.EventTypeXidCriticalError, set))

		n.set("hang nvmlDeviceGetPowerUsage gpu 3")
		first := begin(func() nvml.Return { return second(gpus[3].GetPowerUsage()) })
		n.hangs(3, first)
		others := []<-chan nvml.Return{first}
		for i, gpu := range gpus {
			if i != 3 {
				others = append(others, begin(func() nvml.Return { return second(gpu.GetUUID()) }))
				n.hangs(i, others[len(others)-1])
			}
		}
		wait := begin(func() nvml.Return { return second(set.Wait(0)) })
		n.hangs(NoGPU, wait)

		n.clear("hang")
		for _, answer := range others {
			n.ends(nvml.SUCCESS, answer)
		}
		n.ends(nvml.ERROR_TIMEOUT, wait)

		// A wait that finds nothing sleeps without the lock.
		wait = begin(func() nvml.Return { return second(set.Wait(60_000)) })
		n.hangs(NoGPU, wait)
		n.want(nvml.SUCCESS, second(gpus[5].GetPowerUsage()))
		n.event(0, "xid 13")
		n.ends(nvml.SUCCESS, wait)
	})
}

// TestDriverUnlocked takes the lock away while a call hangs under it: those behind
// it go on.
func TestDriverUnlocked(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		stuck, behind := n.gpu(3), n.gpu(4)
		n.set("lock driver", "hang * gpu 3")
		first := begin(func() nvml.Return { return second(stuck.GetUUID()) })
		n.hangs(3, first)
		next := begin(func() nvml.Return { return second(behind.GetUUID()) })
		n.hangs(4, next)
		n.clear("lock")
		n.ends(nvml.SUCCESS, next)
		n.hangs(3, first)
		n.clear("hang")
		n.ends(nvml.SUCCESS, first)
	})
}

func TestCalls(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		before := n.count()
		if before.Of("nvmlInit_v2", NoGPU) != 1 || before.PerGPU(7) != 0 {
			n.Errorf("after Init: %d Init, %d on GPU 7", before.Of("nvmlInit_v2", NoGPU), before.PerGPU(7))
		}
		gpu := n.gpu(7)
		var done sync.WaitGroup
		for range 4 {
			done.Go(func() {
				for range 1000 {
					if ret := second(gpu.GetPowerUsage()); ret != nvml.SUCCESS {
						n.Errorf("got %v", ret)
					}
				}
			})
		}
		done.Wait()
		since := n.count().Since(before)
		for _, c := range []struct {
			what      string
			got, want uint64
		}{
			{"power on GPU 7", since.Of("nvmlDeviceGetPowerUsage", 7), 4000},
			{"handles of GPU 7", since.Of("nvmlDeviceGetHandleByIndex_v2", 7), 1},
			{"all on GPU 7", since.PerGPU(7), 4001},
			{"all on GPU 6", since.PerGPU(6), 0},
			{"all on no GPU", since.PerGPU(NoGPU), 0},
			{"in flight on GPU 7", since.InFlight(7), 0},
		} {
			if c.got != c.want {
				n.Errorf("%s: counted %d, want %d", c.what, c.got, c.want)
			}
		}
	})
}

// TestMostInFlight has three calls on one GPU at the same time, and one on another.
func TestMostInFlight(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		two, five := n.gpu(2), n.gpu(5)
		n.set("hang * gpu *")
		var answers []<-chan nvml.Return
		for _, gpu := range []nvml.Device{two, two, two, five} {
			answers = append(answers, begin(func() nvml.Return { return second(gpu.GetUUID()) }))
		}
		n.eventually("all are under way", func() bool { return n.count().InFlight(2) == 3 && n.count().InFlight(5) == 1 })
		n.clear("hang")
		for _, answer := range answers {
			n.ends(nvml.SUCCESS, answer)
		}
		calls := n.count()
		if calls.MostInFlight(2) != 3 || calls.MostInFlight(5) != 1 || calls.InFlight(2) != 0 {
			n.Errorf("at most %d and %d, now %d", calls.MostInFlight(2), calls.MostInFlight(5), calls.InFlight(2))
		}
	})
}
