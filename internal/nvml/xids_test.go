package nvml

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// xidCatalogue is NVIDIA's, as shared facts on NVML have it: written down a second
// time, so that a slip in the table is seen.
var xidCatalogue = map[eventClass]string{
	classApplication: "8 11 13 25 31 39-41 47 60 65 68 69 70-72 73 75-77 80 82-86 88 89 96-105 126-135 139 142",
	classInformation: "14 37 38 43 44 45 63 66 67 78 92 93 106-108 121 137 141 152 153 157 159-161 162-165 166 168 170-172 174 176",
	classContained:   "32 94",
	classUndecided:   "74 109 144-150 154 155",
	classMemory:      "48 175",
	classBroken:      "46 62 64 95 110 119 120 136 140 143 156 158 169 173",
	classFallen:      "79 167",
	classLocked:      "151",
	classUnpowered:   "54",
	classUnknown:     "1 61 200 999 123456",
}

// xidOrigins are who is to blame, likewise.
var xidOrigins = map[string]string{
	"application": "8 11 13 25 31 39-41 43 47 60 65 68 69 70-72 73 75-77 80 82-86 88 89 96-105 108 126-135 137 139 141 142",
	"driver":      "14 37 38 44 46 66 67 109 110 119 120 152 153 155 174",
	"hardware":    "32 48 62 63 64 74 79 92-95 121 136 140 143-150 156-161 162-165 167-169 171-173 175 176",
	"environment": "54 78 106 107 151 166 170",
	"":            "45 154",
}

// classEvents is what a report means to the device.Monitor.
var classEvents = map[eventClass]device.Event{
	classApplication: {Class: "application", Action: "restart_app"},
	classInformation: {Class: "information"},
	classContained:   {Class: "contained", Action: "restart_app"},
	classUndecided:   {Class: "undecided", Recovery: device.RecoveryChecksPass},
	classMemory:      {Class: "memory", Recovery: device.RecoveryAfterReset, Action: "reset_gpu"}, // of a GPU that no check has asked for its recovery action
	classBroken:      {Class: "broken", Recovery: device.RecoveryAfterReset, Action: "reset_gpu"},
	classFallen:      {Class: "fallen", Recovery: device.RecoveryAfterReset, Action: "reboot"},
	classLocked:      {Class: "locked", Recovery: device.RecoveryAfterReset, Action: "restart_vm"},
	classUnpowered:   {Class: "unpowered", Recovery: device.RecoveryAfterReset, Action: "inspect"},
	classUnknown:     {Class: "unknown", Recovery: device.RecoveryChecksPass, Action: "inspect"},
}

// wholeGPUClasses are the classes that hit a whole GPU, whichever slice the driver names.
var wholeGPUClasses = []eventClass{classUndecided, classMemory, classBroken, classFallen, classLocked, classUnpowered}

// TestXids has the driver report each one, of a GPU and of a slice.
func TestXids(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 1 mig_mode 1", "gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a", "gpu 1 slice 1 1g.10gb gi 8 ci 0 uuid MIG-b")
	s.waitForRegistration()
	cases := map[uint64]bool{}
	for class, xids := range xidCatalogue {
		whole := slices.Contains(wholeGPUClasses, class)
		for _, xid := range parseXidList(t, xids) {
			cases[xid] = true
			want := classEvents[class]
			if means, alone := XidEvent(xid); means != want || alone == whole {
				t.Errorf("xid %d means %+v, and alone %v; want %+v, %v", xid, means, alone, want, !whole)
			}
			want.Xid, want.GPU = xid, s.id(0)
			s.sendEvent(0, "xid "+formatUint(xid))
			if got := s.nextEvent(); got != want {
				t.Errorf("xid %d: got %+v, want %+v", xid, got, want)
			}
			want.GPU = s.id(1)
			if !whole {
				want.Device = "MIG-b"
			}
			s.sendEvent(1, "xid "+formatUint(xid)+" gi 8 ci 0")
			if got := s.nextEvent(); got != want {
				t.Errorf("xid %d of a slice: got %+v, want %+v", xid, got, want)
			}
		}
	}
	for xid := range xids {
		if !cases[xid] {
			t.Errorf("no case for xid %d", xid)
		}
	}
}

// lenientXids are Xids for which the catalogue wants a reset, and podgauge waits for the driver's
// recovery action: 109 comes of heavy time-slicing too, and 155 of links that were taken down
// on purpose.
var lenientXids = []uint64{109, 155}

