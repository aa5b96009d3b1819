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
