package repo

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

const (
	alertsFile   = "../../deploy/rules/podgauge.rules.yaml"
	recordedFile = "../../deploy/rules/podgauge.recording.yaml"
	jobsFile     = "../../deploy/rules/podgauge.jobs.yaml"
)

// TestSeriesSets checks that each set has the series that its readers query. The
// set minimal has the series of the alerts on health and on podgauge itself, of
// the recording rules and their dashboard. The set default has the series of all
// alerts, rules and dashboards.
func TestSeriesSets(t *testing.T) {
	dashboards, err := filepath.Glob("../../dashboards/*.json")
	if err != nil || len(dashboards) < 4 {
		t.Fatal(dashboards, err)
	}
	minimal := testfile.Read(t, recordedFile) + testfile.Read(t, "../../dashboards/fleet.json")
	for _, group := range alertGroups(t) {
		if group.name == "podgauge-health" || group.name == "podgauge-itself" {
			minimal += group.recorded
			for _, alert := range group.alerts {
				minimal += alert.expression
			}
		}
	}
	queried := testfile.Read(t, alertsFile) + testfile.Read(t, recordedFile) + testfile.Read(t, jobsFile)
	for _, file := range dashboards {
		queried += testfile.Read(t, file)
	}
	for _, series := range missingSeries(t, "minimal", minimal) {
		t.Errorf("the set minimal lacks %s", series)
	}
	for _, series := range missingSeries(t, "default", queried) {
		t.Errorf("the set default lacks %s", series)
	}
}

