package app

import (
	"cmp"
	"fmt"
	"maps"
	"os"
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
	setsFile     = "../../exporter/series_sets.txt"
	alertsFile   = "../../deploy/rules/podgauge.rules.yaml"
	recordedFile = "../../deploy/rules/podgauge.recording.yaml"
)

// TestSeriesSets checks that exporter/series_sets.txt has the queried series. The set minimal has the series of the alerts on health and on
// podgauge itself, of the recording rules and their dashboard, podgauge_series and the readiness. The set default has the series of all alerts, rules and
// dashboards, and faults without an alert.
func TestSeriesSets(t *testing.T) {
	dashboards, err := filepath.Glob("../../dashboards/*.json")
	if err != nil || len(dashboards) < 4 {
		t.Fatal(dashboards, err)
	}
	const readiness = "podgauge_ready podgauge_plugin_waiting "
	minimal := readiness + "podgauge_series " + readFile(t, recordedFile) + readFile(t, "../../dashboards/fleet.json")
	for _, group := range alertGroups(t) {
		if group.name == "podgauge-health" || group.name == "podgauge-itself" {
			minimal += group.recorded
			for _, alert := range group.alerts {
				minimal += alert.expression
			}
		}
	}
	queried := readiness + "nvidia_gpu_unallocatable_info podgauge_cdi_spec_up podgauge_config_unknown_keys podgauge_kubernetes_events_dropped_total " +
		"podgauge_kubernetes_requests_total " + readFile(t, alertsFile) + readFile(t, recordedFile)
	for _, file := range dashboards {
		queried += readFile(t, file)
	}
	want := setLines("minimal", minimal) + setLines("default", queried)
	if *update {
		if err := os.WriteFile(setsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if readFile(t, setsFile) != want {
		t.Errorf("%s differs from the series of rules and dashboards; run make golden", setsFile)
	}
}

// setLines returns the lines of a set for the queries in a text. Enumerations contribute all current states and the states queried by name. Other
// families of readings contribute the queried rows.
func setLines(set, queries string) string {
	rows := map[string][]device.Metric{}
	for _, m := range metric.MetricsPerLink() {
		rows[m.Name] = append(rows[m.Name], m)
	}
	series := map[string]bool{}
	for _, selector := range familySelectors(queries) {
		family := rows[selector.family]
		all := true
		for i := range family {
			matches, byName := selector.matches(&family[i])
			if all = all && matches; matches && (byName || !family[i].Enum) {
				series[family[i].RowName()] = true
			}
		}
		if all || family[0].Enum {
			series[selector.family] = true
		}
	}
	for name := range maps.Keys(series) {
		if family, _, isRow := strings.Cut(name, "{"); isRow && series[family] && !rows[family][0].Enum {
			delete(series, name)
		}
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(series)) {
		fmt.Fprintf(&lines, "%s %s\n", set, name)
	}
	return lines.String()
}

// seriesOfSets returns the lines of the sets.
func seriesOfSets(t *testing.T) map[string]bool {
	t.Helper()
	lines := map[string]bool{}
	for line := range strings.Lines(readFile(t, setsFile)) {
		lines[strings.TrimSpace(line)] = true
	}
	return lines
}

// TestRunbookFamilies checks that the set default has the families of a runbook's queries, or that the runbook names the flag that exports
// them. For a family queried without labels, some rows are enough.
func TestRunbookFamilies(t *testing.T) {
	runbooks, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil || len(runbooks) < 30 {
		t.Fatal(runbooks, err)
	}
	sets := readFile(t, setsFile)
	for _, file := range runbooks {
		text := readFile(t, file)
		for line := range strings.Lines(setLines("default", text)) {
			row := strings.TrimSpace(line)
			_, family, _ := strings.Cut(row, " ")
			family, _, _ = strings.Cut(family, "{")
			note := "`" + family + "` requires `--metrics.set=full`."
			if strings.HasPrefix(family, "nvidia_gpu_nvlink_link_") {
				note = "`--metrics.nvlink-links`"
			}
			exported := strings.Contains(sets, row+"\n") || strings.Contains(sets, row+"{") || strings.Contains(sets, "default "+family+"\n")
			if !exported && !strings.Contains(text, note) {
				t.Errorf("%s: the set default lacks %s, and the runbook lacks %q", file, row, note)
			}
		}
	}
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
	known := exporterFamilies()
	for _, found := range selectorPattern.FindAllStringSubmatch(text, -1) {
		name := found[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, is := strings.CutSuffix(name, suffix); is && !known[name] {
				name = base
			}
		}
		s := familySelector{family: name}
		for _, m := range matcherPattern.FindAllStringSubmatch(found[2], -1) {
			s.matchers = append(s.matchers, m[1:])
		}
		selectors = append(selectors, s)
	}
	return selectors
}

// exporterFamilies returns the names of families outside a registry.
func exporterFamilies() map[string]bool {
	names := map[string]bool{}
	for _, f := range exporter.Families {
		names[f.Name] = true
	}
	for _, m := range metric.MetricsPerLink() {
		names[m.Name] = true
	}
	return names
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
