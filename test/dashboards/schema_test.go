package dashboards

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// invalidDashboards are ways to spoil a dashboard, each of which the schema has to refuse: what stands in
// the file, what takes its place once, and what is said of that.
var invalidDashboards = map[string]struct{ old, spoilt, says string }{
	"a unit is no number":      {`"unit": "watt"`, `"unit": 7`, "not assignable to type 'string'"},
	"no such panel":            {`"type": "stat"`, `"type": "graph"`, "not assignable"},
	"no such option":           {`"showHeader": true`, `"showHeaders": true`, `"showHeaders"' does not exist`},
	"no such value":            {`"cellHeight": "sm"`, `"cellHeight": "small"`, "not assignable"},
	"another panel's option":   {`"graphMode": "none"`, `"graphMode": "none", "rowHeight": 1`, `"rowHeight"' does not exist`},
	"no such style":            {`"drawStyle": "line"`, `"drawStyle": "dots"`, "not assignable"},
	"no such field":            {`"noValue":`, `"noValues":`, `"noValues"' does not exist`},
	"no such threshold":        {`"mode": "absolute"`, `"mode": "relative"`, "not assignable"},
	"no such kind of variable": {`"type": "datasource"`, `"type": "datasources"`, "not assignable"},
	"a place without height":   {`"h": 4`, `"high": 4`, `"high"' does not exist`},
	"a step without a colour":  {`"color": "text",`, ``, "'color' is missing"},
	"a query without its id":   {`"refId": "A",`, ``, "'refId' is missing"},
	"no such refresh":          {`"refresh": 2`, `"refresh": 3`, "not assignable"},
}

var schemaErrorPattern = regexp.MustCompile(`(?m)^(?:.*/)?([^/(]+)\.ts\(\d+,\d+\): error (.*)`)

// TestSchema: Grafana's own types take the dashboards, and none that is spoiled.
func TestSchema(t *testing.T) {
	skipUnlessEnabled(t)
	dir, err := os.MkdirTemp("schema", "check-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	typed := func(name, text string) {
		write(name+".ts", "import type { Board } from \"../types\";\nexport const board: Board = "+text+";\n")
	}
	write("tsconfig.json", `{"extends": "../tsconfig.json"}`)
	names := map[string]bool{}
	for _, b := range readDashboards(t) {
		text, err := os.ReadFile(filepath.Join(dashboardDir, b.Name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		typed(b.Name, string(text))
		names[b.Name] = true
		for what, s := range invalidDashboards {
			if b.Name == "fleet" {
				spoilt := strings.Replace(string(text), s.old, s.spoilt, 1)
				if spoilt == string(text) {
					t.Errorf("%s: %s does not stand in %s", what, s.old, b.Name)
				}
				typed(strings.ReplaceAll(what, " ", "-"), spoilt)
			}
		}
	}
	out, err := exec.Command(filepath.Join("schema", "node_modules", ".bin", "tsc"), "-p", dir).CombinedOutput()
	said := map[string]string{}
	for _, c := range schemaErrorPattern.FindAllStringSubmatch(string(out), -1) {
		said[c[1]] += c[2] + "\n"
	}
	if err == nil || len(said) == 0 {
		t.Fatalf("tsc has refused nothing: %v\n%s", err, out)
	}
	for name := range names {
		if said[name] != "" {
			t.Errorf("%s.json: %s", name, said[name])
		}
	}
	for what, s := range invalidDashboards {
		if got := said[strings.ReplaceAll(what, " ", "-")]; !strings.Contains(got, s.says) {
			t.Errorf("%s: tsc says %q, want %q", what, got, s.says)
		}
	}
	t.Logf("%d dashboards are well typed, %d spoiled ones are refused", len(names), len(invalidDashboards))
}
