package xid_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/xid"
)

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
		if got := xid.Reason(reason); got != want {
			t.Errorf("%s: got %q, want %q", reason, got, want)
		}
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
		if got := xid.OfDriver(reason); got != want {
			t.Errorf("%s: got %v, want %v", reason, got, want)
		}
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
