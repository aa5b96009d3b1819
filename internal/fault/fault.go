// Package fault describes reasons and actions of health in words.
package fault

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/xid"
)

var reasonTexts = map[string]string{
	"lost":                    "The GPU is lost and all calls to it fail",
	"gone":                    "The device is gone",
	"not_responding":          "A call to the GPU hangs",
	"reset_required":          "The driver requires a reset",
	"unproven":                "No check has passed since podgauge started",
	"retired":                 "Retired by an operator",
	"row_remap_failure":       "Remapping a memory row to a spare row failed",
	"sram_threshold_exceeded": "SRAM exceeded its threshold of uncorrectable errors",
	"unrepairable_memory":     "GPU memory has errors that cannot be repaired",
	"confidential_computing":  "The GPUs are not ready for confidential computing",
	"mig_mode_unknown":        "The MIG mode is unknown",
	"driver":                  "All calls to the driver fail",
	"check_failed":            "A check of the GPU failed",
	"fabric":                  "The GPU failed to join the NVSwitch fabric",
	"fabric_not_joined":       "The GPU has not yet joined the NVSwitch fabric",
}

var actionTexts = map[string]string{
	"restart_app":         "restart the application",
	"restart_vm":          "restart the virtual machine",
	"reset_gpu":           "reset the GPU",
	"reset_bus":           "reset the bus",
	"drain_and_reset":     "drain, then reset the GPU",
	"drain_p2p":           "drain the peers",
	"recover_imex_domain": "recover the IMEX domain",
	"reboot":              "reboot the node",
	"inspect":             "inspect the machine",
	"replace":             "replace the GPU",
}

// Xid returns the number of a reason that is an Xid.
func Xid(reason string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(reason, "xid_")
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil
}

// BySoftware reports whether a reason is an Xid as in xid.BySoftware.
func BySoftware(reason string) bool {
	number, ok := Xid(reason)
	return ok && xid.BySoftware(number)
}

// XidName returns the name of an Xid, empty if unknown.
func XidName(number uint64) string { return xid.Xids[number].Name }

// Reason returns a reason in words: "Xid 79: GPU has fallen off the bus".
func Reason(reason string) string {
	if number, ok := Xid(reason); ok {
		text := "Xid " + strconv.FormatUint(number, 10)
		if name := XidName(number); name != "" {
			text += ": " + name
		}
		return text
	}
	if action, ok := strings.CutPrefix(reason, "recovery_action_"); ok {
		return "The driver requests a recovery action: " + strings.ReplaceAll(action, "_", " ")
	}
	return cmp.Or(reasonTexts[reason], strings.ReplaceAll(reason, "_", " "))
}

// Action returns an action in words, in lower case: "reboot the node". No action is empty.
func Action(action string) string {
	return cmp.Or(actionTexts[action], strings.ReplaceAll(action, "_", " "))
}
