package dashboards

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
)

// tableQuery is what a table's queries were answered with at some moment, for Grafana to make a table
// of, as schema/tables.mjs reads it.
type tableQuery struct {
	Location        string          `json:"where"`
	Transformations json.RawMessage `json:"transformations"`
	Answers         []queryAnswer   `json:"answers"`
}

type queryAnswer struct {
	RefID  string           `json:"refId"`
	Series []answeredSeries `json:"series"`
}

type answeredSeries struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// renderedTable is what has come of it.
type renderedTable struct {
	Location string `json:"where"`
	Fields   []struct {
		Name   string `json:"name"`
		Values []any  `json:"values"`
	} `json:"fields"`
}

// checkTables has Grafana's transformations make the tables of what Prometheus answers, at moments all
// through the run: each has a line for each thing, and a column for each of what is told of it.
func (c *dashboardRun) checkTables(all []*dashboardFile) {
	var questions []tableQuery
	for _, b := range all {
		for _, s := range c.selections(b) {
			for _, p := range b.Panels {
				for at := c.end; p.Type == "table" && at.After(c.begin); at = at.Add(-30 * time.Second) {
					a := tableQuery{Location: b.Name + ": " + p.Title, Transformations: p.Transformations}
					for _, t := range p.Targets {
						a.Answers = append(a.Answers, queryAnswer{t.RefID, c.querySeries(t.Expr, s.all, at)})
					}
					questions = append(questions, a)
				}
			}
		}
	}
	made := makeTables(c.T, questions)
	lines := 0
	for i, q := range questions {
		for _, wrong := range q.tableErrors(made[i]) {
			c.Error(wrong)
		}
		if len(made[i].Fields) > 0 {
			lines += len(made[i].Fields[0].Values)
		}
	}
	c.Logf("%d tables were made, with %d lines", len(questions), lines)
}

// querySeries are the series that come of a query.
func (c *dashboardRun) querySeries(expr string, values variableValues, at time.Time) []answeredSeries {
	c.Helper()
	filled, err := c.expandVariables(expr, values)
	if err != nil {
		c.Fatal(err)
	}
	found, _, _, err := c.Query(c.Context(), filled, at)
	if err != nil {
		c.Fatalf("%s: %v", filled, err)
	}
	all := []answeredSeries{}
	for _, s := range found.(model.Vector) {
		of := map[string]string{}
		for name, value := range s.Metric {
			of[string(name)] = string(value)
		}
		if value := float64(s.Value); !math.IsNaN(value) && !math.IsInf(value, 0) {
			all = append(all, answeredSeries{of, value})
		}
	}
	return all
}

// makeTables has Grafana make them.
func makeTables(t *testing.T, questions []tableQuery) (made []renderedTable) {
	t.Helper()
	text, err := json.Marshal(questions)
	if err != nil {
		t.Fatal(err)
	}
	node := exec.Command("node", "schema/tables.mjs")
	node.Stdin = bytes.NewReader(text)
	var says bytes.Buffer
	node.Stderr = &says
	out, err := node.Output()
	if err == nil {
		err = json.Unmarshal(out, &made)
	}
	if err != nil || len(made) != len(questions) {
		t.Fatalf("%d tables of %d: %v\n%s", len(made), len(questions), err, tail(says.String(), 2000))
	}
	return made
}

// columnTitles are the columns that a panel's transformations name, and of which label or query they are;
// hidden are those that they leave out.
func (q tableQuery) columnTitles() (titles map[string]string, hidden map[string]bool) {
	var all []struct {
		Options struct {
			RenameByName  map[string]string `json:"renameByName"`
			ExcludeByName map[string]bool   `json:"excludeByName"`
		} `json:"options"`
	}
	if err := json.Unmarshal(q.Transformations, &all); err != nil {
		return nil, nil
	}
	titles, hidden = map[string]string{}, map[string]bool{}
	for _, t := range all {
		maps.Copy(hidden, t.Options.ExcludeByName)
		for of, title := range t.Options.RenameByName {
			if titles[title] == "" || of != "Value" {
				titles[title] = of
			}
		}
	}
	return titles, hidden
}

// tableErrors are what is wrong with a table: columns without a title, or with one twice; values that
// were lost; and lines that are of the same.
func (q tableQuery) tableErrors(made renderedTable) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, q.Location+": "+fmt.Sprintf(format, args...)) }
	titles, hidden := q.columnTitles()
	values, lines := map[string]int{}, map[int]string{}
	seen := map[string]bool{}
	for _, f := range made.Fields {
		of, named := titles[f.Name]
		if !named {
			say("a column is called %s", f.Name)
		}
		if seen[f.Name] {
			say("two columns are called %s", f.Name)
		}
		seen[f.Name] = true
		for line, value := range f.Values {
			switch {
			case strings.HasPrefix(of, "Value") && value != nil:
				values[strings.TrimPrefix(of, "Value #")]++
			case !strings.HasPrefix(of, "Value") && value != nil:
				lines[line] += fmt.Sprintf("%s=%v ", f.Name, value)
			}
		}
	}
	for _, a := range q.Answers {
		if !hidden["Value #"+a.RefID] && values[a.RefID] != len(a.Series) {
			say("%d values of %s are shown, of %d", values[a.RefID], a.RefID, len(a.Series))
		}
	}
	all := slices.Sorted(maps.Values(lines))
	for i := range all {
		if i > 0 && strings.TrimSpace(all[i-1]) == strings.TrimSpace(all[i]) {
			say("two lines are of %s", all[i])
		}
	}
	return wrong
}

// TestTableFaults: what is looked for is found where it is, in tables that Grafana has made.
func TestTableFaults(t *testing.T) {
	skipUnlessEnabled(t)
	const organize = `[{"id":"merge","options":{}},{"id":"organize","options":{"excludeByName":{"Time":true},"indexByName":{},"renameByName":%s}}]`
	one := func(node string, value float64) answeredSeries {
		return answeredSeries{map[string]string{"node": node}, value}
	}
	good := `{"node":"Node","Value #A":"Devices","Value #B":"Held"}`
	cases := []struct {
		transformations string
		b               []answeredSeries
		says            string
	}{
		{fmt.Sprintf(organize, good), []answeredSeries{one("a", 1), one("b", 2)}, ""},
		{fmt.Sprintf(organize, good), []answeredSeries{}, ""},
		{fmt.Sprintf(organize, `{"node":"Node","Value #A":"Devices"}`), []answeredSeries{one("a", 1)}, "a column is called Value #B"},
		{fmt.Sprintf(organize, `{"node":"Node","Value #A":"Node","Value #B":"Held"}`), []answeredSeries{one("a", 1)}, "two columns are called Node"},
		{fmt.Sprintf(organize, good), []answeredSeries{one("a", 1), one("a", 2)}, "two lines are of Node=a"},
		{`[{"id":"merge","options":{}}]`, []answeredSeries{one("a", 1)}, "a column is called Time"},
	}
	var questions []tableQuery
	for _, c := range cases {
		questions = append(questions, tableQuery{"a table", json.RawMessage(c.transformations), []queryAnswer{{"A", []answeredSeries{one("a", 3), one("b", 4)}}, {"B", c.b}}})
	}
	for i, made := range makeTables(t, questions) {
		got := strings.Join(questions[i].tableErrors(made), "; ")
		if want := cases[i].says; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%s, %v: %q, want %q", cases[i].transformations, cases[i].b, got, want)
		}
	}
}
