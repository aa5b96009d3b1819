package xid

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

// xidCatalogue is NVIDIA's catalogue by class. A second list finds mistakes in the table.
var xidCatalogue = map[Class]string{
	Application: "8 11 13 25 31 39-41 47 60 65 68 69 70-72 73 75-77 80 82-86 88 89 96-105 126-135 139 142",
	Information: "14 37 38 43 44 45 63 66 67 78 92 93 106-108 121 137 141 152 153 157 159-161 162-165 166 168 170-172 174 176",
	Contained:   "32 94",
	Undecided:   "74 109 144-150 154 155",
	Memory:      "48 175",
	Broken:      "46 62 64 95 110 119 120 136 140 143 156 158 169 173",
	Fallen:      "79 167",
	Locked:      "151",
	Unpowered:   "54",
	Unknown:     "1 61 200 999 123456",
}

// xidOrigins is the same for the origins.
var xidOrigins = map[string]string{
	"application": "8 11 13 25 31 39-41 43 47 60 65 68 69 70-72 73 75-77 80 82-86 88 89 96-105 108 126-135 137 139 141 142",
	"driver":      "14 37 38 44 46 66 67 109 110 119 120 152 153 155 174",
	"hardware":    "32 48 62 63 64 74 79 92-95 121 136 140 143-150 156-161 162-165 167-169 171-173 175 176",
	"environment": "54 78 106 107 151 166 170",
	"":            "45 154",
}

// classEvents are the events for the device.Monitor.
var classEvents = map[Class]device.Event{
	Application: {Class: "application", Action: "restart_app"},
	Information: {Class: "information"},
	Contained:   {Class: "contained", Action: "restart_app"},
	Undecided:   {Class: "undecided", Recovery: device.RecoveryChecksPass},
	Memory:      {Class: "memory", Recovery: device.RecoveryAfterReset, Action: "reset_gpu"}, // without a recovery action of the driver
	Broken:      {Class: "broken", Recovery: device.RecoveryAfterReset, Action: "reset_gpu"},
	Fallen:      {Class: "fallen", Recovery: device.RecoveryAfterReset, Action: "reboot"},
	Locked:      {Class: "locked", Recovery: device.RecoveryAfterReset, Action: "restart_vm"},
	Unpowered:   {Class: "unpowered", Recovery: device.RecoveryAfterReset, Action: "inspect"},
	Unknown:     {Class: "unknown", Recovery: device.RecoveryChecksPass, Action: "inspect"},
}

// wholeGPUClasses are the classes that concern a whole GPU, also with the address of a MIG device.
var wholeGPUClasses = []Class{Undecided, Memory, Broken, Fallen, Locked, Unpowered}

// TestXids compares each Xid's event with the catalogue.
func TestXids(t *testing.T) {
	cases := map[uint64]bool{}
	for class, numbers := range xidCatalogue {
		whole := slices.Contains(wholeGPUClasses, class)
		for _, xid := range parseXids(t, numbers) {
			cases[xid] = true
			want := classEvents[class]
			if xid >= 144 && xid <= 150 {
				want.Severity = device.SeverityUndecided
			}
			if got, migDeviceOnly := Event(xid); got != want || migDeviceOnly == whole {
				t.Errorf("xid %d: got %+v, MIG device only %v; want %+v, %v", xid, got, migDeviceOnly, want, !whole)
			}
		}
	}
	for xid := range Xids {
		if !cases[xid] {
			t.Errorf("test case for xid %d is missing", xid)
		}
	}
}

// softwareXids are the errors of applications and of the driver that leave the GPU usable.
const softwareXids = "8 11 13 14 25 31 37-41 43-45 47 60 65-73 75-77 80 82-86 88 89 96-105 108 109 126-135 137 139 141 142 152 153 155 174"

func TestBySoftware(t *testing.T) {
	want := parseXids(t, softwareXids)
	for number := range uint64(300) {
		if got := BySoftware(number); got != slices.Contains(want, number) {
			t.Errorf("xid %d: got %v", number, got)
		}
	}
}

// lenientXids are Xids whose catalogue entry requires a reset, while podgauge waits for the driver's recovery action. Their causes include
// heavy time-slicing (109) and links that were taken down on purpose (155).
var lenientXids = []uint64{109, 155}

// TestXidsOfTheCatalogue compares the table with the whole catalogue. A harmless or unlisted Xid never makes a GPU unhealthy until a reset.
func TestXidsOfTheCatalogue(t *testing.T) {
	catalogue := map[uint64]bool{}
	for line := range strings.Lines(string(readTestdata(t, "xids.txt"))) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		xid, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil || len(fields) < 3 || catalogue[xid] {
			t.Fatalf("%q: invalid row, %v", line, err)
		}
		catalogue[xid] = true
		e, _ := Event(xid)
		_, has := Xids[xid]
		ok := true
		switch action := fields[2]; action {
		case "IGNORE", "NONE":
			ok = has && e.Recovery == device.RecoveryNone && e.Action == ""
		case "RESTART_APP", "WORKFLOW_XID_45", "CHECK_UVM", "UPDATE_SWFW":
			ok = has && e.Recovery == device.RecoveryNone
		case "CONTACT_SUPPORT": // Xids of engines that other GPUs have, or of unknown cause
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
			t.Errorf("xid %d: unknown action %q", xid, action)
		}
		if !ok {
			t.Errorf("xid %d, %s: got %+v, want the catalogue's %s", xid, fields[1], e, fields[2])
		}
	}
	if len(catalogue) != 176 {
		t.Errorf("rows of the catalogue: got %d, want 176", len(catalogue))
	}
	for xid := range Xids {
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

// TestXidRows checks names and origins.
func TestXidRows(t *testing.T) {
	origins := map[uint64]string{}
	for origin, xids := range xidOrigins {
		for _, xid := range parseXids(t, xids) {
			origins[xid] = origin
		}
	}
	if len(Xids) != len(origins) {
		t.Errorf("got %d rows, %d with an origin", len(Xids), len(origins))
	}
	for number, row := range Xids {
		if origin, known := origins[number]; !known || row.Origin != origin || row.Name == "" || row.Class.Effect() == "" {
			t.Errorf("xid %d: got %+v, want origin %q", number, row, origin)
		}
	}
	for _, known := range []struct {
		xid  uint64
		name string
	}{{31, "memory page fault"}, {48, "double-bit ECC error"}, {79, "GPU has fallen off the bus"}, {94, "contained memory error"}, {119, "GSP RPC timeout"}} {
		if Xids[known.xid].Name != known.name {
			t.Errorf("name of xid %d: got %q, want %q", known.xid, Xids[known.xid].Name, known.name)
		}
	}
}

// parseXids parses a list with ranges.
func parseXids(t *testing.T, list string) (all []uint64) {
	t.Helper()
	for word := range strings.FieldsSeq(list) {
		from, to, isRange := strings.Cut(word, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.ParseUint(from, 10, 64)
		last, err2 := strconv.ParseUint(to, 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		for n := first; n <= last; n++ {
			all = append(all, n)
		}
	}
	return all
}
