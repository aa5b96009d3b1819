package nvmltest

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	xidEvent = nvml.EventTypeXidCriticalError
	dbeEvent = nvml.EventTypeDoubleBitEccError
)

func (n *node) eventSet() nvml.EventSet {
	n.Helper()
	set, ret := n.EventSetCreate()
	n.want(nvml.SUCCESS, ret)
	return set
}

// wantEvent waits for an event that is exactly this one.
func (n *node) wantEvent(set nvml.EventSet, want nvml.EventData) {
	n.Helper()
	got, ret := set.Wait(uint32(patience.Milliseconds()))
	n.want(nvml.SUCCESS, ret)
	if got != want {
		n.Fatalf("got %+v, want %+v", got, want)
	}
}

func (n *node) wantNoEvent(set nvml.EventSet) {
	n.Helper()
	n.want(nvml.ERROR_TIMEOUT, second(set.Wait(0)))
}

func TestEvents(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		one, two, three := n.gpu(1), n.gpu(2), n.gpu(3)
		n.event(1, "xid 62") // before anybody asked: nobody is told
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

		n.want(nvml.SUCCESS, three.RegisterEvents(xidEvent, xids)) // its xid 48 came before
		n.wantNoEvent(xids)
		n.want(nvml.SUCCESS, all.Free())
		n.want(nvml.ERROR_INVALID_ARGUMENT, second(all.Wait(0)))
		n.want(nvml.ERROR_INVALID_ARGUMENT, all.Free())
	})
}

// TestEventWakesWait has the event come while the wait sleeps.
func TestEventWakesWait(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		set := n.eventSet()
		n.want(nvml.SUCCESS, n.gpu(0).RegisterEvents(xidEvent, set))
		wait := begin(func() nvml.Return { return second(set.Wait(60_000)) })
		n.hangs(NoGPU, wait)
		n.event(0, "xid 94")
		n.ends(nvml.SUCCESS, wait)

		start := time.Now()
		n.want(nvml.ERROR_TIMEOUT, second(set.Wait(100)))
		if took := time.Since(start); took < 100*time.Millisecond {
			n.Errorf("a wait of 100 ms took %v", took)
		}
	})
}

// TestUnsupportedEventType asks for one type too many: none is registered, and the
// set can still be used.
func TestUnsupportedEventType(t *testing.T) {
	onNode(t, func(n *node) {
		n.start()
		gpu, set := n.gpu(0), n.eventSet()
		supported, ret := gpu.GetSupportedEventTypes()
		n.want(nvml.SUCCESS, ret)
		if supported&xidEvent == 0 || supported&nvml.EventTypePowerSourceChange != 0 {
			n.Fatalf("supported are %#x", supported)
		}
		n.want(nvml.ERROR_NOT_SUPPORTED, gpu.RegisterEvents(xidEvent|nvml.EventTypePowerSourceChange, set))
		n.event(0, "xid 79")
		n.wantNoEvent(set)
		n.want(nvml.SUCCESS, gpu.RegisterEvents(supported, set))
		n.wantNoEvent(set)
		n.event(0, "xid 80")
		n.want(nvml.SUCCESS, second(set.Wait(60_000)))
	})
}
