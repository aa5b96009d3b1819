package nvml

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// waitForRegistration registers the GPUs, as Wait does at its start.
func (s *backendFixture) waitForRegistration() {
	s.Helper()
	s.eventsMu.Lock()
	defer s.eventsMu.Unlock()
	s.must(s.eventSet.update(context.Background(), s.inventory.Load()))
}

func (s *backendFixture) nextEvent() (e device.Event) {
	s.Helper()
	s.eventually("an event arrived", func() bool {
		var err error
		e, err = s.Wait(context.Background())
		s.must(err)
		return e != device.Event{}
	})
	return e
}

// openEventSets returns the number of event sets that were created and not
// freed since the start of the process.
func (s *backendFixture) openEventSets() uint64 {
	calls := s.calls()
	return calls.Count("nvmlEventSetCreate", nvmltest.NoGPU) - calls.Count("nvmlEventSetFree", nvmltest.NoGPU)
}

func formatUint(n uint64) string { return strconv.FormatUint(n, 10) }

// TestEventsHaveGPU sends several events at once.
func TestEventsHaveGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 8")
	s.waitForRegistration()
	s.sendEvent(5, "xid 79")
	s.sendEvent(2, "xid 13")
	s.sendEvent(5, "type pstate") // not subscribed
	for _, want := range []device.Event{
		{GPU: s.id(5), Xid: 79, Class: "fallen", Recovery: device.RecoveryAfterReset, Action: "reboot"},
		{GPU: s.id(2), Xid: 13, Class: "application", Action: "restart_app"},
	} {
		if got := s.nextEvent(); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

// TestWaitEnds checks that Wait ends with ctx, or on a whole second within
// eventWaitTimeout.
func TestWaitEnds(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	before := s.calls()
	if e, err := s.Wait(ctx); e != (device.Event{}) || err != nil {
		t.Errorf("Wait after the end of ctx: got %+v, %v, want no event", e, err)
	}
	if n := s.calls().Since(before).GPUTotal(nvmltest.NoGPU); n != 0 {
		t.Errorf("calls after the end of ctx: got %d, want 0", n)
	}
	began := time.Now()
	e, err := s.Wait(context.Background())
	if took := time.Since(began); e != (device.Event{}) || err != nil || took < eventWaitTimeout/2 {
		t.Errorf("Wait ended after %v: got %+v, %v, want no event after eventWaitTimeout", took, e, err)
	}
}

// TestWaitDoesNotSpin has waits that end at once, as after an interrupt.
func TestWaitDoesNotSpin(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "fail nvmlEventSetWait_v2 gpu - TIMEOUT")
	began := time.Now()
	for range 3 {
		if e, err := s.Wait(context.Background()); e != (device.Event{}) || err != nil {
			t.Fatalf("Wait: got %+v, %v, want no event", e, err)
		}
	}
	if took := time.Since(began); took < 3*minEventWait {
		t.Errorf("duration of three waits: got %v, want at least three times minEventWait", took)
	}
}

// TestWaitWithLostGPU has a lost GPU that fails each wait. The events of the
// other GPUs arrive, and after its return also those of the GPU.
func TestWaitWithLostGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 3")
	open := s.openEventSets()
	s.waitForRegistration()
	s.set("gpu 1 lost")
	if e, err := s.Wait(context.Background()); e != (device.Event{}) || err == nil {
		t.Fatalf("Wait: got %+v, %v, want an error", e, err)
	}
	s.sendEvent(2, "xid 31") // before the next wait
	if got := s.nextEvent(); got.GPU != s.id(2) {
		t.Errorf("event of another GPU: got %+v", got)
	}
	before := s.calls()
	s.waitForRegistration()
	if n := s.calls().Since(before).GPUTotal(1); n != 0 {
		t.Errorf("calls of a wait on a lost GPU: got %d, want 0", n)
	}
	s.clear("gpu 1")
	if _, err := s.Check(s.id(1)); err != nil {
		t.Fatal(err)
	}
	s.waitForRegistration()
	s.sendEvent(1, "xid 13")
	if got := s.nextEvent(); got.GPU != s.id(1) {
		t.Errorf("event after the GPU's return: got %+v", got)
	}
	if sets := s.openEventSets() - open; sets != 1 {
		t.Errorf("open event sets: got %d, want 1", sets)
	}
}

