package dashboards

import (
	"encoding/json"
	"flag"
	"path/filepath"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

var update = flag.Bool("update", false, "write the dashboards")

func generate(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := Files("")
	require.NoError(t, err)
	return files
}

// TestFiles checks that the files of the repository are up to date, and that no other dashboard exists.
func TestFiles(t *testing.T) {
	want := generate(t)
	for file, text := range want {
		testfile.CheckGolden(t, *update, file, string(text))
	}
	found, err := filepath.Glob("*.json")
	require.NoError(t, err)
	for _, file := range found {
		if want[file] == nil {
			t.Errorf("%s is not generated", file)
		}
	}
}

// dashboardFile contains the fields of a dashboard file that dashboardFaults checks.
type dashboardFile struct {
	UID, Title, Description string
	Templating              struct {
		List []struct {
			Name, Type, Description string
			Datasource              *datasource
		}
	}
	Annotations struct {
		List []struct {
			Name       string
			Datasource datasource
			Target     panelTarget
		}
	}
	Panels []*filePanel
}

type filePanel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Datasource               *datasource
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []panelTarget
}

type panelTarget struct {
	Datasource     datasource
	LegendFormat   string
	Instant, Range bool
}

type datasource struct{ Type, UID string }

// selectedDatasource is the Prometheus that the user selects on the dashboard.
var selectedDatasource = datasource{Type: "prometheus", UID: "${datasource}"}

// TestPanels checks that each panel has a unique number, an area without overlap and a description.
func TestPanels(t *testing.T) {
	uids, names := map[string]bool{}, map[string]bool{}
	for _, text := range generate(t) {
		var d dashboardFile
		require.NoError(t, json.Unmarshal(text, &d))
		if uids[d.UID] || names[d.Title] || d.Description == "" || len(d.UID) > 40 {
			t.Errorf("%s, %q: want a unique uid and title, and a description", d.UID, d.Title)
		}
		uids[d.UID], names[d.Title] = true, true
		for _, fault := range dashboardFaults(d) {
			t.Errorf("%s: %s", d.Title, fault)
		}
	}
}

// dashboardFaults returns the faults of a dashboard's panels and variables.
func dashboardFaults(d dashboardFile) (all []string) {
	numbers, titles := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		g := p.GridPos
		if numbers[p.ID] || p.ID == 0 {
			all = append(all, p.Title+": number is not unique")
		}
		if titles[p.Title] {
			all = append(all, p.Title+": title is not unique")
		}
		numbers[p.ID], titles[p.Title] = true, true
		if g.X < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > gridWidth {
			all = append(all, p.Title+": exceeds the width")
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
			all = append(all, v.Name+": no description, or wrong datasource")
		}
	}
	for _, a := range d.Annotations.List {
		if a.Datasource != selectedDatasource || a.Target.Datasource != selectedDatasource {
			all = append(all, a.Name+": wrong datasource")
		}
	}
	return all
}

// panelFaults returns the faults of a panel.
func panelFaults(p *filePanel) (all []string) {
	if p.Description == "" {
		all = append(all, p.Title+": no description")
	}
	if p.FieldConfig.Defaults.Unit == "" && (p.Type == "stat" || p.Type == "timeseries") {
		all = append(all, p.Title+": no unit")
	}
	if len(p.Targets) == 0 {
		all = append(all, p.Title+": no query")
	}
	if p.Datasource == nil || *p.Datasource != selectedDatasource {
		all = append(all, p.Title+": wrong datasource")
	}
	for _, t := range p.Targets {
		if t.Datasource != selectedDatasource {
			all = append(all, p.Title+": wrong datasource of a query")
		}
		if t.Range == t.Instant || t.Range && t.LegendFormat == "" {
			all = append(all, p.Title+": want a range query with a legend, or an instant query")
		}
	}
	return all
}
