package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/xid"
)

// TestXidsPage: the tables in docs/xids.md are what the rows are.
func TestXidsPage(t *testing.T) {
	checkTables(t, "../../docs/xids.md", map[string]string{"classes": classesTable(), "xids": xidsTable(), "kinds": eventTypesTable(), "checks": checksTable()})
}

// classesTable has a line for each class that an Xid has.
func classesTable() string {
	var table strings.Builder
	table.WriteString("| class | asks for | hits | what podgauge does |\n|---|---|---|---|\n")
	var seen []string
	for _, x := range append(xid.All(), unknownXid()) {
		if slices.Contains(seen, x.Class) {
			continue
		}
		seen = append(seen, x.Class)
		scope := "the slice that is named"
		if x.WholeGPU {
			scope = "the whole GPU"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", x.Class, inlineCode(x.Action), scope, x.Effect)
	}
	return table.String()
}

// unknownXid is what one means that the table does not have.
func unknownXid() xid.Info {
	e, alone := xid.Event(0)
	return xid.Info{Class: e.Class, Action: e.Action, WholeGPU: !alone, Effect: xid.UnknownEffect}
}

func xidsTable() string {
	var table strings.Builder
	table.WriteString("| Xid | event | fault of | class | action | recovery |\n|---|---|---|---|---|---|\n")
	for _, x := range xid.All() {
		fmt.Fprintf(&table, "| %d | %s | %s | `%s` | %s | %s |\n", x.Number, x.Name, x.Origin, x.Class, inlineCode(x.Action), recoveryText(x.Recovery, x.Action))
	}
	return table.String()
}

func eventTypesTable() string {
	var table strings.Builder
	table.WriteString("| report | NVML's type | class | what podgauge does |\n|---|---|---|---|\n")
	for _, k := range nvml.EventTypes() {
		fmt.Fprintf(&table, "| `%s` | %#x | `%s` | %s |\n", k.Name, k.Mask, k.Class, k.Effect)
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
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", c.Fault.Reason, c.Condition, withFieldNames(c.Source), inlineCode(c.Fault.Action), recoveryText(recovery, c.Fault.Action))
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
