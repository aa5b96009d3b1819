package nvmltest

import (
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func TestLost(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		lost, healthy := n.gpu(3), n.gpu(4)
		uuid, _ := healthy.GetUUID()
		set, ret := n.EventSetCreate()
		n.want(nvml.SUCCESS, ret)
		n.want(nvml.SUCCESS, lost.RegisterEvents(nvml.EventTypeXidCriticalError, set))
		n.want(nvml.SUCCESS, healthy.RegisterEvents(nvml.EventTypeXidCriticalError, set))

		n.setLines("gpu 3 lost")
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(lost.GetPowerUsage()))
		n.want(nvml.ERROR_GPU_IS_LOST, lost.GetFieldValues(make([]nvml.FieldValue, 1)))
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(n.DeviceGetHandleByIndex(3)))
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(n.DeviceGetHandleByUUID(uuid))) // the search includes the lost GPU
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(n.DeviceGetHandleByPciBusId("0000:13:00.0")))
		n.want(nvml.SUCCESS, returnOf(n.DeviceGetHandleByPciBusId("0000:14:00.0")))
		n.want(nvml.SUCCESS, returnOf(healthy.GetPowerUsage()))
		if count, _ := n.DeviceGetCount(); count != 8 {
			n.Errorf("%d GPUs, want 8", count)
		}
		begin := time.Now()
		for range 100 {
			n.want(nvml.ERROR_GPU_IS_LOST, returnOf(set.Wait(60_000)))
		}
		if took := time.Since(begin); took > waitTimeout {
			n.Errorf("100 waits took %v", took)
		}
		n.event(4, "xid 31")
		e, ret := set.Wait(60_000)
		n.want(nvml.SUCCESS, ret)
		if e.Device != healthy || e.EventData != 31 {
			n.Errorf("got %+v", e)
		}
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(set.Wait(60_000)))

		n.clear("gpu 3 lost")
		n.want(nvml.SUCCESS, returnOf(lost.GetPowerUsage()))
		n.want(nvml.ERROR_TIMEOUT, returnOf(set.Wait(0)))
	})
}

func TestFail(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("fail nvmlDeviceGetPowerUsage gpu 2 NOT_SUPPORTED", "fail field:82 gpu * NOT_SUPPORTED")
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(n.gpu(2).GetPowerUsage()))
		n.want(nvml.SUCCESS, returnOf(n.gpu(2).GetUUID()))
		n.want(nvml.SUCCESS, returnOf(n.gpu(1).GetPowerUsage()))

		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}, {FieldId: nvml.FI_DEV_ENERGY}}
		n.want(nvml.SUCCESS, n.gpu(5).GetFieldValues(values))
		n.want(nvml.ERROR_NOT_SUPPORTED, nvml.Return(values[0].NvmlReturn))
		n.want(nvml.SUCCESS, nvml.Return(values[1].NvmlReturn))

		gpu := n.gpu(2)
		n.setLines("fail * gpu 2 NVML_ERROR_RESET_REQUIRED")
		n.want(nvml.ERROR_RESET_REQUIRED, returnOf(gpu.GetPowerUsage()))
		n.want(nvml.ERROR_RESET_REQUIRED, returnOf(gpu.GetUUID()))
		n.want(nvml.ERROR_RESET_REQUIRED, returnOf(n.DeviceGetHandleByIndex(2)))
		n.want(nvml.SUCCESS, returnOf(n.DeviceGetCount()))
		n.setLines("fail nvmlDeviceGetUUID gpu * 4242") // an unknown code, and a later line
		n.want(nvml.Return(4242), returnOf(gpu.GetUUID()))

		n.clear("fail")
		n.setLines("fail nvmlEventSetCreate gpu - UNKNOWN")
		n.want(nvml.ERROR_UNKNOWN, returnOf(n.EventSetCreate()))
		n.clear("")
		n.want(nvml.SUCCESS, returnOf(n.EventSetCreate()))
		n.want(nvml.SUCCESS, returnOf(gpu.GetPowerUsage()))
	})
}

func TestSlow(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		const delay = 200 * time.Millisecond
		n.setup("slow nvmlDeviceGetFieldValues gpu 1 200ms")
		slow := n.gpu(1)
		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_ENERGY}}
		begin := time.Now()
		n.want(nvml.SUCCESS, slow.GetFieldValues(values))
		if took := time.Since(begin); took < delay {
			n.Errorf("the slow call took %v", took)
		}
		if latency := time.Duration(values[0].LatencyUsec) * time.Microsecond; latency < delay {
			n.Errorf("latency of the slow call: %v", latency)
		}
		n.clear("slow")
		begin = time.Now()
		n.want(nvml.SUCCESS, slow.GetFieldValues(values))
		if latency := time.Duration(values[0].LatencyUsec) * time.Microsecond; latency > time.Since(begin) {
			n.Errorf("latency of the fast call: %v", latency)
		}
	})
}

func TestHang(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		stuck, healthy := n.gpu(3), n.gpu(4)
		power := func() nvml.Return { return returnOf(stuck.GetPowerUsage()) }

		n.setLines("hang nvmlDeviceGetPowerUsage gpu 3")
		result := startCall(power)
		n.wantHang(3, result)
		n.want(nvml.SUCCESS, returnOf(healthy.GetPowerUsage()))
		n.want(nvml.SUCCESS, returnOf(stuck.GetUUID()))
		n.setLines("gpu 3 temperature 99") // another change does not end the hang
		n.wantHang(3, result)
		n.clear("hang")
		n.wantReturn(nvml.SUCCESS, result)

		n.setLines("hang * gpu 3")
		result = startCall(power)
		n.wantHang(3, result)
		n.setLines("fail * gpu 3 GPU_IS_LOST") // the hung call returns the error that applies at its end
		n.clear("hang")
		n.wantReturn(nvml.ERROR_GPU_IS_LOST, result)
		n.clear("fail")
		n.want(nvml.SUCCESS, power())
	})
}

