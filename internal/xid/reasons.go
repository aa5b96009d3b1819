package xid

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	"fabric_not_ready":        "The Fabric Manager has not started the NVLinks of the node's GPUs",
}

var actionTexts = map[string]string{
	ActionRestartApp:      "restart the application",
	ActionRestartVM:       "restart the virtual machine",
	ActionResetGPU:        "reset the GPU",
	"reset_bus":           "reset the bus",
	"drain_and_reset":     "drain, then reset the GPU",
	"drain_p2p":           "drain the peers",
	"recover_imex_domain": "recover the IMEX domain",
	ActionReboot:          "reboot the node",
	ActionInspect:         "inspect the machine",
	ActionReplaceGPU:      "replace the GPU",
}

// OfReason returns the number of a reason that is an Xid.
func OfReason(reason string) (number uint64, ok bool) {
	digits, ok := strings.CutPrefix(reason, "xid_")
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, ok && err == nil
}

// BySoftware reports whether a reason is an error of an application or of the
// driver that leaves the GPU usable. A container can cause such errors at will.
func BySoftware(reason string) bool {
	number, ok := OfReason(reason)
	row := Xids[number]
	return ok && (row.Class == Application ||
		row.Class == Information && row.Origin != fromHardware && row.Origin != fromEnvironment ||
		row.Class == Undecided && row.Origin == fromDriver)
}

// OfDriver reports whether a reason is a state of the driver or of podgauge, and
// not a fault of the device.
func OfDriver(reason string) bool {
	return slices.Contains([]string{"driver", "driver_replaced", "released", "unproven"}, reason)
}

// Actions returns the actions that faults and reports have.
func Actions() []string { return slices.Sorted(maps.Keys(actionTexts)) }

// Reason returns a reason in words: "Xid 79: GPU has fallen off the bus".
func Reason(reason string) string {
	if number, ok := OfReason(reason); ok {
		text := "Xid " + strconv.FormatUint(number, 10)
		if name := Xids[number].Name; name != "" {
			text += ": " + name
		}
		return text
	}
	if action, ok := strings.CutPrefix(reason, "recovery_action_"); ok {
		return "The driver requests a recovery action: " + strings.ReplaceAll(action, "_", " ")
	}
	return cmp.Or(reasonTexts[reason], strings.ReplaceAll(reason, "_", " "))
}

// Action returns an action in words, in lower case: "reboot the node". No
// action is empty.
func Action(action string) string {
	return cmp.Or(actionTexts[action], strings.ReplaceAll(action, "_", " "))
}
