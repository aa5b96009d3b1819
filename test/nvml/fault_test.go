package nvmltest

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

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