// missingSeries returns the series in the queries of a text that a set lacks. Of
// an enumeration the set needs the current states, and the states queried by
// name; of other readings it needs the queried rows.
func missingSeries(t *testing.T, set, queries string) (missing []string) {
	t.Helper()
	filter, err := exporter.NewFamilyFilter(set, nil, nil)
	require.NoError(t, err)
	rows := metric.MetricsPerLink()
	for _, selector := range familySelectors(queries) {
		isRow := false
		for i := range rows {
			m := &rows[i]
			if m.Name != selector.family {
				continue
			}
			isRow = true
			matches, byName := selector.matches(m)
			if matches && (!filter.MatchesRow(m) || m.Enum && byName && !m.AlwaysInSet) {
				missing = append(missing, m.RowName())
			}
		}
		isOfKube := strings.HasPrefix(selector.family, "podgauge_kube_") // another program
		if !isRow && !isOfKube && !filter.Matches(selector.family) {
			missing = append(missing, selector.family)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}

// familySelector is a selector in a query.
type familySelector struct {
	family   string
	matchers [][]string // label, operator and value
}

var (
	selectorPattern = regexp.MustCompile(`(?:^|[^\w:])((?:nvidia_gpu|podgauge|process|go)_\w+)(\{[^{}]*\})?`)
	matcherPattern  = regexp.MustCompile(`(\w+)(=~|!~|!=|=)\\?"((?:[^"\\]|\\.)*?)\\?"`)
)

// familySelectors finds the selectors in a text. A histogram counts as its family.
func familySelectors(text string) (selectors []familySelector) {
	for _, found := range selectorPattern.FindAllStringSubmatch(text, -1) {
		name := found[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			name = strings.TrimSuffix(name, suffix)
		}
		s := familySelector{family: name}
		for _, m := range matcherPattern.FindAllStringSubmatch(found[2], -1) {
			s.matchers = append(s.matchers, m[1:])
		}
		selectors = append(selectors, s)
	}
	return selectors
}

// matches reports whether the selector selects a row, and whether it names the row's label value.
func (s *familySelector) matches(m *device.Metric) (matches, byName bool) {
	for _, l := range m.Labels {
		for _, matcher := range s.matchers {
			if matcher[0] != l.Name {
				continue
			}
			equal := matcher[2] == l.Value
			if strings.HasSuffix(matcher[1], "~") {
				equal = regexp.MustCompile("^(?:" + matcher[2] + ")$").MatchString(l.Value)
			}
			if equal == strings.HasPrefix(matcher[1], "!") {
				return false, false
			}
			byName = byName || equal
		}
	}
	return true, byName
}

// alertGroup is a group of alert rules.
type alertGroup struct {
	name     string
	recorded string // the group's recording rules, which precede the alerts
	alerts   []alertRule
}

type alertRule struct{ name, expression, severity, delay, threshold string }

// link returns a link to the runbook, for a page in docs.
func (a alertRule) link() string {
	return fmt.Sprintf("[`%s`](../runbooks/%s.md)", strings.TrimPrefix(a.name, "Podgauge"), a.name)
}

// alertGroups reads the files with alerts.
func alertGroups(t *testing.T) []alertGroup {
	t.Helper()
	var groups []alertGroup
	for _, text := range strings.Split(testfile.Read(t, alertsFile)+testfile.Read(t, jobsFile), "- name: ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		rules := strings.Split(rest, "- alert: ")
		group := alertGroup{name: name, recorded: rules[0]}
		for _, rule := range rules[1:] {
			alert, rest, _ := strings.Cut(rule, "\n")
			expression, texts, _ := strings.Cut(rest, "labels:")
			for _, recorded := range slices.Backward(strings.Split(rules[0], "- record: ")[1:]) { // of the same group, which read earlier ones
				if record, query, _ := strings.Cut(recorded, "\n"); strings.Contains(expression, record) {
					expression += query
				}
			}
			group.alerts = append(group.alerts, alertRule{
				alert, expression, firstMatch(`severity: (\w+)`, texts), firstMatch(`\n +for: (\w+)`, expression), firstMatch(`([<>]=? [0-9.]+) # threshold`, expression),
			})
		}
		groups = append(groups, group)
	}
	return groups
}

// firstMatch returns the capture group of an expression's first match, or "".
func firstMatch(expression, text string) string {
	if match := regexp.MustCompile(expression).FindStringSubmatch(text); match != nil {
		return match[1]
	}
	return ""
}

// TestAlertTable checks that docs/reference/alerts.md lists all alerts with their defaults, and the smallest set with the queried series.
func TestAlertTable(t *testing.T) {
	var table strings.Builder
	for _, group := range alertGroups(t) {
		if len(group.alerts) == 0 {
			continue
		}
		fmt.Fprintf(&table, "\n|%s|severity|for|threshold|set|\n|---|---|---|---|---|\n", group.name)
		for _, alert := range group.alerts {
			set := "minimal"
			if missingSeries(t, set, alert.expression) != nil {
				set = "default"
			}
			fmt.Fprintf(&table, "|%s|%s|%s|%s|%s|\n", alert.link(), alert.severity, alert.delay, alert.threshold, set)
		}
	}
	docs.CheckTables(t, *update, "../../docs/reference/alerts.md", map[string]string{"alerts": table.String()})
}

// TestRemoteWriteMatches checks that the remote-write rules of docs/how-to/large-fleets.md send all series of the dashboards Fleet and
// Reliability.
func TestRemoteWriteMatches(t *testing.T) {
	page := testfile.Read(t, "../../docs/how-to/large-fleets.md")
	keep := regexp.MustCompile("^(?:" + firstMatch(`regex: "([^"]+)", action: keep`, page) + ")$")
	drop := regexp.MustCompile("^(?:" + firstMatch(`regex: "([^"]+)", action: drop`, page) + ")$")
	boards := testfile.Read(t, "../../dashboards/fleet.json") + testfile.Read(t, "../../dashboards/reliability.json")
	queried := regexp.MustCompile(`\w+:\w+:\w+`).FindAllString(boards, -1)
	if len(queried) < 40 {
		t.Fatalf("got %d queried series, want at least 40", len(queried))
	}
	for _, series := range queried {
		if !keep.MatchString(series) || drop.MatchString(series) {
			t.Errorf("%s is queried, but not sent", series)
		}
	}
	if !drop.MatchString("gpu:podgauge_nvlink_slow:max") {
		t.Error("series of single GPUs are sent")
	}
}
