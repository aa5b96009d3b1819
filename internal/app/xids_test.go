package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

// TestXidsPage: the tables in docs/reference/xids.md are what the rows are.
func TestXidsPage(t *testing.T) {
	checkTables(t, "../../docs/reference/xids.md", map[string]string{"classes": classesTable(), "xids": xidsTable(), "kinds": eventTypesTable(), "checks": checksTable()})
}

// classesTable has a line for each class of an Xid.
func classesTable() string {
	var table strings.Builder
	table.WriteString("| class | asks for | hits | what podgauge does |\n|---|---|---|---|\n")
	seen := map[xid.Class]bool{}
	for _, number := range append(slices.Sorted(maps.Keys(xid.Xids)), 0) { // 0 is unknown
		class := xid.ClassOf(number)
		if seen[class] {
			continue
		}
		seen[class] = true
		scope := "the slice that is named"
		if class.WholeGPU() {
			scope = "the whole GPU"
		}
		e := class.Event()
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", e.Class, inlineCode(e.Action), scope, class.Effect())
	}
	return table.String()
}

func xidsTable() string {
	var table strings.Builder
	table.WriteString("| Xid | event | fault of | class | action | recovery |\n|---|---|---|---|---|---|\n")
	for _, number := range slices.Sorted(maps.Keys(xid.Xids)) {
		row := xid.Xids[number]
		e := row.Class.Event()
		fmt.Fprintf(&table, "| %d | %s | %s | `%s` | %s | %s |\n", number, row.Name, row.Origin, e.Class, inlineCode(e.Action), recoveryText(e.Recovery, e.Action))
	}
	return table.String()
}

func eventTypesTable() string {
	var table strings.Builder
	table.WriteString("| report | NVML's type | class | what podgauge does |\n|---|---|---|---|\n")
	for _, k := range nvml.EventTypes {
		fmt.Fprintf(&table, "| `%s` | %#x | `%s` | %s |\n", k.Kind, k.Mask, k.Class.Event().Class, k.Class.Effect())
	}
	return table.String()
}

func checksTable() string {
	var table strings.Builder
	table.WriteString("| reason | when | NVML | action | recovery |\n|---|---|---|---|---|\n")
	for _, c := range collect.Checks() {
		recovery := device.RecoveryChecksPass
		if c.Fault.NeedsReset {
			recovery = device.RecoveryAfterReset
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", c.Fault.Reason, c.Condition, withFieldNames(c.Source()), inlineCode(c.Fault.Action), recoveryText(recovery, c.Fault.Action))
	}
	return table.String()
}

func inlineCode(word string) string {
	if word == "" || strings.Contains(word, " ") {
		return word
	}
	return "`" + word + "`"
}

func recoveryText(h device.Recovery, action string) string {
	switch {
	case h == device.RecoveryAfterReset && action == "reboot":
		return "by a reboot or a power cycle"
	case h == device.RecoveryAfterReset && action == "restart_vm":
		return "by a restart of the virtual machine"
	}
	return map[device.Recovery]string{device.RecoveryNone: "by itself", device.RecoveryChecksPass: "when checks find nothing", device.RecoveryAfterReset: "by a reset"}[h]
}
