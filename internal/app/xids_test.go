package app

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
)

// TestXidsPage: the tables in docs/xids.md are what the rows are.
func TestXidsPage(t *testing.T) {
	hasTables(t, "../../docs/xids.md", map[string]string{"classes": classesTable(), "xids": xidsTable(), "kinds": kindsTable(), "checks": checksTable()})
}

// classesTable has a line for each class that an Xid has.
func classesTable() string {
	var table strings.Builder
	table.WriteString("| class | asks for | hits | what podgauge does |\n|---|---|---|---|\n")
	var told []string
	for _, x := range append(nvml.Xids(), unknownXid()) {
		if slices.Contains(told, x.Class) {
			continue
		}
		told = append(told, x.Class)
		hits := "the slice that is named"
		if x.WholeGPU {
			hits = "the whole GPU"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", x.Class, code(x.Action), hits, x.Means)
	}
	return table.String()
}

// unknownXid is what one means that the table does not have.
func unknownXid() nvml.Xid {
	e, alone := nvml.Means(0)
	return nvml.Xid{Class: e.Class, Action: e.Action, WholeGPU: !alone, Means: nvml.Unknown}
}

func xidsTable() string {
	var table strings.Builder
	table.WriteString("| Xid | what happened | fault of | class | asks for | heals |\n|---|---|---|---|---|---|\n")
	for _, x := range nvml.Xids() {
		fmt.Fprintf(&table, "| %d | %s | %s | `%s` | %s | %s |\n", x.Number, x.Name, x.Fault, x.Class, code(x.Action), heals(x.Heals, x.Action))
	}
	return table.String()
}

func kindsTable() string {
	var table strings.Builder
	table.WriteString("| report | NVML's type | class | what podgauge does |\n|---|---|---|---|\n")
	for _, k := range nvml.Kinds() {
		fmt.Fprintf(&table, "| `%s` | %#x | `%s` | %s |\n", k.Name, k.Type, k.Class, k.Means)
	}
	return table.String()
}

func checksTable() string {
	var table strings.Builder
	table.WriteString("| reason | when | NVML | asks for | heals |\n|---|---|---|---|---|\n")
	for _, c := range nvml.Checks() {
		ends := device.ByCheck
		if c.Finds.ByReset {
			ends = device.ByReset
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s | %s |\n", c.Finds.Reason, c.When, c.Source, code(c.Finds.Action), heals(ends, c.Finds.Action))
	}
	return table.String()
}

func code(word string) string {
	if word == "" || strings.Contains(word, " ") {
		return word
	}
	return "`" + word + "`"
}

func heals(h device.Heals, action string) string {
	switch {
	case h == device.ByReset && action == "reboot":
		return "by a reboot or a power cycle"
	case h == device.ByReset && action == "restart_vm":
		return "by a restart of the virtual machine"
	}
	return map[device.Heals]string{device.ByItself: "by itself", device.ByCheck: "when checks find nothing", device.ByReset: "by a reset"}[h]
}
