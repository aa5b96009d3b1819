package dashboards

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the dashboards and the recording rules")

const rulesFile = "../deploy/rules/podgauge.recording.yaml"

// TestFiles: what lies in the repository is what is made, and nothing else does.
func TestFiles(t *testing.T) {
	want := Files()
	want[rulesFile] = RecordingRules()
	for file, text := range want {
		if *update {
			if err := os.WriteFile(file, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s is not what is made (%v); make golden writes it anew", file, err)
		}
	}
	found, err := filepath.Glob("*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		if want[file] == nil {
			t.Errorf("nothing makes %s", file)
		}
	}
}

// TestFilesAreTheSameEachTime: they are made of maps in part.
func TestFilesAreTheSameEachTime(t *testing.T) {
	first := Files()
	for range 10 {
		for file, text := range Files() {
			if !bytes.Equal(text, first[file]) {
				t.Fatalf("%s is made differently each time", file)
			}
		}
	}
}

// TestPanels: each has a number and a place of its own, and says what it shows.
func TestPanels(t *testing.T) {
	uids, names := map[string]bool{}, map[string]bool{}
	for _, d := range []dashboard{fleetDashboard(false), fleetDashboard(true), workloadDashboard(), deviceDashboard(), podgaugeDashboard()} {
		if uids[d.UID] || names[d.Title] || d.Description == "" || len(d.UID) > 40 {
			t.Errorf("%s, %q: uid and title have to be its own, with a description", d.UID, d.Title)
		}
		uids[d.UID], names[d.Title] = true, true
		for _, fault := range dashboardFaults(d) {
			t.Errorf("%s: %s", d.Title, fault)
		}
	}
}

// TestFaultsAreFound: what TestPanels looks for is found where it is.
func TestFaultsAreFound(t *testing.T) {
	for name, spoil := range map[string]func(d *dashboard){
		"same number":    func(d *dashboard) { d.Panels[2].ID = d.Panels[1].ID },
		"overlap":        func(d *dashboard) { d.Panels[2].GridPos = d.Panels[1].GridPos },
		"too wide":       func(d *dashboard) { d.Panels[1].GridPos.W = 25 },
		"no description": func(d *dashboard) { d.Panels[1].Description = "" },
		"no unit":        func(d *dashboard) { d.Panels[1].FieldConfig.Defaults.Unit = "" },
		"no query":       func(d *dashboard) { d.Panels[1].Targets = nil },
		"datasource":     func(d *dashboard) { d.Panels[1].Datasource = &datasource{"prometheus", "P1809F7CD0C75ACF3"} },
		"of a query":     func(d *dashboard) { d.Panels[1].Targets[0].Datasource.UID = "P1809F7CD0C75ACF3" },
		"of a variable":  func(d *dashboard) { d.Templating.List[1].Datasource = nil },
	} {
		d := fleetDashboard(false)
		if spoil(&d); len(dashboardFaults(d)) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

// dashboardFaults are what is wrong with a dashboard's panels and variables.
func dashboardFaults(d dashboard) (all []string) {
	numbers, titles := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		g := p.GridPos
		if numbers[p.ID] || p.ID == 0 {
			all = append(all, p.Title+": has another's number")
		}
		if titles[p.Title] {
			all = append(all, p.Title+": two are called so")
		}
		numbers[p.ID], titles[p.Title] = true, true
		if g.X < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > gridWidth {
			all = append(all, p.Title+": is not within the width")
		}
		for _, o := range d.Panels[:i] {
			if q := o.GridPos; g.X < q.X+q.W && q.X < g.X+g.W && g.Y < q.Y+q.H && q.Y < g.Y+g.H {
				all = append(all, p.Title+": overlaps "+o.Title)
			}
		}
		if p.Type != "row" {
			all = append(all, panelFaults(p)...)
		}
	}
	for _, v := range d.Templating.List {
		if v.Description == "" || (v.Type == "query") != (v.Datasource != nil) || v.Datasource != nil && *v.Datasource != selectedDatasource {
			all = append(all, v.Name+": no description, or not of the chosen Prometheus")
		}
	}
	for _, a := range d.Annotations.List {
		if a.Datasource != selectedDatasource || a.Target.Datasource != selectedDatasource {
			all = append(all, a.Name+": not of the chosen Prometheus")
		}
	}
	return all
}

// panelFaults is what a panel does not have and should.
func panelFaults(p *panel) (all []string) {
	if p.Description == "" {
		all = append(all, p.Title+": says not what it shows")
	}
	if p.FieldConfig.Defaults.Unit == "" && (p.Type == "stat" || p.Type == "timeseries") {
		all = append(all, p.Title+": has no unit")
	}
	if len(p.Targets) == 0 {
		all = append(all, p.Title+": asks for nothing")
	}
	if p.Datasource == nil || *p.Datasource != selectedDatasource {
		all = append(all, p.Title+": is not of the chosen Prometheus")
	}
	for _, t := range p.Targets {
		if t.Datasource != selectedDatasource {
			all = append(all, p.Title+": a query is not of the chosen Prometheus")
		}
		if t.Range == t.Instant || t.Range && t.LegendFormat == "" {
			all = append(all, p.Title+": a query is of a range, with names, or of an instant")
		}
	}
	return all
}
