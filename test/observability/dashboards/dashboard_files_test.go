// Package dashboards runs the dashboards' queries and evaluates the rules in a real Prometheus, which scrapes simulated nodes with
// scripted faults and pods. It also checks the dashboards against Grafana's schema.
package dashboards

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	dashboardDir   = "../../../dashboards"
	rulesFile      = "../../../deploy/rules/podgauge.rules.yaml"
	recordingsFile = "../../../deploy/rules/podgauge.recording.yaml"
	jobsFile       = "../../../deploy/rules/podgauge.jobs.yaml"
	costFile       = "../../../deploy/rules/podgauge.cost.yaml"
	pricesFile     = "testdata/prices.yaml"

	reliabilityFile = "../../../deploy/rules/podgauge.reliability.yaml"
)

// dashboardFile has the queries and variables of a dashboard's file.
type dashboardFile struct {
	Name       string `json:"-"` // of the file, without .json
	Title      string `json:"title"`
	Templating struct {
		List []boardVariable `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Name   string      `json:"name"`
			Target boardTarget `json:"target"`
		} `json:"list"`
	} `json:"annotations"`
	Panels []struct {
		Title    string        `json:"title"`
		Type     string        `json:"type"`
		Interval string        `json:"interval"` // shortest step
		Targets  []boardTarget `json:"targets"`
		// Transformations are passed to Grafana.
		Transformations json.RawMessage `json:"transformations"`
	} `json:"panels"`
}

type boardVariable struct {
	Name     string          `json:"name"`
	Type     string          `json:"type"`
	Query    json.RawMessage `json:"query"`
	AllValue string          `json:"allValue"`
	Multi    bool            `json:"multi"`
	Hide     int             `json:"hide"`
	All      bool            `json:"includeAll"`
}

type boardTarget struct {
	Expr    string `json:"expr"`
	RefID   string `json:"refId"`
	Instant bool   `json:"instant"`
}

// panelQuery is a query of a panel or annotation.
type panelQuery struct {
	boardTarget
	board    *dashboardFile
	location string // "fleet: Power: A"
	interval string // of a panel with steps longer than a run, which is queried at single times
}

func readDashboards(t *testing.T) (all []*dashboardFile) {
	t.Helper()
	files, err := filepath.Glob(dashboardDir + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dashboards: %v", err)
	}
	for _, file := range files {
		b := &dashboardFile{Name: strings.TrimSuffix(filepath.Base(file), ".json")}
		if err := json.Unmarshal([]byte(testfile.Read(t, file)), b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, b)
	}
	return all
}

// queries returns all queries of a dashboard except those of its variables.
func (b *dashboardFile) queries() (all []panelQuery) {
	for _, n := range b.Annotations.List {
		all = append(all, panelQuery{n.Target, b, b.Name + ": annotation " + n.Name, ""})
	}
	for _, p := range b.Panels {
		for _, t := range p.Targets {
			all = append(all, panelQuery{t, b, b.Name + ": " + p.Title + ": " + t.RefID, p.Interval})
		}
	}
	return all
}

// alertOrRecording is a rule of a file.
type alertOrRecording struct {
	Alert, Record, Expr string
}

func readRules(t *testing.T, file string) (all []alertOrRecording) {
	t.Helper()
	var content struct {
		Groups []struct{ Rules []alertOrRecording }
	}
	if err := yaml.Unmarshal([]byte(testfile.Read(t, file)), &content); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, g := range content.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no rules", file)
	}
	return all
}

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
		expect.Contains(t, errorsOf[strings.ReplaceAll(name, " ", "-")], s.err, name)
	}
	t.Logf("%d dashboards accepted, %d invalid dashboards rejected", len(names), len(invalidDashboards))
}
