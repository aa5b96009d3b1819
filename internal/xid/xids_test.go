package xid_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// xidCatalogue is NVIDIA's catalogue by class. A second list finds mistakes in the table.
var xidCatalogue = map[xid.Class]string{
	xid.Application: "8 11 13 25 31 39-41 47 60 65 68 69 70-72 73 75-77 80 82-86 88 89 96-105 126-135 139 142",
	xid.Information: "14 37 38 43 44 45 63 66 67 78 92 93 106-108 121 137 141 152 153 157 159-161 162-165 166 168 170-172 174 176",
	xid.Contained:   "32 94",
	xid.Undecided:   "74 109 144-150 154 155",
	xid.Memory:      "48 175",
	xid.Broken:      "46 62 64 95 110 119 120 136 140 143 156 158 169 173",
	xid.Fallen:      "79 167",
	xid.Locked:      "151",
	xid.Unpowered:   "54",
	xid.Unknown:     "1 61 200 999 123456",
}

// classEvents are the events for the health.Monitor.
var classEvents = map[xid.Class]device.Event{
	xid.Application: {Class: "application", Action: "restart_app"},
	xid.Information: {Class: "information"},
	xid.Contained:   {Class: "contained", Action: "restart_app"},
	xid.Undecided:   {Class: "undecided", Recovery: device.RecoveryChecksPass},
	xid.Memory:      {Class: "memory", Recovery: device.RecoveryAfterReset, Action: "reset_gpu"}, // without a recovery action of the driver
	xid.Broken:      {Class: "broken", Recovery: device.RecoveryAfterReset, Action: "reset_gpu"},
	xid.Fallen:      {Class: "fallen", Recovery: device.RecoveryAfterReset, Action: "reboot"},
	xid.Locked:      {Class: "locked", Recovery: device.RecoveryAfterReset, Action: "restart_vm"},
	xid.Unpowered:   {Class: "unpowered", Recovery: device.RecoveryAfterReset, Action: "inspect"},
	xid.Unknown:     {Class: "unknown", Recovery: device.RecoveryChecksPass, Action: "inspect"},
}

// wholeGPUClasses are the classes that concern a whole GPU, also with the address of a MIG device.
var wholeGPUClasses = []xid.Class{
	xid.Undecided, xid.Memory, xid.Broken, xid.Fallen, xid.Locked, xid.Unpowered,
}

// TestXids compares each Xid's event with the catalogue.
func TestXids(t *testing.T) {
	cases := map[uint64]bool{}
	for class, numbers := range xidCatalogue {
		whole := slices.Contains(wholeGPUClasses, class)
		for _, number := range parseXids(t, numbers) {
			cases[number] = true
			want := classEvents[class]
			if number >= 144 && number <= 150 {
				want.Severity = device.SeverityUndecided
			}
			if got, migDeviceOnly := xid.Event(number); got != want || migDeviceOnly == whole {
				t.Errorf("xid %d: got %+v, MIG device only %v; want %+v, %v", number, got, migDeviceOnly, want, !whole)
			}
		}
	}
	for number := range xid.Xids {
		if !cases[number] {
			t.Errorf("test case for xid %d is missing", number)
		}
	}
}

// softwareXids are the errors of applications and of the driver that leave the GPU usable.
const softwareXids = "8 11 13 14 25 31 37-41 43-45 47 60 65-73 75-77 80 82-86 88 89 96-105 108 109 126-135 137 139 141 142 152 153 155 174"

func TestBySoftware(t *testing.T) {
	want := parseXids(t, softwareXids)
	for number := range uint64(300) {
		expect.Equal(t, xid.BySoftware(fmt.Sprint("xid_", number)), slices.Contains(want, number), "xid", number)
	}
}

// lenientXids are Xids whose catalogue entry requires a reset, while podgauge waits for the driver's recovery action. Their causes include
// heavy time-slicing (109) and links that were taken down on purpose (155).
var lenientXids = []uint64{109, 155}

