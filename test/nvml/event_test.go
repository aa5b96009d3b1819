package nvmltest

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/podgauge/podgauge/test/helpers/require"
)

// TestEventStorm checks that all events of a storm and all later events are delivered.
func TestEventStorm(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		set, ret := n.EventSetCreate()
		n.want(nvml.SUCCESS, ret)
		for gpu := range 2 {
			n.want(nvml.SUCCESS, n.gpu(gpu).RegisterEvents(nvml.EventTypeXidCriticalError, set))
		}
		const times = 10000
		n.event(0, "xid 31 x 10000")
		n.event(1, "xid 13")
		n.event(0, "xid 62")
		delivered := map[uint64]int{}
		for range times + 2 {
			e, ret := set.Wait(0)
			n.want(nvml.SUCCESS, ret)
			delivered[e.EventData]++
		}
		n.want(nvml.ERROR_TIMEOUT, returnOf(set.Wait(0)))
		if delivered[31] != times || delivered[13] != 1 || delivered[62] != 1 {
			n.Errorf("delivered events: %v", delivered)
		}
	})
}

// TestReset checks that a reset restarts the energy counter of a GPU and clears its faults.
func TestReset(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setLines("gpu * energy 1000000+1000/s", "gpu 0 recovery_action 1", "gpu 0 remapped_pending 1", "gpu 0 power 5", "gpu 0 lost")
		n.setup()
		require.NoError(n, n.scenario.Reset(0))
		energy := func(gpu int) uint64 {
			e, ret := n.gpu(gpu).GetTotalEnergyConsumption()
			n.want(nvml.SUCCESS, ret)
			return e
		}
		if one, other := energy(0), energy(1); one >= 1000000 || other < 1000000 {
			n.Errorf("energy is %d mJ after the reset, %d mJ without reset", one, other)
		}
		values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION}, {FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}, {FieldId: nvml.FI_DEV_REMAPPED_PENDING}}
		n.want(nvml.SUCCESS, n.gpu(0).GetFieldValues(values))
		if got := decodeField(values[0]); got >= 1000000 {
			n.Errorf("energy field is %d mJ", got)
		}
		if values[1].Value[0] != 0 || values[2].Value[0] != 0 {
			n.Errorf("recovery action is %d, pending remappings are %d", values[1].Value[0], values[2].Value[0])
		}
		if power, ret := n.gpu(0).GetPowerUsage(); ret != nvml.SUCCESS || power != 5 {
			n.Errorf("power changed by the reset: %d, %v", power, ret)
		}
		n.setLines("gpu 1 reset x")
		energy(1) // an invalid line changes nothing
		if one := energy(0); one >= 1000000 {
			n.Errorf("energy is %d mJ", one)
		}
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