// TestXidsOfTheCatalogue holds the table against the whole catalogue. An Xid that the
// catalogue calls harmless never takes a GPU out of service, one without a row neither.
func TestXidsOfTheCatalogue(t *testing.T) {
	catalogue := map[uint64]bool{}
	for line := range strings.Lines(string(readTestdata(t, "xids.txt"))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		xid, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil || len(fields) < 3 || catalogue[xid] {
			t.Fatalf("%q: %v", line, err)
		}
		catalogue[xid] = true
		e, _ := XidEvent(xid)
		_, has := xids[xid]
		ok := true
		switch action := fields[2]; action {
		case "IGNORE", "NONE":
			ok = has && e.Recovery == device.RecoveryNone && e.Action == ""
		case "RESTART_APP", "WORKFLOW_XID_45", "CHECK_UVM", "UPDATE_SWFW":
			ok = has && e.Recovery == device.RecoveryNone
		case "CONTACT_SUPPORT": // of engines that other GPUs have, or of nothing that is known
			ok = has == (e.Recovery == device.RecoveryNone) && e.Recovery != device.RecoveryAfterReset
		case "RESET_GPU":
			ok = has && (e.Recovery == device.RecoveryAfterReset && e.Action == "reset_gpu" || e.Recovery == device.RecoveryChecksPass && slices.Contains(lenientXids, xid))
		case "WORKFLOW_NVLINK_ERR", "WORKFLOW_NVLINK5_ERR", "XID_154":
			ok = has && e.Recovery == device.RecoveryChecksPass
		case "WORKFLOW_XID_48":
			ok = has && e.Class == "memory"
		case "RESTART_BM":
			ok = has && e.Recovery == device.RecoveryAfterReset && e.Action == "reboot"
		case "RESTART_VM":
			ok = has && e.Recovery == device.RecoveryAfterReset && e.Action == "restart_vm"
		case "CHECK_MECHANICALS":
			ok = has && e.Recovery == device.RecoveryAfterReset && e.Action == "inspect"
		case "-":
			ok = has
		default:
			t.Errorf("xid %d: the action %q is not known", xid, action)
		}
		if !ok {
			t.Errorf("xid %d, %s: the catalogue wants %s, and the table has %+v", xid, fields[1], fields[2], e)
		}
	}
	if len(catalogue) != 176 {
		t.Errorf("the catalogue has %d rows", len(catalogue))
	}
	for xid := range xids {
		if !catalogue[xid] {
			t.Errorf("the catalogue lacks xid %d", xid)
		}
	}
}

