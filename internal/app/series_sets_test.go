package app

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
)

const (
	alertsFile   = "../../deploy/rules/podgauge.rules.yaml"
	recordedFile = "../../deploy/rules/podgauge.recording.yaml"
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
	minimal := readFile(t, recordedFile) + readFile(t, "../../dashboards/fleet.json")
	for _, group := range alertGroups(t) {
		if group.name == "podgauge-health" || group.name == "podgauge-itself" {
			minimal += group.recorded
			for _, alert := range group.alerts {
				minimal += alert.expression
			}
		}
	}
	queried := readFile(t, alertsFile) + readFile(t, recordedFile)
	for _, file := range dashboards {
		queried += readFile(t, file)
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
	if err != nil {
		t.Fatal(err)
	}
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
		if !isRow && !filter.Matches(selector.family) {
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

// TestSeriesOfSets limits the number of series of 8 allocated H100 GPUs, including podgauge's own.
func TestSeriesOfSets(t *testing.T) {
	for set, limit := range map[string]int{"minimal": 300, "default": 800} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			w := newTestAppWith(t, testSetup{machine: sim.NewMachineWithModels(metric.Metrics(), fixedClock, eightH100...)}, "--metrics.set="+set)
			w.waitAllocatable(gpuResource, len(eightH100))
			for i := range eightH100 {
				w.runPod(gpuPod("team", fmt.Sprintf("pod-%d", i), 1))
			}
			w.waitScrape("all pods", func(text string) bool { return strings.Count(text, "\nnvidia_gpu_allocation_info{") == len(eightH100) })
			text := w.stableScrape()
			counts := map[string]int{}
			all := 0
			for line := range strings.Lines(text) {
				if !strings.HasPrefix(line, "#") {
					all++
					counts[line[:strings.IndexAny(line, "{ ")]]++
				}
			}
			if all > limit {
				largest := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
				for _, name := range largest[:10] {
					t.Logf("%s: %d", name, counts[name])
				}
				t.Errorf("got %d series, want at most %d", all, limit)
			}
		})
	}
}
