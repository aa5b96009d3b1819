package repo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/helpers/docs"
)

// TestXidsPage checks that docs/reference/xids.md has the classes, Xids, events and checks of the code.
func TestXidsPage(t *testing.T) {
	docs.CheckTables(t, *update, "../../docs/reference/xids.md", map[string]string{"classes": classesTable(), "xids": xidsTable(), "kinds": eventTypesTable(), "checks": checksTable()})
}

// classesTable returns a table with a row for each class of Xids.
func classesTable() string {
	var table strings.Builder
	table.WriteString("|class|action|scope|effect|\n|---|---|---|---|\n")
	seen := map[xid.Class]bool{}
	for _, number := range append(slices.Sorted(maps.Keys(xid.Xids)), 0) { // 0 is unknown
		class := xid.ClassOf(number)
		if seen[class] {
			continue
		}
		seen[class] = true
		scope := "reported device"
		if class.WholeGPU() {
			scope = "whole GPU"
		}
		e := class.Event()
		fmt.Fprintf(&table, "|`%s`|%s|%s|%s|\n", e.Class, inlineCode(e.Action), scope, class.Effect())
	}
	return table.String()
}

func xidsTable() string {
	var table strings.Builder
	table.WriteString("|Xid|error|origin|class|\n|---|---|---|---|\n")
	for _, number := range slices.Sorted(maps.Keys(xid.Xids)) {
		row := xid.Xids[number]
		fmt.Fprintf(&table, "|%d|%s|%s|`%s`|\n", number, row.Name, row.Origin, row.Class.Event().Class)
	}
	return table.String()
}

func eventTypesTable() string {
	var table strings.Builder
	table.WriteString("|reason|NVML event type|class|\n|---|---|---|\n")
	for _, k := range nvml.EventTypes {
		fmt.Fprintf(&table, "|`%s`|%#x|`%s`|\n", k.Kind, k.Mask, k.Class.Event().Class)
	}
	return table.String()
}

func checksTable() string {
	var table strings.Builder
	table.WriteString("|reason|condition|NVML|action|recovery|\n|---|---|---|---|---|\n")
	for _, c := range collect.Checks() {
		recovery := "when the condition ends"
		if c.Fault.NeedsReset {
			recovery = "after a reset"
		}
		fmt.Fprintf(&table, "|`%s`|%s|%s|%s|%s|\n", c.Fault.Reason, c.Condition, withFieldNames(c.Source()), inlineCode(c.Fault.Action), recovery)
	}
	return table.String()
}

func inlineCode(word string) string {
	if word == "" || strings.Contains(word, " ") {
		return word
	}
	return "`" + word + "`"
}
