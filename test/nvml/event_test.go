package nvmltest

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	xidEvent = nvml.EventTypeXidCriticalError
	dbeEvent = nvml.EventTypeDoubleBitEccError
)

func (n *testNode) eventSet() nvml.EventSet {
	n.Helper()
	set, ret := n.EventSetCreate()
	n.want(nvml.SUCCESS, ret)
	return set
}

// wantEvent waits for the next event and compares all fields.
func (n *testNode) wantEvent(set nvml.EventSet, want nvml.EventData) {
	n.Helper()
	got, ret := set.Wait(uint32(waitTimeout.Milliseconds()))
	n.want(nvml.SUCCESS, ret)
	if got != want {
		n.Fatalf("got %+v, want %+v", got, want)
	}
}

func (n *testNode) wantNoEvent(set nvml.EventSet) {
	n.Helper()
	n.want(nvml.ERROR_TIMEOUT, returnOf(set.Wait(0)))
}

func TestEvents(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		one, two, three := n.gpu(1), n.gpu(2), n.gpu(3)
		n.event(1, "xid 62") // before the registration, not delivered
		xids, all := n.eventSet(), n.eventSet()
		n.want(nvml.SUCCESS, one.RegisterEvents(xidEvent, xids))
		n.want(nvml.SUCCESS, two.RegisterEvents(xidEvent, xids))
		n.want(nvml.SUCCESS, one.RegisterEvents(xidEvent|dbeEvent, all))
		n.wantNoEvent(xids)

		n.event(1, "xid 79")
		n.event(2, "xid 43 gi 1 ci 2")
		n.event(1, "type 0x2 data 0")
		n.event(3, "xid 48")
		const none = 0xFFFFFFFF
		fallen := nvml.EventData{Device: one, EventType: xidEvent, EventData: 79, GpuInstanceId: none, ComputeInstanceId: none}
		n.wantEvent(xids, fallen)
		n.wantEvent(xids, nvml.EventData{Device: two, EventType: xidEvent, EventData: 43, GpuInstanceId: 1, ComputeInstanceId: 2})
		n.wantNoEvent(xids)
		n.wantEvent(all, fallen)
		n.wantEvent(all, nvml.EventData{Device: one, EventType: dbeEvent, GpuInstanceId: none, ComputeInstanceId: none})
		n.wantNoEvent(all)

		n.want(nvml.SUCCESS, three.RegisterEvents(xidEvent, xids)) // after its xid 48
		n.wantNoEvent(xids)
		n.want(nvml.SUCCESS, all.Free())
		n.want(nvml.ERROR_INVALID_ARGUMENT, returnOf(all.Wait(0)))
		n.want(nvml.ERROR_INVALID_ARGUMENT, all.Free())
	})
}

// TestEventTypes checks that each named event type is delivered to registered event sets.
func TestEventTypes(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setLines("gpu 0 event_types 0xff9f")
		n.setup()
		set := n.eventSet()
		n.want(nvml.SUCCESS, n.gpu(0).RegisterEvents(0xff9f, set))
		for name, mask := range map[string]uint64{
			"single_bit_ecc": 1, "double_bit_ecc": 2, "pstate": 4, "xid": 8, "clock": 16, "power_source": 128, "mig_change": 256,
			"single_bit_ecc_storm": 512, "dram_retirement": 1024, "dram_retirement_failure": 2048, "non_fatal_poison": 4096,
			"fatal_poison": 8192, "gpu_unavailable": 16384, "recovery_action": 32768, "0x40": 0,
		} {
			n.event(0, "type "+name)
			if mask == 0 { // without registration
				n.wantNoEvent(set)
				continue
			}
			const none = 0xFFFFFFFF
			n.wantEvent(set, nvml.EventData{Device: n.gpu(0), EventType: mask, GpuInstanceId: none, ComputeInstanceId: none})
		}
	})
}

// TestEventStorm checks that all events of a storm and all later events are delivered.
func TestEventStorm(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		set := n.eventSet()
		n.want(nvml.SUCCESS, n.gpu(0).RegisterEvents(xidEvent, set))
		n.want(nvml.SUCCESS, n.gpu(1).RegisterEvents(xidEvent, set))
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
		n.wantNoEvent(set)
		if delivered[31] != times || delivered[13] != 1 || delivered[62] != 1 {
			n.Errorf("delivered events: %v", delivered)
		}
	})
}

// TestRejectedEventType checks that a type of event_types_refused is supported, but its registration fails.
func TestRejectedEventType(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setLines("gpu 0 event_types_refused 0x4000")
		n.setup()
		supported, ret := n.gpu(0).GetSupportedEventTypes()
		n.want(nvml.SUCCESS, ret)
		if supported&0x4000 == 0 {
			n.Fatalf("supported types are %#x", supported)
		}
		set := n.eventSet()
		n.want(nvml.ERROR_NOT_SUPPORTED, n.gpu(0).RegisterEvents(supported, set))
		n.want(nvml.SUCCESS, n.gpu(0).RegisterEvents(supported&^0x4000, set))
	})
}

// TestReset checks that a reset restarts the energy counter of a GPU and clears its faults.
func TestReset(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setLines("gpu * energy 1000000+1000/s", "gpu 0 recovery_action 1", "gpu 0 remapped_pending 1", "gpu 0 power 5", "gpu 0 lost")
		n.setup()
		if err := n.scenario.Reset(0); err != nil {
			n.Fatal(err)
		}
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
		if got := decodeEventField(values[0]); got >= 1000000 {
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

func decodeEventField(f nvml.FieldValue) uint64 { return binary.NativeEndian.Uint64(f.Value[:]) }

// TestEventWakesWait checks that an event ends a sleeping wait.
func TestEventWakesWait(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		set := n.eventSet()
		n.want(nvml.SUCCESS, n.gpu(0).RegisterEvents(xidEvent, set))
		wait := startCall(func() nvml.Return { return returnOf(set.Wait(60_000)) })
		n.wantHang(NoGPU, wait)
		n.event(0, "xid 94")
		n.wantReturn(nvml.SUCCESS, wait)

		start := time.Now()
		n.want(nvml.ERROR_TIMEOUT, returnOf(set.Wait(100)))
		if took := time.Since(start); took < 100*time.Millisecond {
			n.Errorf("a wait of 100 ms took %v", took)
		}
	})
}

// TestUnsupportedEventType checks that a registration with an unsupported type registers no type, and the set remains usable.
func TestUnsupportedEventType(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		gpu, set := n.gpu(0), n.eventSet()
		supported, ret := gpu.GetSupportedEventTypes()
		n.want(nvml.SUCCESS, ret)
		if supported&xidEvent == 0 || supported&nvml.EventTypePowerSourceChange != 0 {
			n.Fatalf("supported types are %#x", supported)
		}
		n.want(nvml.ERROR_NOT_SUPPORTED, gpu.RegisterEvents(xidEvent|nvml.EventTypePowerSourceChange, set))
		n.event(0, "xid 79")
		n.wantNoEvent(set)
		n.want(nvml.SUCCESS, gpu.RegisterEvents(supported, set))
		n.wantNoEvent(set)
		n.event(0, "xid 80")
		n.want(nvml.SUCCESS, returnOf(set.Wait(60_000)))
	})
}