func TestWaitErrors(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	open := s.openEventSets() + 3 // three creations fail
	for _, c := range []struct{ line, want string }{
		{"fail nvmlEventSetWait_v2 gpu - UNKNOWN", "nvmlEventSetWait: UNKNOWN"},
		{"fail nvmlEventSetWait_v2 gpu - GPU_IS_LOST", "nvmlEventSetWait: GPU_IS_LOST"},
		{"fail nvmlEventSetCreate gpu - INSUFFICIENT_RESOURCES", "create event set: INSUFFICIENT_RESOURCES"},
	} {
		s.eventSet.free()
		s.set(c.line)
		for range 3 {
			if e, err := s.Wait(context.Background()); e != (device.Event{}) || err == nil || err.Error() != c.want {
				t.Errorf("%s: got %+v, %v, want error %s", c.line, e, err, c.want)
			}
		}
		s.clear("fail")
	}
	s.waitForRegistration()
	if sets := s.openEventSets() - open; sets != 1 {
		t.Errorf("open event sets: got %d, want 1", sets)
	}
}

// TestRegistrations has GPUs that cannot register. Only a broken set is an
// error, once. The events of the other GPUs arrive.
func TestRegistrations(t *testing.T) {
	for _, c := range []struct {
		line    string
		wantErr bool
	}{
		{"gpu 1 event_types 0x1", false},
		{"gpu 1 event_types none", false},
		{"fail nvmlDeviceGetSupportedEventTypes gpu 1 UNKNOWN", true},
		{"fail nvmlDeviceRegisterEvents gpu 1 NOT_SUPPORTED", false},
		{"fail nvmlDeviceRegisterEvents gpu 1 GPU_IS_LOST", false},
		{"fail nvmlDeviceRegisterEvents gpu 1 UNKNOWN", true},
	} {
		s := newListedFixture(t, "gpus 3", c.line)
		if c.wantErr {
			if _, err := s.Wait(context.Background()); err == nil || !strings.Contains(err.Error(), string(s.id(1))) {
				t.Errorf("%s: got %v, want an error about the GPU", c.line, err)
			}
		}
		s.waitForRegistration()
		before := s.calls()
		s.sendEvent(2, "xid 62")
		if got := s.nextEvent(); got.GPU != s.id(2) {
			t.Errorf("%s: event of another GPU: got %+v", c.line, got)
		}
		if n := s.calls().Since(before).Count("nvmlDeviceRegisterEvents", 1); n != 0 {
			t.Errorf("%s: repeated registrations: got %d, want 0", c.line, n)
		}
	}
}

// TestBrokenSets has two GPUs that break their sets. The same wait still
// registers the third GPU.
func TestBrokenSets(t *testing.T) {
	s := newListedFixture(t, "gpus 3", "fail nvmlDeviceRegisterEvents gpu 0 UNKNOWN",
		"fail nvmlDeviceRegisterEvents gpu 1 UNKNOWN")
	open := s.openEventSets()
	_, err := s.Wait(context.Background())
	want := fmt.Sprintf("register events of %s: UNKNOWN; register events of %s: UNKNOWN", s.id(0), s.id(1))
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	s.sendEvent(2, "xid 62")
	if got := s.nextEvent(); got.GPU != s.id(2) {
		t.Errorf("event of the third GPU: got %+v", got)
	}
	if sets := s.openEventSets() - open; sets != 1 {
		t.Errorf("open event sets: got %d, want 1", sets)
	}
}

