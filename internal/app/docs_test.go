package app

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
	"github.com/prometheus/client_golang/prometheus"
)

// TestMetricsPage: the tables in docs/reference/metrics.md are what the rows are.
func TestMetricsPage(t *testing.T) {
	all := metric.MetricsPerLink()
	checkTables(t, "../../docs/reference/metrics.md", map[string]string{
		"rows": metricsTable(t, all[:len(metric.Metrics())], dcgmByFamily()), "links": metricsTable(t, all[len(metric.Metrics()):], nil),
		"families": familiesTable(t, exporter.Families()), "own": familiesTable(t, selfFamilies(t)),
	})
}

// checkTables holds a page's tables, which stand between their marks, against what they are to be.
func checkTables(t *testing.T, file string, tables map[string]string) {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := page
	for name, table := range tables {
		between := regexp.MustCompile(`(?s)(<!-- ` + name + ` -->\n).*(<!-- /` + name + ` -->)`)
		if !between.Match(want) {
			t.Fatalf("%s has no place for the table of %s", file, name)
		}
		want = between.ReplaceAllLiteral(want, []byte("<!-- "+name+" -->\n"+table+"<!-- /"+name+" -->"))
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(page, want) {
		t.Errorf("the tables in %s are not what they should be; run make golden", file)
	}
}

// fieldNames are nvml.h's names of the fields.
var fieldNames = sync.OnceValues(nvmltest.FieldNames)

var fieldPattern = regexp.MustCompile(`\bfield (\d+)`)

// withFieldNames adds to fields in a text their names.
func withFieldNames(text string) string {
	names, err := fieldNames()
	if err != nil {
		panic(err)
	}
	return fieldPattern.ReplaceAllStringFunc(text, func(field string) string {
		n, _ := strconv.Atoi(strings.TrimPrefix(field, "field "))
		return field + " " + names[n]
	})
}

// dcgmByFamily are dcgm-exporter's families, by the family that they are made of.
func dcgmByFamily() map[string][]string {
	byFamily := map[string][]string{}
	for _, theirs := range exporter.DCGMFamilies {
		for _, row := range theirs.Sources {
			ours, _, _ := strings.Cut(row, "{")
			if !slices.Contains(byFamily[ours], theirs.Name) {
				byFamily[ours] = append(byFamily[ours], theirs.Name)
			}
		}
	}
	for _, names := range byFamily {
		slices.Sort(names)
	}
	return byFamily
}

// selfFamilies are podgauge's about itself, which a registry has.
func selfFamilies(t *testing.T) (families []exporter.Family) {
	t.Helper()
	registry := prometheus.NewRegistry()
	selfMetrics := exporter.NewSelfMetrics(registry, version, false, exporter.FamilyFilter{})
	selfMetrics.ExportUnsupportedFamilies(func() []string { return []string{"f"} })
	selfMetrics.ExportCDISpecs(func() map[string]float64 { return map[string]float64{"gpu": 1} })
	selfMetrics.ExportUnknownConfigKeys(func() int { return 0 })
	selfMetrics.ExportEventsUp(func() bool { return true })
	selfMetrics.ExportKubernetesRequests(func() map[string]float64 { return map[string]float64{"200": 1} })
	selfMetrics.ExportDroppedEvents(func() uint64 { return 0 })
	selfMetrics.InitResource(gpuResource, "r")
	selfMetrics.SetDevices(gpuResource, 1, 1)
	selfMetrics.ObserveKubeletCall("List", 0, nil)
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range gathered {
		if slices.ContainsFunc(ignoredPrefixes, func(p string) bool { return strings.HasPrefix(f.GetName(), p) }) {
			continue
		}
		family := exporter.Family{Name: f.GetName(), Help: f.GetHelp(), Type: strings.ToLower(f.GetType().String())}
		for _, l := range f.GetMetric()[0].GetLabel() {
			family.Labels = append(family.Labels, l.GetName())
		}
		families = append(families, family)
	}
	return families
}

// familiesTable has a line for each family that no row makes.
func familiesTable(t *testing.T, families []exporter.Family) string {
	t.Helper()
	var table strings.Builder
	sets := seriesOfSets(t)
	table.WriteString("| family | kind | unit | labels | set |\n|---|---|---|---|---|\n")
	for _, f := range families {
		labels := make([]string, len(f.Labels))
		for i, l := range f.Labels {
			labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&table, "| `%s`<br>%s | %s | %s | %s | %s |\n", f.Name, strings.ReplaceAll(f.Help, "|", `\|`), f.Type, unitText(f.Name), strings.Join(labels, " "),
			setText(sets, f.Name, nil))
	}
	return table.String()
}

// setText returns the smallest set with a family, and the sets with some of the family's rows only.
func setText(sets map[string]bool, name string, rows []device.Metric) string {
	var texts []string
	for _, set := range []string{"minimal", "default"} {
		var values []string
		for i := range rows {
			if row := rows[i].RowName(); row != name && sets[set+" "+row] {
				values = append(values, rows[i].Labels[0].Value)
			}
		}
		text := set
		if len(rows) > 0 && rows[0].Enum {
			text += ", while 1"
		}
		switch {
		case sets[set+" "+name] && len(values) > 0:
			texts = append(texts, text+"; always "+strings.Join(values, ", "))
		case sets[set+" "+name]:
			texts = append(texts, text)
		case len(values) > 0:
			texts = append(texts, text+": "+strings.Join(values, ", "))
		}
	}
	if len(texts) == 2 && strings.TrimPrefix(texts[0], "minimal") == strings.TrimPrefix(texts[1], "default") {
		texts = texts[:1]
	}
	if len(texts) == 0 {
		return "full"
	}
	return strings.Join(texts, "<br>")
}

// metricsTable has a line for each family. dcgm are what dcgm-exporter calls it.
func metricsTable(t *testing.T, metrics []device.Metric, dcgm map[string][]string) string {
	t.Helper()
	sets := seriesOfSets(t)
	var table strings.Builder
	table.WriteString("| family | kind | unit | labels | NVML | hardware | pace | dcgm-exporter | set |\n|---|---|---|---|---|---|---|---|---|\n")
	for len(metrics) > 0 {
		n := slices.IndexFunc(metrics, func(m device.Metric) bool { return m.Name != metrics[0].Name })
		if n < 0 {
			n = len(metrics)
		}
		family := metrics[:n]
		metrics = metrics[n:]
		m := family[0]
		fmt.Fprintf(&table, "| `%s`<br>%s | %s | %s | %s | %s | %s | %s | %s | %s |\n", m.Name, m.Help, kindText(m.Kind), unitText(m.Name),
			labelsText(family), distinctTexts(family, func(m device.Metric) string { return withFieldNames(m.Source) }),
			distinctTexts(family, func(m device.Metric) string { return m.Hardware }),
			distinctTexts(family, func(m device.Metric) string { return paceText(m.ReadPace) }), strings.Join(dcgm[m.Name], "<br>"), setText(sets, m.Name, family))
	}
	return table.String()
}

func kindText(k device.Kind) string {
	switch k {
	case device.OwnerCounter:
		return "counter, of the holder"
	case device.FaultCounter:
		return "counter, of the device"
	case device.StateGauge:
		return "gauge, of the device"
	default:
		return "gauge"
	}
}

func paceText(p device.ReadPace) string {
	switch p {
	case device.PaceSlow:
		return "slow"
	case device.PaceStatic:
		return "static"
	default:
		return "fast"
	}
}

// unitText returns the unit in a family's name.
func unitText(name string) string {
	name = strings.TrimSuffix(name, "_total")
	for _, unit := range []string{"bytes_per_second", "bytes", "ratio", "watts", "joules", "celsius", "hertz", "seconds"} {
		if strings.HasSuffix(name, "_"+unit) {
			return strings.ReplaceAll(unit, "_", " ")
		}
	}
	return ""
}

// labelsText are the labels that a family has of its own, and their values.
func labelsText(family []device.Metric) string {
	var labels []string
	for i, l := range family[0].Labels {
		var values []string
		for _, m := range family {
			if v := m.Labels[i].Value; !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		text := strings.Join(values, ", ")
		if l.Name == "link" {
			text = "0 to " + values[len(values)-1]
		}
		labels = append(labels, "`"+l.Name+"`: "+text)
	}
	return strings.Join(labels, "<br>")
}

// distinctTexts returns the text of a family's rows: one text if all rows agree, or a text for each last label.
func distinctTexts(family []device.Metric, text func(device.Metric) string) string {
	var all, lines []string
	for _, m := range family {
		got := text(m)
		if !slices.Contains(all, got) {
			all = append(all, got)
		}
		if len(m.Labels) > 0 {
			var values []string
			for _, l := range m.Labels {
				if l.Name != "link" {
					values = append(values, l.Value)
				}
			}
			line := strings.TrimPrefix(strings.Join(values, " ")+": "+got, ": ")
			if got != "" && !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(lines, "<br>")
}

// TestEachFamilyIsShown: each family of docs/reference/metrics.md is in one golden file at least, with
// the kind in the page.
func TestEachFamilyIsShown(t *testing.T) {
	if *update {
		t.Skip("the golden files may change")
	}
	shown := map[string]string{}
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if head, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# TYPE "); ok {
				name, kind, _ := strings.Cut(head, " ")
				shown[name] = kind
			}
		}
	}
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := 0
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)`<br>[^|]*\\| ([a-z]+)").FindAllStringSubmatch(string(page), -1) {
		name, kind := row[1], row[2]
		documented++
		switch {
		case shown[name] == "":
			t.Errorf("no golden file has %s", name)
		case shown[name] != "" && shown[name] != kind:
			t.Errorf("%s is a %s in docs/reference/metrics.md, and a %s in a golden file", name, kind, shown[name])
		}
	}
	if families := len(exporter.Families()); documented <= families {
		t.Errorf("docs/reference/metrics.md has %d families, fewer than %d that no row makes", documented, families)
	}
}
