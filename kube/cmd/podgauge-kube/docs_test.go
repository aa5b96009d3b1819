package main

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write docs/reference/podgauge-kube.md")

// TestFlagTables checks that docs/reference/podgauge-kube.md has the flags.
func TestFlagTables(t *testing.T) {
	log := &pflag.FlagSet{}
	(&logOptions{}).addFlags(log)
	docs.CheckTables(t, *update, "../../../docs/reference/podgauge-kube.md", map[string]string{
		"controller": flagTable(newControllerCommand(nil).Flags()),
		"node":       flagTable(newNodeCommand(nil).Flags()),
		"log":        flagTable(log),
	})
}

// flagTable returns the flags in the order of --help.
func flagTable(flags *pflag.FlagSet) string {
	table := strings.Builder{}
	table.WriteString("|flag|default|purpose|\n|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		_, usage := pflag.UnquoteUsage(f)
		fmt.Fprintf(&table, "|`--%s`|%s|%s|\n", f.Name, value, strings.ReplaceAll(usage, "|", `\|`))
	})
	return table.String()
}