// TestFailedRegistration has a GPU whose registration fails for a while. It is
// repeated after an interval, and the events of the other GPUs arrive.
func TestFailedRegistration(t *testing.T) {
	for _, code := range []string{"UNKNOWN", "INVALID_ARGUMENT"} {
		s := newListedFixture(t, "gpus 2", "fail nvmlDeviceRegisterEvents gpu 1 "+code)
		open := s.openEventSets()
		if _, err := s.Wait(context.Background()); (err != nil) != (code == "UNKNOWN") {
			t.Errorf("%s: Wait: got %v", code, err)
		}
		s.clear("fail")
		before := s.calls()
		s.list(2)
		s.waitForRegistration()
		s.sendEvent(0, "xid 31")
		if n := s.calls().Since(before).Count("nvmlDeviceRegisterEvents", 1); n != 0 {
			t.Errorf("%s: registrations after a listing: got %d, want 0", code, n)
		}
		if in := time.Until(s.gpu(1).registerAfter); in > minRegisterInterval {
			t.Errorf("%s: delay of the next registration: got %v, want at most minRegisterInterval", code, in)
		}
		s.gpu(1).registerAfter = time.Now()
		s.waitForRegistration()
		s.sendEvent(1, "xid 31")
		for _, gpu := range []int{0, 1} {
			if got := s.nextEvent(); got.GPU != s.id(gpu) {
				t.Errorf("%s: event: got %+v", code, got)
			}
		}
		if sets := s.openEventSets() - open; sets != 1 {
			t.Errorf("%s: open event sets: got %d, want 1", code, sets)
		}
	}
}

// TestNoRegistration checks that Wait without a registered GPU waits and makes
// no call.
func TestNoRegistration(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu * event_types none")
	before, began := s.calls(), time.Now()
	e, err := s.Wait(context.Background())
	if took := time.Since(began); e != (device.Event{}) || err != nil || took < eventWaitTimeout/2 {
		t.Errorf("Wait ended after %v: got %+v, %v, want no event after eventWaitTimeout", took, e, err)
	}
	if n := s.calls().Since(before).Count("nvmlEventSetWait_v2", nvmltest.NoGPU); n != 0 {
		t.Errorf("waits without a GPU: got %d, want 0", n)
	}
}

// TestEventsFollowListing adds and removes GPUs between events.
func TestEventsFollowListing(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	open := s.openEventSets()
	s.waitForRegistration()
	s.set("gpus 4")
	s.list(4)
	s.sendEvent(0, "xid 31") // reported by the previous set
	if got := s.nextEvent(); got.GPU != s.id(0) {
		t.Errorf("event of the previous set: got %+v", got)
	}
	s.sendEvent(3, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(3) {
		t.Errorf("event of the new GPU: got %+v", got)
	}
	s.set("gpus 1")
	s.list(1)
	s.waitForRegistration()
	s.sendEvent(0, "xid 8")
	if got := s.nextEvent(); got.GPU != s.id(0) {
		t.Errorf("event after the removal: got %+v", got)
	}
	if sets := s.openEventSets() - open; sets != 1 {
		t.Errorf("open event sets: got %d, want 1", sets)
	}
}

// TestEventOfUnlistedGPU checks that an event of a GPU that the newest listing
// lacks has an Xid and no GPU.
func TestEventOfUnlistedGPU(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.waitForRegistration()
	done := make(chan device.Event, 1)
	go func() { done <- s.nextEvent() }() // ends with the event; received below
	s.eventually("Wait is waiting", func() bool { return s.calls().InFlight(nvmltest.NoGPU) > 0 })
	s.set("gpus 1")
	s.list(1)
	s.set("gpus 2")
	s.sendEvent(1, "xid 31")
	if got := <-done; got.GPU != "" || got.Xid != 31 {
		t.Errorf("got %+v, want Xid 31 without a GPU", got)
	}
}

// TestSecondWait checks that a concurrent Wait returns at once.
func TestSecondWait(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	done := make(chan error, 1)
	go func() { _, err := s.Wait(context.Background()); done <- err }() // ends within a second; received below
	s.eventually("Wait is waiting", func() bool { return s.calls().InFlight(nvmltest.NoGPU) > 0 })
	if _, err := s.Wait(context.Background()); err == nil {
		t.Error("second Wait: got no error")
	}
	s.must(<-done)
}

// TestEventsAfterInit checks that a new Init has a new event set.
func TestEventsAfterInit(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.waitForRegistration()
	s.set("fail nvmlEventSetWait_v2 gpu - UNINITIALIZED", "fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.Wait(context.Background()); err == nil {
		t.Error("Wait after the library ended: got no error")
	}
	if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Devices: got %v, want ErrNoDriver", err)
	}
	if _, err := s.Wait(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Wait: got %v, want ErrNoDriver", err)
	}
	s.clear("fail")
	s.list(1)
	s.waitForRegistration()
	s.sendEvent(0, "xid 31")
	if got := s.nextEvent(); got.GPU != s.id(0) {
		t.Errorf("event after the new Init: got %+v", got)
	}
}

