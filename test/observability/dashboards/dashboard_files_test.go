// Package dashboards runs the dashboards' queries and evaluates the rules in a real Prometheus, which scrapes simulated nodes with
// scripted faults and pods. It also checks the dashboards against Grafana's schema.
package dashboards

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	dashboardDir   = "../../../dashboards"
	rulesFile      = "../../../deploy/rules/podgauge.rules.yaml"
	recordingsFile = "../../../deploy/rules/podgauge.recording.yaml"
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
