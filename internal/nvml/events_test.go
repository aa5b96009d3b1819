package nvml_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// register runs a Wait, which registers the GPUs, and ends it by an event of
// GPU 0.
func (s *fixture) register() {
	s.Helper()
	s.must(s.tryRegister())
}

func (s *fixture) tryRegister() error {
	s.Helper()
	done := make(chan error, 1)
	go func() { _, err := s.Wait(context.Background()); done <- err }() // ends with the event; received below
	for i := 0; s.calls().InFlight(nvmltest.NoGPU) == 0; i++ {
		select {
		case err := <-done:
			return err
		default:
		}
		if i < 1000 {
			runtime.Gosched() // the clock of a bubble stands still
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	s.sendEvent(0, "xid 13")
	return <-done
}

func (s *fixture) nextEvent() (e device.Event) {
	s.Helper()
	s.eventually("an event arrived", func() bool {
		var err error
		e, err = s.Wait(context.Background())
		s.must(err)
		return e != device.Event{}
	})
	return e
}

// wantXid sends an Xid of a GPU, which must arrive next.
func (s *fixture) wantXid(what string, gpu int) {
	s.Helper()
	s.sendEvent(gpu, "xid 62")
	if got := s.nextEvent(); got.GPU != s.id(gpu) || got.Xid != 62 {
		s.Errorf("%s: got %+v, want Xid 62 of GPU %d", what, got, gpu)
	}
}

// openEventSets returns the number of event sets that were created and not
// freed since the start of the process.
func (s *fixture) openEventSets() uint64 {
	calls := s.calls()
	return calls.Count("nvmlEventSetCreate", nvmltest.NoGPU) - calls.Count("nvmlEventSetFree", nvmltest.NoGPU)
}

func (s *fixture) wantOpenSets(what string, open uint64) {
	s.Helper()
	expect.Equal(s, s.openEventSets(), open, what, "open event sets")
}

// TestXids sends each Xid, of a GPU and of a MIG device.
func TestXids(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 1 mig_mode 1", "gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a",
		"gpu 1 slice 1 1g.10gb gi 8 ci 0 uuid MIG-b")
	s.register()
	numbers := []uint64{1, 61, 200, 999, 123456} // the table lacks these
	numbers = slices.AppendSeq(numbers, maps.Keys(xid.Xids))
	for _, number := range numbers {
		want, alone := xid.Event(number)
		want.Xid, want.GPU = number, s.id(0)
		s.sendEvent(0, fmt.Sprintf("xid %d", number))
		expect.Equal(t, s.nextEvent(), want, "xid", number)
		want.GPU = s.id(1)
		if alone {
			want.Device = "MIG-b"
		}
		s.sendEvent(1, fmt.Sprintf("xid %d gi 8 ci 0", number))
		expect.Equal(t, s.nextEvent(), want, "xid", number, "of a MIG device")
	}
	s.sendEvent(0, "type 0x8 data 0")
	if got := s.nextEvent(); got.Xid != 999 || got.Recovery != device.RecoveryChecksPass || got.GPU != s.id(0) {
		t.Errorf("xid 0: got %+v, want Xid 999 with recovery by checks", got)
	}
}

// TestEventTypes sends each event other than Xids.
func TestEventTypes(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 event_types 0xff9f")
	s.register()
	for _, name := range []string{"single_bit_ecc", "pstate", "clock", "power_source"} { // metrics only
		s.sendEvent(0, "type "+name)
	}
	for _, k := range nvml.EventTypes {
		want := k.Class.Event()
		want.GPU, want.Kind = s.id(1), k.Kind
		s.sendEvent(1, "type "+k.Kind)
		if got := s.nextEvent(); got != want || k.Class.Effect() == "" {
			t.Errorf("%s: got %+v, want %+v", k.Kind, got, want)
		}
	}
	s.set("gpu 1 recovery_action 0")
	_, err := s.Check(s.id(1))
	s.must(err)
	s.sendEvent(1, "type fatal_poison") // by the recovery action
	if got := s.nextEvent(); got.Recovery != device.RecoveryChecksPass || got.Action != "" || got.Class != "memory" {
		t.Errorf("with a recovery action: got %+v, want recovery by checks", got)
	}
}

// TestFalseSupport has a driver that rejects a supported event type. Xids still
// arrive.
func TestFalseSupport(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 event_types_refused 0x4000")
	s.register()
	s.sendEvent(0, "type fatal_poison")
	s.wantXid("beside the rejected type", 0)
	s.sendEvent(1, "type gpu_unavailable")
	if got := s.nextEvent(); got.Kind != "gpu_unavailable" || got.GPU != s.id(1) {
		t.Errorf("other GPU: got %+v, want gpu_unavailable", got)
	}
}

// TestEventsOfMIGDevices sends events with instances. Errors of the hardware
// affect the whole GPU.
func TestEventsOfMIGDevices(t *testing.T) {
	s := newListedFixture(t, append(partitionedGPU, "gpu 2 event_types 0x8")...)
	s.list(7)
	s.register()
	for _, c := range []struct {
		event string
		want  device.ID
	}{
		{"xid 4242 gi 2 ci 1", "MIG-GPU-1/2/1"},
		{"xid 31 gi 7 ci 0", "MIG-a"},
		{"xid 94 gi 9", "MIG-d"},  // the only device in the GPU instance
		{"xid 95 gi 9 ci 0", ""},  // broken hardware
		{"xid 4242", ""},          // without privileges
		{"xid 94 ci 0", ""},       //
		{"xid 4242 gi 2", ""},     // two MIG devices in the instance
		{"xid 31 gi 3 ci 0", ""},  // added after the listing
		{"type 0x100", "changed"}, // the partitioning
	} {
		s.sendEvent(1, c.event)
		got := s.nextEvent()
		if got.PartitionChanged {
			got.Device = "changed"
		}
		if got.GPU != s.id(1) || got.Device != c.want {
			t.Errorf("%s: got %+v, want %s", c.event, got, c.want)
		}
	}
	s.sendEvent(0, "xid 4242 gi 7 ci 0") // not partitioned
	if got := s.nextEvent(); got.GPU != s.id(0) || got.Device != "" {
		t.Errorf("event of an unpartitioned GPU: got %+v", got)
	}
	s.sendEvent(2, "type 0x100") // unsupported here, unlike Xids
	s.wantXid("after an unsupported event", 2)
}

// TestEventsWithoutInstances has a driver whose events lack instances. go-nvml
// fills in zeros, which are the ids of an existing MIG device.
func TestEventsWithoutInstances(t *testing.T) {
	withLibrary(t, []string{"nvmlEventSetWait_v2"},
		[]string{"gpus 1", "gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 0 ci 0"},
		func(s *fixture) {
			s.list(2)
			s.register()
			s.sendEvent(0, "xid 4242 gi 1 ci 1")
			if got := s.nextEvent(); got.GPU != s.id(0) || got.Device != "" || got.Recovery != device.RecoveryChecksPass {
				s.Errorf("got %+v, want no MIG device", got)
			}
		})
}

// TestXidEventAt checks that XidEventAt finds the GPU by PCI address and
// returns the event of Wait.
func TestXidEventAt(t *testing.T) {
	s := newFixture(t, nvml.Options{}, "gpus 2", "gpu 1 pci 0000:1a:00.0", "gpu 1 mig_mode 1",
		"gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a")
	const none = collect.NoInstanceID
	if e, known := s.XidEventAt("0000:1a:00", 79, none, none); known {
		t.Errorf("before a listing: got %+v, want no event", e)
	}
	s.list(-1)
	for _, c := range []struct {
		address string
		xid     uint64
		gi, ci  uint32
		want    device.ID
		known   bool
	}{
		{"0000:1a:00", 94, 7, 0, "MIG-a", true},
		{"0000:1a:00.0", 94, 7, none, "MIG-a", true},
		{"0000:1a:00.7", 94, none, none, "", true},
		{"0000:1a:00", 79, 7, 0, "", true},
		{"0000:1b:00", 94, 7, 0, "", false},
		{"", 94, 7, 0, "", false},
	} {
		e, known := s.XidEventAt(c.address, c.xid, c.gi, c.ci)
		want := device.Event{}
		if c.known {
			want, _ = xid.Event(c.xid)
			want.Xid, want.GPU, want.Device = c.xid, s.id(1), c.want
		}
		if known != c.known || e != want {
			t.Errorf("xid %d at %s: got %+v, %v; want %+v", c.xid, c.address, e, known, want)
		}
	}
	s.Close()
	if e, known := s.XidEventAt("0000:1a:00", 94, 7, 0); !known || e.GPU != s.id(1) || e.Device != "MIG-a" {
		t.Errorf("after Close: got %+v, %v, want an event of MIG-a", e, known)
	}
}

// TestDoubleBitError checks Xid 48 with each recovery action of the driver.
func TestDoubleBitError(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.register()
	for _, c := range []struct {
		action       string
		fault, fatal bool
	}{
		{"0", false, false}, // an Xid 94 of a program follows
		{"1", true, false},  // the check reports the fault
		{"8", false, true},  // undefined
		{"none", false, true},
	} {
		s.clear("gpu 0")
		s.set("gpu 0 recovery_action " + c.action)
		var fault *device.Fault
		if _, err := s.Check(s.id(0)); errors.As(err, &fault) != c.fault {
			t.Errorf("recovery action %s: Check: got %v, want a fault: %v", c.action, err, c.fault)
		}
		s.sendEvent(0, "xid 48")
		if got := s.nextEvent(); got.Xid != 48 || (got.Recovery == device.RecoveryAfterReset) != c.fatal ||
			(got.Action != "") != c.fatal {
			t.Errorf("recovery action %s: got %+v", c.action, got)
		}
	}
}

// TestWaitWithoutEvent checks the duration and the calls of a Wait without an
// event: until the end of ctx or about two seconds, also without a registered
// GPU, and never at once.
func TestWaitWithoutEvent(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	wait := func(what string, ctx context.Context, minDuration time.Duration) { //nolint:revive // ctx is a parameter
		t.Helper()
		began := time.Now()
		e, err := s.Wait(ctx)
		if took := time.Since(began); e != (device.Event{}) || err != nil || took < minDuration {
			t.Errorf("%s: ended after %v: got %+v, %v, want no event after %v", what, took, e, err, minDuration)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := s.calls()
	wait("ended ctx", ended, 0)
	expect.Equal(t, s.calls().Since(before).GPUTotal(nvmltest.NoGPU), 0, "calls after the end of ctx")
	wait("no event", t.Context(), time.Second)
	s.set("fail nvmlEventSetWait_v2 gpu - TIMEOUT")
	wait("interrupted", t.Context(), 50*time.Millisecond)
	s.clear("fail")
	s.set("gpu * event_types none")
	s.Close()
	s.list(1)
	before = s.calls()
	wait("no registered GPU", t.Context(), time.Second)
	expect.Equal(t, s.calls().Since(before).Count("nvmlEventSetWait_v2", nvmltest.NoGPU), 0, "waits without a GPU")
}

// TestWaitErrors lets the wait fail in all ways, by a lost GPU too. The next
// wait has a new set.
func TestWaitErrors(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.register()
	open := s.openEventSets()
	for _, code := range []string{"UNKNOWN", "GPU_IS_LOST"} {
		s.set("fail nvmlEventSetWait_v2 gpu - " + code)
		for range 3 {
			e, err := s.Wait(t.Context())
			if e != (device.Event{}) || err == nil || err.Error() != "nvmlEventSetWait: "+code {
				t.Errorf("%s: got %+v, %v, want an error", code, e, err)
			}
		}
	}
	s.clear("fail")
	s.wantXid("after errors", 1)
	s.wantOpenSets("after errors", open)
	s.set("fail nvmlEventSetCreate gpu - INSUFFICIENT_RESOURCES", "fail nvmlEventSetWait_v2 gpu - UNKNOWN")
	const want = "create event set: INSUFFICIENT_RESOURCES"
	if _, err := s.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := s.Wait(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestWaitWithLostGPU has a lost GPU that fails each wait. The events of the
// other GPUs arrive, and after its return also those of the GPU.
func TestWaitWithLostGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 3")
	open := s.openEventSets() + 1
	s.register()
	s.set("gpu 1 lost")
	if e, err := s.Wait(t.Context()); e != (device.Event{}) || err == nil {
		t.Fatalf("Wait: got %+v, %v, want an error", e, err)
	}
	s.wantXid("other GPU", 2) // sent before the next wait
	before := s.calls()
	s.register()
	expect.Equal(t, s.calls().Since(before).GPUTotal(1), 0, "calls of a wait on a lost GPU")
	s.clear("gpu 1")
	s.resets(1) // a check
	s.register()
	s.wantXid("after the return", 1)
	s.wantOpenSets("after the return", open)
}

// TestRegistrations has GPUs that cannot register. Only a broken set is an
// error, once. The events of the other GPU arrive, and after an interval the
// registration is repeated.
func TestRegistrations(t *testing.T) {
	for _, c := range []struct {
		line     string
		wantErr  bool
		repeated bool
	}{
		{"gpu 1 event_types 0x1", false, true},
		{"gpu 1 event_types none", false, true},
		{"fail nvmlDeviceGetSupportedEventTypes gpu 1 UNKNOWN", true, true},
		{"fail nvmlDeviceRegisterEvents gpu 1 NOT_SUPPORTED", false, true},
		{"fail nvmlDeviceRegisterEvents gpu 1 INVALID_ARGUMENT", false, true},
		{"fail nvmlDeviceRegisterEvents gpu 1 GPU_IS_LOST", false, false}, // after a check
		{"fail nvmlDeviceRegisterEvents gpu 1 UNKNOWN", true, true},
		{"fail nvmlDeviceRegisterEvents gpu * UNKNOWN", true, true}, // each breaks a set
	} {
		bubble.Test(t, func(t *testing.T) {
			s := newListedFixture(t, "gpus 3", c.line)
			open := s.openEventSets()
			err := s.tryRegister()
			if (err != nil) != c.wantErr || err != nil && !strings.Contains(err.Error(), string(s.id(1))) {
				t.Errorf("%s: got %v, want an error: %v", c.line, err, c.wantErr)
			}
			if !strings.Contains(c.line, "*") {
				s.wantXid(c.line+": other GPU", 2)
			}
			before := s.calls()
			s.clear("fail")
			s.clear("gpu 1")
			s.list(3)
			s.register()
			expect.Equal(t, s.calls().Since(before).Count("nvmlDeviceRegisterEvents", 1), 0,
				c.line, "repeated registrations")
			time.Sleep(10 * time.Second)
			if !c.repeated {
				s.resets(1)
			}
			s.register()
			s.wantXid(c.line+": repeated", 1)
			s.Close()
			s.wantOpenSets(c.line, open)
		})
	}
}

// TestEventsFollowListing adds and removes GPUs between events. No event is
// lost.
func TestEventsFollowListing(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	open := s.openEventSets() + 1
	s.register()
	s.set("gpus 4")
	s.list(4)
	s.wantXid("previous set", 0)
	s.wantXid("new GPU", 3)
	s.sendEvent(0, "xid 79")
	s.sendEvent(1, "xid 95")
	s.set("gpus 2")
	s.list(2)
	for i, number := range []uint64{79, 95} {
		if e, err := s.Wait(t.Context()); err != nil || e.GPU != s.id(i) || e.Xid != number {
			t.Errorf("event before the removal: got %+v, %v, want xid %d", e, err, number)
		}
	}
	s.wantXid("after the removal", 1)
	s.wantOpenSets("after the removal", open)
}

// TestEventOfUnlistedGPU checks that an event of a GPU that the newest listing
// lacks has an Xid and no GPU. A concurrent Wait returns at once.
func TestEventOfUnlistedGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.register()
	done := make(chan device.Event, 1)
	go func() { done <- s.nextEvent() }() // ends with the event; received below
	s.eventually("Wait is waiting", func() bool { return s.calls().InFlight(nvmltest.NoGPU) > 0 })
	if _, err := s.Wait(t.Context()); err == nil {
		t.Error("second Wait: got no error")
	}
	s.set("gpus 1")
	s.list(1)
	s.set("gpus 2")
	s.sendEvent(1, "xid 31")
	if got := <-done; got.GPU != "" || got.Xid != 31 {
		t.Errorf("got %+v, want Xid 31 without a GPU", got)
	}
}

// TestEventsAfterInit checks that a new Init has a new event set, and that the
// old set is not freed.
func TestEventsAfterInit(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.register()
	s.set("fail nvmlEventSetWait_v2 gpu - UNINITIALIZED", "fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.Wait(t.Context()); err == nil {
		t.Error("Wait after the library ended: got no error")
	}
	for range 2 {
		if _, err := s.tryList(); !errors.Is(err, device.ErrNoDriver) {
			t.Errorf("Devices: got %v, want ErrNoDriver", err)
		}
		s.wantCallsFail()
		s.clear("fail")
		s.list(1)
		s.register()
		s.wantXid("after a new Init", 0)
		s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	}
	_, _ = s.tryList()
	s.clear("fail")
	s.list(1)
	before := s.calls()
	s.Close()
	since := s.calls().Since(before)
	if n := since.Count("nvmlEventSetFree", nvmltest.NoGPU); n != 0 {
		t.Error("an event set of an earlier Init was freed")
	}
	expect.Equal(t, since.Count("nvmlShutdown", nvmltest.NoGPU), 1, "shutdowns")
}