func readTestdata(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestXidRows: each has a name of its own kind, somebody to blame, and what its class says.
func TestXidRows(t *testing.T) {
	blamed := map[uint64]string{}
	for fault, xids := range xidOrigins {
		for _, xid := range parseXidList(t, xids) {
			blamed[xid] = fault
		}
	}
	rows := Xids()
	if len(rows) != len(xids) || len(rows) != len(blamed) {
		t.Errorf("%d rows of %d Xids, and %d have somebody to blame", len(rows), len(xids), len(blamed))
	}
	if !slices.IsSortedFunc(rows, func(a, b XidInfo) int { return int(a.Number) - int(b.Number) }) {
		t.Error("the rows are in no order")
	}
	for _, row := range rows {
		fault, known := blamed[row.Number]
		if !known || row.Origin != fault {
			t.Errorf("xid %d is the fault of %q, want %q", row.Number, row.Origin, fault)
		}
		means, alone := XidEvent(row.Number)
		if row.Class != means.Class || row.Recovery != means.Recovery || row.Action != means.Action || row.WholeGPU == alone {
			t.Errorf("xid %d is %+v, and means %+v, alone %v", row.Number, row, means, alone)
		}
		if row.Name == "" || row.Effect == "" {
			t.Errorf("xid %d is %+v", row.Number, row)
		}
	}
	for _, known := range []struct {
		xid  uint64
		name string
	}{{31, "memory page fault"}, {48, "double-bit ECC error"}, {79, "GPU has fallen off the bus"}, {94, "contained memory error"}, {119, "GSP does not answer"}} {
		if xids[known.xid].name != known.name {
			t.Errorf("xid %d is called %q, want %q", known.xid, xids[known.xid].name, known.name)
		}
	}
}

// eventTypeCatalogue is what the other events mean, and NVML's number of each.
var eventTypeCatalogue = map[string]struct {
	mask  uint64
	class eventClass
}{
	"double_bit_ecc":          {0x2, classUndecided},
	"single_bit_ecc_storm":    {0x200, classInformation},
	"dram_retirement":         {0x400, classInformation},
	"dram_retirement_failure": {0x800, classMemory},
	"non_fatal_poison":        {0x1000, classContained},
	"fatal_poison":            {0x2000, classMemory},
	"gpu_unavailable":         {0x4000, classUndecided},
	"recovery_action":         {0x8000, classUndecided},
}

// TestKinds has each other event come from a GPU, none of which is an Xid or names a slice.
func TestKinds(t *testing.T) {
	s := newListedFixture(t, "gpus 2")
	s.waitForRegistration()
	for _, name := range slices.Sorted(maps.Keys(eventTypeCatalogue)) {
		row := eventTypeCatalogue[name]
		want := classEvents[row.class]
		want.GPU, want.Kind = s.id(1), name
		s.sendEvent(1, "type "+name)
		if got := s.nextEvent(); got != want {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	if len(eventTypes) != len(eventTypeCatalogue) {
		t.Errorf("%d rows, and %d cases", len(eventTypes), len(eventTypeCatalogue))
	}
	for _, k := range EventTypes() {
		if row := eventTypeCatalogue[k.Name]; k.Mask != row.mask || k.Class != classEvents[row.class].Class || k.Effect == "" {
			t.Errorf("%s: %+v", k.Name, k)
		}
	}
	s.set("gpu 1 recovery_action 0")
	_, err := s.Check(s.id(1))
	s.must(err)
	s.sendEvent(1, "type fatal_poison") // as bad as the driver says
	if got := s.nextEvent(); got.Recovery != device.RecoveryChecksPass || got.Action != "" || got.Class != "memory" {
		t.Errorf("where the driver can say what the GPU needs: %+v", got)
	}
}

// TestUnwantedTypes are for metrics, and are not asked for.
func TestUnwantedTypes(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 event_types 0xff9f")
	s.waitForRegistration()
	for _, name := range []string{"single_bit_ecc", "pstate", "clock", "power_source"} {
		s.sendEvent(0, "type "+name)
	}
	s.sendEvent(0, "xid 13")
	if got := s.nextEvent(); got.Xid != 13 {
		t.Errorf("got %+v", got)
	}
}

// TestTypesThatAreClaimedInVain has a driver refuse what it says it has: its Xids are heard
// all the same.
func TestTypesThatAreClaimedInVain(t *testing.T) {
	s := newListedFixture(t, "gpus 2", "gpu 0 event_types_refused 0x4000")
	s.waitForRegistration()
	s.sendEvent(0, "type fatal_poison")
	s.sendEvent(0, "xid 79")
	if got := s.nextEvent(); got.Xid != 79 || got.GPU != s.id(0) {
		t.Errorf("got %+v", got)
	}
	s.sendEvent(1, "type gpu_unavailable")
	if got := s.nextEvent(); got.Kind != "gpu_unavailable" || got.GPU != s.id(1) {
		t.Errorf("the GPU beside it: got %+v", got)
	}
}

// TestXidOfAnInstance names a GPU instance, and no compute instance in it.
func TestXidOfAnInstance(t *testing.T) {
	s := newListedFixture(t, "gpus 1", "gpu 0 mig_mode 1", "gpu 0 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a",
		"gpu 0 slice 1 1c.2g.20gb gi 3 ci 0 uuid MIG-b", "gpu 0 slice 2 1c.2g.20gb gi 3 ci 1 uuid MIG-c")
	s.waitForRegistration()
	for _, c := range []struct {
		instances string
		want      device.ID
	}{
		{" gi 7", "MIG-a"},
		{" gi 3", ""}, // either of two
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

// TestXidAt finds the GPU by its PCI address, and says of it what Wait would.
func TestXidAt(t *testing.T) {
	s := newFixture(t, Options{}, "gpus 2", "gpu 1 pci 0000:1a:00.0", "gpu 1 mig_mode 1", "gpu 1 slice 0 1g.10gb gi 7 ci 0 uuid MIG-a")
	if e, known := s.XidEventAt("0000:1a:00", 79, NoInstanceID, NoInstanceID); known {
		t.Errorf("before a listing: %+v", e)
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
		{"0000:1a:00.0", 94, 7, NoInstanceID, "MIG-a", true},
		{"0000:1a:00.7", 94, NoInstanceID, NoInstanceID, "", true},
		{"0000:1a:00", 79, 7, 0, "", true},
		{"0000:1b:00", 94, 7, 0, "", false},
		{"", 94, 7, 0, "", false},
	} {
		e, known := s.XidEventAt(c.address, c.xid, c.gi, c.ci)
		want := device.Event{}
		if c.known {
			want, _ = XidEvent(c.xid)
			want.Xid, want.GPU, want.Device = c.xid, s.id(1), c.want
		}
		if known != c.known || e != want {
			t.Errorf("xid %d at %s: got %+v, %v; want %+v", c.xid, c.address, e, known, want)
		}
	}
	gpu := s.id(1)
	s.Close()
	if e, known := s.XidEventAt("0000:1a:00", 94, 7, 0); !known || e.GPU != gpu || e.Device != "MIG-a" {
		t.Errorf("while the driver is let go of: %+v, %v", e, known)
	}
}