func TestHangOfInit(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setLines("hang nvmlInit_v2 gpu -")
		result := startCall(n.Init)
		// Calls are counted from the load of the library.
		n.waitUntil("the library is loaded", func() bool { _, err := ReadCalls(n.calls); return err == nil })
		n.wantHang(NoGPU, result)
		n.clear("hang")
		n.wantReturn(nvml.SUCCESS, result)
		n.want(nvml.SUCCESS, returnOf(n.DeviceGetCount()))
	})
}

func TestDriverLock(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup("lock driver")
		gpus := make([]nvml.Device, 8)
		for i := range gpus {
			gpus[i] = n.gpu(i)
		}
		set, ret := n.EventSetCreate()
		n.want(nvml.SUCCESS, ret)
		n.want(nvml.SUCCESS, gpus[0].RegisterEvents(nvml.EventTypeXidCriticalError, set))

		n.setLines("hang nvmlDeviceGetPowerUsage gpu 3")
		first := startCall(func() nvml.Return { return returnOf(gpus[3].GetPowerUsage()) })
		n.wantHang(3, first)
		others := []<-chan nvml.Return{first}
		for i, gpu := range gpus {
			if i != 3 {
				others = append(others, startCall(func() nvml.Return { return returnOf(gpu.GetUUID()) }))
				n.wantHang(i, others[len(others)-1])
			}
		}
		wait := startCall(func() nvml.Return { return returnOf(set.Wait(0)) })
		n.wantHang(NoGPU, wait)

		n.clear("hang")
		for _, result := range others {
			n.wantReturn(nvml.SUCCESS, result)
		}
		n.wantReturn(nvml.ERROR_TIMEOUT, wait)

		// A wait without events sleeps without the lock.
		wait = startCall(func() nvml.Return { return returnOf(set.Wait(60_000)) })
		n.wantHang(NoGPU, wait)
		n.want(nvml.SUCCESS, returnOf(gpus[5].GetPowerUsage()))
		n.event(0, "xid 13")
		n.wantReturn(nvml.SUCCESS, wait)
	})
}

// TestDriverUnlocked removes the lock during a hung call; the waiting calls continue.
func TestDriverUnlocked(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		stuck, behind := n.gpu(3), n.gpu(4)
		n.setLines("lock driver", "hang * gpu 3")
		first := startCall(func() nvml.Return { return returnOf(stuck.GetUUID()) })
		n.wantHang(3, first)
		next := startCall(func() nvml.Return { return returnOf(behind.GetUUID()) })
		n.wantHang(4, next)
		n.clear("lock")
		n.wantReturn(nvml.SUCCESS, next)
		n.wantHang(3, first)
		n.clear("hang")
		n.wantReturn(nvml.SUCCESS, first)
	})
}

func TestCalls(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		before := n.readCalls()
		if before.Count("nvmlInit_v2", NoGPU) != 1 || before.GPUTotal(7) != 0 {
			n.Errorf("after Init: %d Init, %d on GPU 7", before.Count("nvmlInit_v2", NoGPU), before.GPUTotal(7))
		}
		gpu := n.gpu(7)
		var done sync.WaitGroup
		for range 4 {
			done.Go(func() {
				for range 1000 {
					if ret := returnOf(gpu.GetPowerUsage()); ret != nvml.SUCCESS {
						n.Errorf("got %v", ret)
					}
				}
			})
		}
		done.Wait()
		since := n.readCalls().Since(before)
		for _, c := range []struct {
			name      string
			got, want uint64
		}{
			{"power on GPU 7", since.Count("nvmlDeviceGetPowerUsage", 7), 4000},
			{"handles of GPU 7", since.Count("nvmlDeviceGetHandleByIndex_v2", 7), 1},
			{"all on GPU 7", since.GPUTotal(7), 4001},
			{"all on GPU 6", since.GPUTotal(6), 0},
			{"all on no GPU", since.GPUTotal(NoGPU), 0},
			{"in flight on GPU 7", since.InFlight(7), 0},
		} {
			if c.got != c.want {
				n.Errorf("%s: got %d, want %d", c.name, c.got, c.want)
			}
		}
	})
}

// TestMaxInFlight has three concurrent calls on a GPU, and a call on a second GPU.
func TestMaxInFlight(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		two, five := n.gpu(2), n.gpu(5)
		n.setLines("hang * gpu *")
		var results []<-chan nvml.Return
		for _, gpu := range []nvml.Device{two, two, two, five} {
			results = append(results, startCall(func() nvml.Return { return returnOf(gpu.GetUUID()) }))
		}
		n.waitUntil("all calls are running", func() bool { return n.readCalls().InFlight(2) == 3 && n.readCalls().InFlight(5) == 1 })
		n.clear("hang")
		for _, result := range results {
			n.wantReturn(nvml.SUCCESS, result)
		}
		calls := n.readCalls()
		if calls.MaxInFlight(2) != 3 || calls.MaxInFlight(5) != 1 || calls.InFlight(2) != 0 {
			n.Errorf("at most %d and %d, now %d", calls.MaxInFlight(2), calls.MaxInFlight(5), calls.InFlight(2))
		}
	})
}
