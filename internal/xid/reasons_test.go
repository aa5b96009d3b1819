package xid_test

import (
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