// TestEventsBeforeRemoval has pending events while the listing loses a GPU of
// the set. No event is lost.
func TestEventsBeforeRemoval(t *testing.T) {
	s := newListedFixture(t, "gpus 3")
	s.waitForRegistration()
	s.sendEvent(0, "xid 79")
	s.sendEvent(1, "xid 95")
	s.set("gpus 2")
	s.list(2)
	for i, xid := range []uint64{79, 95} {
		if e, err := s.Wait(context.Background()); err != nil || e.GPU != s.id(i) || e.Xid != xid {
			t.Errorf("event: got %+v, %v, want xid %d", e, err, xid)
		}
	}
	s.waitForRegistration()
	if n := len(s.eventSet.registered); n != 2 {
		t.Errorf("registered GPUs: got %d, want 2", n)
	}
}

// TestCloseWithOldSet has a library that loses its Init. The event set is lost
// too, and must not be freed after the next Init.
func TestCloseWithOldSet(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.waitForRegistration()
	s.set("fail nvmlDeviceGetCount_v2 gpu - UNINITIALIZED")
	if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrNoDriver) {
		t.Errorf("Devices: got %v, want ErrNoDriver", err)
	}
	s.clear("fail")
	s.list(1)
	before := s.calls()
	s.Close()
	since := s.calls().Since(before)
	if n := since.Count("nvmlEventSetFree", nvmltest.NoGPU); n != 0 {
		t.Error("an event set of an earlier Init was freed")
	}
	if n := since.Count("nvmlShutdown", nvmltest.NoGPU); n != 1 {
		t.Errorf("shutdowns: got %d, want 1", n)
	}
}

// TestHangInRegistration has a GPU that hangs only in its registration. Events
// of the other GPUs arrive, and after the hang also those of the GPU.
func TestHangInRegistration(t *testing.T) {
	for _, function := range []string{"nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"} {
		s := newListedFixture(t, "gpus 3")
		open, stuck := s.openEventSets(), s.id(1)
		s.set("hang " + function + " gpu 1")
		waited := make(chan error, 1)
		// ends with the hang at the latest; received below
		go func() { _, err := s.Wait(context.Background()); waited <- err }()
		select {
		case err := <-waited:
			if err == nil || !strings.Contains(err.Error(), string(stuck)+": it does not respond") {
				t.Errorf("%s: Wait: got %v, want an error about the GPU", function, err)
			}
		case <-time.After(testTimeout):
			t.Errorf("%s: Wait did not return", function)
			s.clear("hang")
			<-waited
			continue
		}
		s.sendEvent(2, "xid 31")
		if got := s.nextEvent(); got.GPU != s.id(2) {
			t.Errorf("%s: event of another GPU: got %+v", function, got)
		}
		if n := s.calls().InFlight(1); n != 1 || s.Idle() {
			t.Errorf("%s: got %d calls in flight, idle %v, want 1, false", function, n, s.Idle())
		}
		s.clear("hang")
		s.eventually("the hang ended", s.Idle)
		if _, err := s.Check(stuck); err != nil {
			t.Error(err)
		}
		s.waitForRegistration()
		s.sendEvent(1, "xid 13")
		if got := s.nextEvent(); got.GPU != stuck {
			t.Errorf("%s: event after the hang: got %+v", function, got)
		}
		if n := s.openEventSets() - open; n != 1 {
			t.Errorf("%s: open event sets: got %d, want 1", function, n)
		}
	}
}
