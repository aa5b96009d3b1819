package openmetrics

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/rulefmt"

	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// dashboardModel has the queries, variables and table columns of a dashboard's file.
type dashboardModel struct {
	UID        string `json:"uid"`
	Templating struct {
		List []struct {
			Name  string          `json:"name"`
			Type  string          `json:"type"`
			Query json.RawMessage `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Annotations struct {
		List []struct {
			Name        string           `json:"name"`
			Target      panelQueryTarget `json:"target"`
			TitleFormat string           `json:"titleFormat"`
			TextFormat  string           `json:"textFormat"`
			TagKeys     string           `json:"tagKeys"`
		} `json:"list"`
	} `json:"annotations"`
	Panels []struct {
		Title           string             `json:"title"`
		Targets         []panelQueryTarget `json:"targets"`
		Transformations []panelTransform   `json:"transformations"`
		FieldConfig     json.RawMessage    `json:"fieldConfig"`
	} `json:"panels"`
}

type panelQueryTarget struct {
	Expr         string `json:"expr"`
	RefID        string `json:"refId"`
	LegendFormat string `json:"legendFormat"`
}

type panelTransform struct {
	ID      string `json:"id"`
	Options struct {
		RenameByName map[string]string `json:"renameByName"`
	} `json:"options"`
}

// readDashboards returns the dashboards by name.
func readDashboards(t *testing.T) map[string]dashboardModel {
	t.Helper()
	all := map[string]dashboardModel{}
	for _, file := range filesOf(t, "../../../dashboards/*.json") {
		var b dashboardModel
		if err := json.Unmarshal([]byte(testfile.Read(t, file)), &b); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = b
	}
	return all
}

// panelTarget is a query of a panel.
type panelTarget struct {
	panelQueryTarget
	title string
}

// targets returns the queries of all panels.
func (b dashboardModel) targets() (all []panelTarget) {
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			all = append(all, panelTarget{q, p.Title})
		}
	}
	return all
}

// TestRecordingRules checks that each rule is valid, uses existing families, keeps the label cluster, and has the labels in its name, or
// those of serviceSeries.
func TestRecordingRules(t *testing.T) {
	families := readCatalogue(t)
	check := func(r rulefmt.Rule, labels []string) {
		known, wrong := families.checkExpr(r.Expr)
		if got := slices.Sorted(maps.Keys(known)); !slices.Equal(got, labels) {
			t.Errorf("labels of %s: got %s, want %s", r.Record, got, labels)
		}
		for _, problem := range append(wrong, dropsCluster(parseExpr(t, r.Expr))...) {
			t.Errorf("%s: %s", r.Record, problem)
		}
	}
	for _, r := range recordingRules(t) {
		check(r, levelLabels(r.Record))
	}
	for _, r := range serviceRules(t) {
		check(r, slices.Sorted(slices.Values(slices.Concat([]string{"cluster", "node"}, serviceSeries[r.Record]))))
	}
}

// levelLabels returns the labels in the first part of a name. The words device and container stand for several labels.
func levelLabels(record string) []string {
	level, _, _ := strings.Cut(record, ":")
	level = strings.NewReplacer("mig_profile", "mig profile", "_", ",", "device", "node,gpu,uuid,mig uuid", "container", "namespace,pod,container").Replace(level)
	found := strings.Split(strings.ReplaceAll("cluster,"+level, " ", "_"), ",")
	slices.Sort(found)
	return found
}

// TestDashboards checks that each query of each dashboard is valid PromQL over existing families and labels, that legends and columns
// name labels of the results, and that links are valid.
func TestDashboards(t *testing.T) {
	families := readCatalogue(t)
	for _, r := range recordingRules(t) {
		families[r.Record], _ = families.checkExpr(r.Expr)
	}
	all := readDashboards(t)
	for name, b := range all {
		for _, wrong := range append(families.checkDashboard(b), b.mixedSources(name == "fleet")...) {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	for _, wrong := range brokenLinks(all) {
		t.Error(wrong)
	}
}

// TestExprErrors checks that checkExpr finds errors.
func TestExprErrors(t *testing.T) {
	families := readCatalogue(t)
	for expr, want := range map[string]string{
		`nvidia_gpu_power`: "unknown family nvidia_gpu_power",
		`nvidia_gpu_power_limit_watts{type="enforce"}`:                           "never has",
		`sum by (model) (nvidia_gpu_power_watts)`:                                "unknown label model",
		`nvidia_gpu_power_watts * on (uuid) group_left (models) nvidia_gpu_info`: "unknown label models",
		`max by (uuid) (nvidia_gpu_up) / max by (node) (nvidia_gpu_up)`:          "the sides have different labels",
	} {
		if _, wrong := families.checkExpr(expr); !strings.Contains(strings.Join(wrong, ";"), want) {
			t.Errorf("%s: got errors %q, want %q", expr, wrong, want)
		}
	}
}

// checkExpr returns the labels of an expression's result, and the errors of the expression.
func (c familyCatalogue) checkExpr(expr string) (labelValuesByName, []string) {
	parsed, err := promQL.ParseExpr(expr)
	if err != nil {
		return nil, []string{expr + ": " + err.Error()}
	}
	a := exprChecker{familyCatalogue: c}
	return a.labels(parsed), a.wrong
}

// mixedSources returns the queries that read raw series in a dashboard with recorded series, or recorded series in another dashboard.
func (b dashboardModel) mixedSources(recorded bool) (wrong []string) {
	recordPattern := regexp.MustCompile(`\w:\w`)
	for _, q := range b.targets() {
		if recordPattern.MatchString(q.Expr) != recorded || recorded && rawFamilyPattern.MatchString(q.Expr) {
			wrong = append(wrong, q.title+": "+q.Expr+": unexpected raw or recorded series")
		}
	}
	return wrong
}

var (
	rawFamilyPattern    = regexp.MustCompile(`(?:^|[^\w:])(?:nvidia_gpu|podgauge)_\w+`)
	variableNamePattern = regexp.MustCompile(`\$(\w+)`)
	labelValuesPattern  = regexp.MustCompile(`^label_values\((.*), *(\w+)\)$`)
	legendLabelPattern  = regexp.MustCompile(`{{(\w+)}}`)
)

// checkDashboard returns the errors of a dashboard.
func (c familyCatalogue) checkDashboard(b dashboardModel) (wrong []string) {
	variables := map[string]string{"__range": "6h", "__rate_interval": "2m", "__interval": "1h"}
	for _, v := range b.Templating.List {
		variables[v.Name] = "a|b"
		if v.Type == "textbox" {
			variables[v.Name] = "0.3"
		}
	}
	check := func(location, expr string) labelValuesByName {
		expr = variableNamePattern.ReplaceAllStringFunc(expr, func(name string) string {
			value, ok := variables[name[1:]]
			if !ok {
				wrong = append(wrong, location+": unknown variable "+name)
			}
			return value
		})
		if parsed, err := promQL.ParseExpr(expr); err == nil {
			for _, without := range joinsClusters(parsed) {
				wrong = append(wrong, location+": join across clusters: "+without)
			}
		}
		known, errs := c.checkExpr(expr)
		for _, err := range errs {
			wrong = append(wrong, location+": "+err)
		}
		return known
	}
	checkLegend := func(location, text string, known labelValuesByName) {
		for _, l := range legendLabelPattern.FindAllStringSubmatch(text, -1) {
			if _, ok := known[l[1]]; !ok {
				wrong = append(wrong, location+": unknown label "+l[1])
			}
		}
	}
	for _, v := range b.Templating.List {
		var query struct{ Query string }
		if v.Type == "query" {
			if err := json.Unmarshal(v.Query, &query); err != nil {
				wrong = append(wrong, v.Name+": "+err.Error())
			}
			parts := labelValuesPattern.FindStringSubmatch(query.Query)
			if parts == nil {
				wrong = append(wrong, v.Name+": "+query.Query+" is not label_values")
				continue
			}
			checkLegend("$"+v.Name, "{{"+parts[2]+"}}", check("$"+v.Name, parts[1]))
		}
	}
	for _, n := range b.Annotations.List {
		checkLegend(n.Name, n.TitleFormat+n.TextFormat+"{{"+n.TagKeys+"}}", check(n.Name, n.Target.Expr))
	}
	for _, p := range b.Panels {
		columns := map[string]bool{"Value": true}
		for _, q := range p.Targets {
			known := check(p.Title, q.Expr)
			checkLegend(p.Title, q.LegendFormat, known)
			columns["Value #"+q.RefID] = true
			for name := range known {
				columns[name] = true
			}
		}
		wrong = append(wrong, badColumns(p.Title, columns, p.Transformations)...)
	}
	return wrong
}

// badColumns returns errors for columns of a table that no query has, and for columns without title.
func badColumns(location string, columns map[string]bool, transformations []panelTransform) (wrong []string) {
	for _, t := range transformations {
		for name := range t.Options.RenameByName {
			if !columns[name] {
				wrong = append(wrong, location+": no query has the column "+name)
			}
		}
		for name := range columns {
			if t.ID == "organize" && name != "Value" && t.Options.RenameByName[name] == "" {
				wrong = append(wrong, location+": the column "+name+" has no title")
			}
		}
	}
	return wrong
}

var (
	dashboardLinkPattern  = regexp.MustCompile(`/d/([a-z-]+)\?([^"]*)`)
	passedVariablePattern = regexp.MustCompile(`var-(\w+)=\$\{__data\.fields\.(\w+)\}`)
)

// brokenLinks returns errors for links to unknown dashboards or variables, or with unknown columns.
func brokenLinks(all map[string]dashboardModel) (wrong []string) {
	variables := map[string][]string{}
	for _, b := range all {
		for _, v := range b.Templating.List {
			variables[b.UID] = append(variables[b.UID], v.Name)
		}
	}
	found := 0
	for _, b := range all {
		for _, p := range b.Panels {
			titles := map[string]bool{}
			for _, t := range p.Transformations {
				for _, title := range t.Options.RenameByName {
					titles[title] = true
				}
			}
			for _, l := range dashboardLinkPattern.FindAllStringSubmatch(string(p.FieldConfig), -1) {
				found++
				for _, passed := range passedVariablePattern.FindAllStringSubmatch(l[2], -1) {
					if !slices.Contains(variables[l[1]], passed[1]) || !titles[passed[2]] {
						wrong = append(wrong, b.UID+": "+p.Title+": "+passed[0]+" is invalid for "+l[1])
					}
				}
			}
		}
	}
	if found == 0 {
		wrong = append(wrong, "no links found")
	}
	return wrong
}