// TestXidsOfTheCatalogue compares the table with the whole catalogue. A harmless or unlisted Xid never makes a GPU unhealthy until a reset.
func TestXidsOfTheCatalogue(t *testing.T) {
	text := testfile.Read(t, "testdata/xids.txt")
	catalogue := map[uint64]bool{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		number, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil || len(fields) < 3 || catalogue[number] {
			t.Fatalf("%q: invalid row, %v", line, err)
		}
		catalogue[number] = true
		e, _ := xid.Event(number)
		_, has := xid.Xids[number]
		ok := true
		switch action := fields[2]; action {
		case "IGNORE", "NONE":
			ok = has && e.Recovery == device.RecoveryNone && e.Action == ""
		case "RESTART_APP", "WORKFLOW_XID_45", "CHECK_UVM", "UPDATE_SWFW":
			ok = has && e.Recovery == device.RecoveryNone
		case "CONTACT_SUPPORT": // Xids of engines that other GPUs have, or of unknown cause
			ok = has == (e.Recovery == device.RecoveryNone) && e.Recovery != device.RecoveryAfterReset
		case "RESET_GPU":
			ok = has && (e.Recovery == device.RecoveryAfterReset && e.Action == "reset_gpu" || e.Recovery == device.RecoveryChecksPass && slices.Contains(lenientXids, number))
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
			t.Errorf("xid %d: unknown action %q", number, action)
		}
		if !ok {
			t.Errorf("xid %d, %s: got %+v, want the catalogue's %s", number, fields[1], e, fields[2])
		}
	}
	expect.Equal(t, len(catalogue), 176, "rows of the catalogue")
	for number := range xid.Xids {
		if !catalogue[number] {
			t.Errorf("the catalogue lacks xid %d", number)
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
		require.NoError(t, errors.Join(err1, err2))
		for n := first; n <= last; n++ {
			all = append(all, n)
		}
	}
	return all
}

func TestReasonText(t *testing.T) {
	for reason, want := range map[string]string{
		"xid_79":                       "Xid 79: GPU has fallen off the bus",
		"xid_999":                      "Xid 999",
		"xid_":                         "xid ",
		"xid_79x":                      "xid 79x",
		"lost":                         "The GPU is lost and all calls to it fail",
		"recovery_action_drain_p2p":    "The driver requests a recovery action: drain p2p",
		"reason_of_a_later_version":    "reason of a later version",
		"xid_99999999999999999999999":  "xid 99999999999999999999999",
		"recovery_action_system_reset": "The driver requests a recovery action: system reset",
	} {
		expect.Equal(t, xid.Reason(reason), want, reason)
	}
	for code, row := range xid.Xids {
		if row.Name == "" {
			t.Errorf("Xid %d: got no text", code)
		}
	}
}

// TestReasonsOfChecks checks that each reason of a check has a text.
func TestReasonsOfChecks(t *testing.T) {
	for _, c := range collect.Checks() {
		reason := c.Fault.Reason
		if text := xid.Reason(reason); text == strings.ReplaceAll(reason, "_", " ") {
			t.Errorf("%s: got no text", reason)
		}
	}
}

// TestOfDriver checks that no fault of a device is a state of the driver.
func TestOfDriver(t *testing.T) {
	for reason, want := range map[string]bool{
		"driver": true, "released": true, "driver_replaced": true, "unproven": true,
		"": false, "lost": false, "xid_79": false, "retired": false,
	} {
		expect.Equal(t, xid.OfDriver(reason), want, reason)
	}
}

// TestActions checks that each action of an Xid or a check is listed.
func TestActions(t *testing.T) {
	all := append(xid.Actions(), "")
	for code := range xid.Xids {
		if e, _ := xid.Event(code); !slices.Contains(all, e.Action) {
			t.Errorf("Xid %d: got action %s, want one of %q", code, e.Action, all)
		}
	}
	for _, c := range collect.Checks() {
		asReported := strings.HasPrefix(c.Fault.Reason, "recovery_action_")
		if !asReported && !slices.Contains(all, c.Fault.Action) {
			t.Errorf("check %s: got action %s, want one of %q", c.Fault.Reason, c.Fault.Action, all)
		}
	}
}
