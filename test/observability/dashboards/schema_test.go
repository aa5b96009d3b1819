package dashboards

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// invalidDashboards are changes of a dashboard that the schema rejects: the old text, its first replacement, and the error.
var invalidDashboards = map[string]struct{ old, invalid, err string }{
	"a number as unit":          {`"unit": "watt"`, `"unit": 7`, "not assignable to type 'string'"},
	"unknown panel":             {`"type": "stat"`, `"type": "graph"`, "not assignable"},
	"unknown option":            {`"showHeader": true`, `"showHeaders": true`, `"showHeaders"' does not exist`},
	"unknown value":             {`"cellHeight": "sm"`, `"cellHeight": "small"`, "not assignable"},
	"another panel's option":    {`"graphMode": "none"`, `"graphMode": "none", "rowHeight": 1`, `"rowHeight"' does not exist`},
	"unknown style":             {`"drawStyle": "line"`, `"drawStyle": "dots"`, "not assignable"},
	"unknown field":             {`"noValue":`, `"noValues":`, `"noValues"' does not exist`},
	"unknown threshold":         {`"mode": "absolute"`, `"mode": "relative"`, "not assignable"},
	"unknown variable type":     {`"type": "datasource"`, `"type": "datasources"`, "not assignable"},
	"a position without height": {`"h": 4`, `"high": 4`, `"high"' does not exist`},
	"a step without a color":    {`"color": "text",`, ``, "'color' is missing"},
	"a query without an id":     {`"refId": "A",`, ``, "'refId' is missing"},
	"unknown refresh":           {`"refresh": 2`, `"refresh": 3`, "not assignable"},
}

var schemaErrorPattern = regexp.MustCompile(`(?m)^(?:.*/)?([^/(]+)\.ts\(\d+,\d+\): error (.*)`)

// TestSchema checks that Grafana's types accept the dashboards and reject invalid dashboards.
func TestSchema(t *testing.T) {
	skipUnlessEnabled(t)
	dir, err := os.MkdirTemp("schema", "check-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	writeTyped := func(name, text string) {
		write(name+".ts", "import type { Board } from \"../types\";\nexport const board: Board = "+text+";\n")
	}
	write("tsconfig.json", `{"extends": "../tsconfig.json"}`)
	names := map[string]bool{}
	for _, b := range readDashboards(t) {
		text := testfile.Read(t, filepath.Join(dashboardDir, b.Name+".json"))
		writeTyped(b.Name, text)
		names[b.Name] = true
		for name, s := range invalidDashboards {
			if b.Name == "fleet" {
				invalid := strings.Replace(text, s.old, s.invalid, 1)
				if invalid == text {
					t.Errorf("%s: %s lacks %s", name, b.Name, s.old)
				}
				writeTyped(strings.ReplaceAll(name, " ", "-"), invalid)
			}
		}
	}
	out, err := exec.Command(filepath.Join("schema", "node_modules", ".bin", "tsc"), "-p", dir).CombinedOutput()
	errorsOf := map[string]string{}
	for _, c := range schemaErrorPattern.FindAllStringSubmatch(string(out), -1) {
		errorsOf[c[1]] += c[2] + "\n"
	}
	if err == nil || len(errorsOf) == 0 {
		t.Fatalf("tsc: got no errors, want some: %v\n%s", err, out)
	}
	for name := range names {
		if errorsOf[name] != "" {
			t.Errorf("%s.json: %s", name, errorsOf[name])
		}
	}
	for name, s := range invalidDashboards {
		if got := errorsOf[strings.ReplaceAll(name, " ", "-")]; !strings.Contains(got, s.err) {
			t.Errorf("%s: got tsc errors %q, want %q", name, got, s.err)
		}
	}
	t.Logf("%d dashboards accepted, %d invalid dashboards rejected", len(names), len(invalidDashboards))
}
