package nvml

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/xid"
)

// TestXids sends each Xid, of a GPU and of a MIG device.
func TestXids(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 1 mig_mode 1", "gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a",
		"gpu 1 slice 1 1g.10gb gi 8 ci 0 uuid MIG-b")
	s.waitForRegistration()
	numbers := []uint64{1, 61, 200, 999, 123456} // the table lacks these
	numbers = slices.AppendSeq(numbers, maps.Keys(xid.Xids))
	for _, number := range numbers {
		want, alone := xid.Event(number)
		want.Xid, want.GPU = number, s.id(0)
		s.sendEvent(0, "xid "+formatUint(number))
		if got := s.nextEvent(); got != want {
			t.Errorf("xid %d: got %+v, want %+v", number, got, want)
		}
		want.GPU = s.id(1)
		if alone {
			want.Device = "MIG-b"
		}
		s.sendEvent(1, "xid "+formatUint(number)+" gi 8 ci 0")
		if got := s.nextEvent(); got != want {
			t.Errorf("xid %d of a MIG device: got %+v, want %+v", number, got, want)
		}
	}
}

// eventTypeCatalogue has NVML's numbers and the classes of all events other
// than Xids.
var eventTypeCatalogue = map[string]struct {
	mask  uint64
	class xid.Class
}{
	"double_bit_ecc":          {0x2, xid.Undecided},
	"single_bit_ecc_storm":    {0x200, xid.Information},
	"dram_retirement":         {0x400, xid.Information},
	"dram_retirement_failure": {0x800, xid.Memory},
	"non_fatal_poison":        {0x1000, xid.Contained},
	"fatal_poison":            {0x2000, xid.Memory},
	"gpu_unavailable":         {0x4000, xid.Undecided},
	"recovery_action":         {0x8000, xid.Undecided},
}

// TestEventTypes sends each event other than Xids, without a MIG device.
func TestEventTypes(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.waitForRegistration()
	for _, name := range slices.Sorted(maps.Keys(eventTypeCatalogue)) {
		row := eventTypeCatalogue[name]
		want := row.class.Event()
		want.GPU, want.Kind = s.id(1), name
		s.sendEvent(1, "type "+name)
		if got := s.nextEvent(); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	if len(EventTypes) != len(eventTypeCatalogue) {
		t.Errorf("got %d rows, want %d", len(EventTypes), len(eventTypeCatalogue))
	}
	for _, k := range EventTypes {
		if row := eventTypeCatalogue[k.Kind]; k.Mask != row.mask || k.Class != row.class || k.Class.Effect() == "" {
			t.Errorf("%s: got %+v, want %+v", k.Kind, k, row)
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

// TestUnsubscribedTypes sends events for metrics only.
func TestUnsubscribedTypes(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 event_types 0xff9f")
	s.waitForRegistration()
	for _, name := range []string{"single_bit_ecc", "pstate", "clock", "power_source"} {
		s.sendEvent(0, "type "+name)
	}
	s.sendEvent(0, "xid 13")
	if got := s.nextEvent(); got.Xid != 13 {
		t.Errorf("got %+v, want Xid 13", got)
	}
}

// TestFalseSupport has a driver that rejects a supported event type. Xids still
// arrive.
func TestFalseSupport(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 event_types_refused 0x4000")
	s.waitForRegistration()
	s.sendEvent(0, "type fatal_poison")
	s.sendEvent(0, "xid 79")
	if got := s.nextEvent(); got.Xid != 79 || got.GPU != s.id(0) {
		t.Errorf("got %+v, want Xid 79", got)
	}
	s.sendEvent(1, "type gpu_unavailable")
	if got := s.nextEvent(); got.Kind != "gpu_unavailable" || got.GPU != s.id(1) {
		t.Errorf("other GPU: got %+v, want gpu_unavailable", got)
	}
}

// TestXidOfGPUInstance sends Xids with a GPU instance and without a compute
// instance.
func TestXidOfGPUInstance(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a",
		"gpu 0 slice 1 1c.2g.20gb gi 3 ci 0 uuid MIG-b", "gpu 0 slice 2 1c.2g.20gb gi 3 ci 1 uuid MIG-c")
	s.waitForRegistration()
	for _, c := range []struct {
		instances string
		want      device.ID
	}{
		{" gi 7", "MIG-a"},
		{" gi 3", ""}, // one of two MIG devices
		{" gi 3 ci 1", "MIG-c"},
		{" gi 9", ""},
		{" ci 0", ""},
		{"", ""},
	} {
		s.sendEvent(0, "xid 94"+c.instances)
		if got := s.nextEvent(); got.Device != c.want || got.GPU != s.id(0) {
			t.Errorf("xid 94%s: got %+v, want %q", c.instances, got, c.want)
		}
	}
}

// TestXidEventAt checks that XidEventAt finds the GPU by PCI address and
// returns the event of Wait.
func TestXidEventAt(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "gpu 1 pci 0000:1a:00.0", "gpu 1 mig_mode 1",
		"gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a")
	if e, known := s.XidEventAt("0000:1a:00", 79, collect.NoInstanceID, collect.NoInstanceID); known {
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
		{"0000:1a:00.0", 94, 7, collect.NoInstanceID, "MIG-a", true},
		{"0000:1a:00.7", 94, collect.NoInstanceID, collect.NoInstanceID, "", true},
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
	gpu := s.id(1)
	s.Close()
	if e, known := s.XidEventAt("0000:1a:00", 94, 7, 0); !known || e.GPU != gpu || e.Device != "MIG-a" {
		t.Errorf("after Close: got %+v, %v, want an event of MIG-a", e, known)
	}
}

// TestDoubleBitError checks Xid 48 with each recovery action of the driver.
func TestDoubleBitError(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.waitForRegistration()
	for _, c := range []struct {
		action       string
		fault, fatal bool
	}{
		{"0", false, false}, // an Xid 94 of a program follows
		{"1", true, false},  // the check reports the fault
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

func TestXidZero(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.waitForRegistration()
	s.sendEvent(0, "type 0x8 data 0")
	if got := s.nextEvent(); got.Xid != 999 || got.Recovery != device.RecoveryChecksPass || got.GPU != s.id(0) {
		t.Errorf("got %+v, want Xid 999 with recovery by checks", got)
	}
}
