package repo

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/collect"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sxid"
	"github.com/podgauge/podgauge/internal/xid"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

var update = flag.Bool("update", false, "write the tables in docs")

// metricsSections lists the tables of readings in docs/reference/metrics.md, each with its first family.
var metricsSections = []struct{ name, first string }{
	{"memory", "nvidia_gpu_memory_total_bytes"},
	{"engines", "nvidia_gpu_utilization_ratio"},
	{"power", "nvidia_gpu_power_watts"},
	{"pcie", "nvidia_gpu_pcie_transmit_bytes_total"},
	{"nvlink", "nvidia_gpu_nvlink_transmit_bytes_total"},
	{"faults", "nvidia_gpu_ecc_volatile_errors_total"},
	{"modes", "nvidia_gpu_persistence_mode_enabled"},
	{"links", "nvidia_gpu_nvlink_link_transmit_bytes_total"},
}

// familySections lists the tables of other families by patterns of names. The first match decides.
var familySections = []struct {
	name  string
	names *regexp.Regexp
}{
	{"allocations", regexp.MustCompile(`^nvidia_gpu_allocat`)},
	{"usage", regexp.MustCompile(`^nvidia_gpu_(container|unattributed)_`)},
	{"health", regexp.MustCompile(`^nvidia_gpu_`)},
	{"resources", regexp.MustCompile(`^podgauge_(allocatable|claim|container|resource|shared)_`)},
	{"rdma", regexp.MustCompile(`^podgauge_(rdma|cpu)_`)},
	{"node", regexp.MustCompile(``)},
}

// TestMetricsPage checks that the tables in docs/reference/metrics.md have the exported families.
func TestMetricsPage(t *testing.T) {
	all := metric.MetricsPerLink()
	tables := map[string]string{"own": familiesTable(exporter.SelfFamilies[:])}
	for i, section := range metricsSections {
		begin, end := familyIndex(all, section.first), len(all)
		if i+1 < len(metricsSections) {
			end = familyIndex(all, metricsSections[i+1].first)
		}
		tables[section.name] = metricsTable(all[begin:end])
	}
	families := map[string][]exporter.Family{}
	for _, f := range exporter.Families {
		for _, section := range familySections {
			if section.names.MatchString(f.Name) {
				families[section.name] = append(families[section.name], f)
				break
			}
		}
	}
	for name, of := range families {
		tables[name] = familiesTable(of)
	}
	docs.CheckTables(t, *update, "../../docs/reference/metrics.md", tables)
}

func familyIndex(metrics []device.Metric, name string) int {
	return slices.IndexFunc(metrics, func(m device.Metric) bool { return m.Name == name })
}

// fieldNames returns the names of the fields in nvml.h.
var fieldNames = sync.OnceValues(nvmltest.FieldNames)

var fieldPattern = regexp.MustCompile(`\bfield (\d+)`)

// withFieldNames adds the names of the fields in a text.
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

// familiesTable returns a table with a row for each family.
func familiesTable(families []exporter.Family) string {
	var table strings.Builder
	table.WriteString("|family|kind|labels|set|\n|---|---|---|---|\n")
	for _, f := range families {
		labels := make([]string, len(f.Labels))
		for i, l := range f.Labels {
			labels[i] = "`" + l + "`"
		}
		fmt.Fprintf(&table, "|`%s`<br>%s|%s|%s|%s|\n", f.Name, strings.ReplaceAll(f.Help, "|", `\|`), strings.ToLower(f.Type.String()), strings.Join(labels, " "), setNames[f.Set])
	}
	return table.String()
}

var setNames = map[device.MetricSet]string{
	device.SetMinimal: "minimal",
	device.SetDefault: "default",
	device.SetFull:    "full",
}

// setText returns the smallest set with a family, and the sets that have only
// some of its rows.
func setText(rows []device.Metric) string {
	var texts []string
	exported := 0
	for _, set := range []device.MetricSet{device.SetMinimal, device.SetDefault} {
		var values, missing, always []string
		for i := range rows {
			switch value := labelValue(&rows[i]); {
			case rows[i].Set < set:
				missing = append(missing, value)
			case rows[i].AlwaysInSet:
				always = append(always, value)
				values = append(values, value)
			default:
				values = append(values, value)
			}
		}
		text := setNames[set]
		if rows[0].Enum {
			text += ", while 1"
		}
		switch {
		case len(values) == exported: // those of the smaller set
			continue
		case len(always) > 0:
			text += "; always " + strings.Join(always, ", ")
		case len(values) > 5 && len(missing) == 1:
			text += ": not " + missing[0]
		case len(missing) > 0:
			text += ": " + strings.Join(values, ", ")
		}
		texts = append(texts, text)
		exported = len(values)
	}
	return cmp.Or(strings.Join(texts, "<br>"), "full")
}

func labelValue(m *device.Metric) string {
	if len(m.Labels) == 0 {
		return ""
	}
	return m.Labels[0].Value
}

// metricsTable returns a table with a row for each family.
func metricsTable(metrics []device.Metric) string {
	var table strings.Builder
	table.WriteString("|family|kind|labels|NVML|hardware|pace|set|\n|---|---|---|---|---|---|---|\n")
	for len(metrics) > 0 {
		n := slices.IndexFunc(metrics, func(m device.Metric) bool { return m.Name != metrics[0].Name })
		if n < 0 {
			n = len(metrics)
		}
		family := metrics[:n]
		metrics = metrics[n:]
		m := family[0]
		fmt.Fprintf(&table, "|`%s`<br>%s|%s|%s|%s|%s|%s|%s|\n", m.Name, m.Help, kindText(m.Kind), labelsText(family), sourcesText(family),
			distinctTexts(family, func(m device.Metric) string { return m.Hardware }),
			distinctTexts(family, func(m device.Metric) string { return paceText(m.ReadPace) }), setText(family))
	}
	return table.String()
}

var gpmPattern = regexp.MustCompile(`^nvmlGpmMetricsGet, metric (\d+) `)

// sourcesText lists the sources of a family's rows: the name of the field for a single row, otherwise the numbers of fields or GPM metrics in
// the order of the rows.
func sourcesText(family []device.Metric) string {
	var functions, fields, gpm []string
	add := func(list *[]string, s string) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	for _, m := range family {
		for source := range strings.SplitSeq(m.Source, "; ") {
			source, _, _ = strings.Cut(source, ", of all links")
			source, _, _ = strings.Cut(source, ", over all links")
			if field, ok := strings.CutPrefix(source, "field "); ok {
				add(&fields, field)
			} else if number := gpmPattern.FindStringSubmatch(source); number != nil {
				add(&gpm, number[1])
			} else {
				add(&functions, "`"+source+"`")
			}
		}
	}
	var texts []string
	if len(fields) > 0 && len(fields) <= 2 {
		texts = append(texts, strings.ReplaceAll(withFieldNames("field "+strings.Join(fields, "<br>field ")), "NVML_FI_DEV_", ""))
	} else if len(fields) > 0 {
		texts = append(texts, "fields "+strings.Join(fields, ","))
	}
	if len(gpm) > 0 {
		texts = append(texts, "GPM "+strings.Join(gpm, ","))
	}
	return strings.Join(append(texts, functions...), "<br>")
}

func kindText(k device.Kind) string {
	switch k {
	case device.OwnerCounter:
		return "owner-counter"
	case device.FaultCounter:
		return "device-counter"
	case device.StateGauge:
		return "device-gauge"
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

// labelsText lists the labels of a family and their values.
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
			text = "0–" + values[len(values)-1]
		}
		labels = append(labels, "`"+l.Name+"`: "+text)
	}
	return strings.Join(labels, "<br>")
}

// distinctTexts returns the text of a family's rows: one text if all rows agree, otherwise a text for each group of values of the first label
// besides link. The largest group is called others.
func distinctTexts(family []device.Metric, text func(device.Metric) string) string {
	var texts []string
	values := map[string][]string{}
	for _, m := range family {
		got := strings.ReplaceAll(text(m), " and newer", "+")
		if !slices.Contains(texts, got) {
			texts = append(texts, got)
		}
		for _, l := range m.Labels {
			if l.Name == "link" {
				continue
			}
			if !slices.Contains(values[got], l.Value) {
				values[got] = append(values[got], l.Value)
			}
			break
		}
	}
	if len(texts) == 1 {
		return texts[0]
	}
	largest := slices.MaxFunc(texts, func(a, b string) int { return cmp.Compare(len(values[a]), len(values[b])) })
	var lines []string
	for _, t := range texts {
		if t != "" && (t != largest || len(values[t]) < 3) {
			lines = append(lines, strings.Join(values[t], ", ")+": "+t)
		}
	}
	if largest != "" && len(values[largest]) > 2 {
		lines = append(lines, "others: "+largest)
	}
	return strings.Join(lines, "<br>")
}

// TestGoldenFilesHaveAllFamilies checks that each family of docs/reference/metrics.md is in at least one golden file, with the documented type.
func TestGoldenFilesHaveAllFamilies(t *testing.T) {
	if *update {
		t.Skip("the golden files may change")
	}
	shown := map[string]string{}
	files, err := filepath.Glob("../../internal/app/testdata/*.prom")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range append(files, "../../exporter/testdata/rdma.prom") {
		for line := range strings.Lines(testfile.Read(t, file)) {
			if head, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# TYPE "); ok {
				name, kind, _ := strings.Cut(head, " ")
				shown[name] = kind
			}
		}
	}
	page := testfile.Read(t, "../../docs/reference/metrics.md")
	documented := 0
	for _, row := range regexp.MustCompile("(?m)^\\|`([a-z0-9_]+)`<br>[^|]*\\|(?:owner-|device-)?([a-z]+)").FindAllStringSubmatch(page, -1) {
		name, kind := row[1], row[2]
		documented++
		switch {
		case shown[name] == "":
			t.Errorf("no golden file has %s", name)
		case shown[name] != "" && shown[name] != kind:
			t.Errorf("type of %s: got %s in docs/reference/metrics.md, %s in a golden file", name, kind, shown[name])
		}
	}
	if families := len(exporter.Families); documented <= families {
		t.Errorf("docs/reference/metrics.md: got %d families, want more than the %d without rows", documented, families)
	}
}

// TestEveryRowIsSimulated checks that at least one simulated model reports each row of NVML: otherwise golden files and dashboards lack it.
func TestEveryRowIsSimulated(t *testing.T) {
	m := sim.NewMachineWithModels(metric.Metrics(), time.Now, sim.Models()...)
	read := map[int]bool{}
	for _, gpu := range m.GPUs() {
		samples, err := m.Read(gpu)
		require.NoError(t, err)
		for _, s := range samples {
			read[s.Metric] = true
		}
	}
	for i, row := range metric.Metrics() {
		if !read[i] {
			t.Errorf("sim/values.go has no value for %s%v", row.Name, row.Labels)
		}
	}
}

// TestXidsPage checks that docs/reference/xids.md has the classes, Xids, events and checks of the code.
func TestXidsPage(t *testing.T) {
	docs.CheckTables(t, *update, "../../docs/reference/xids.md", map[string]string{"classes": classesTable(), "xids": xidsTable(), "kinds": eventTypesTable(), "checks": checksTable(), "nvlink": nvlinkTable(), "sxids": sxidsTable()})
}

// classesTable returns a table with a row for each class of Xids.
func classesTable() string {
	var table strings.Builder
	table.WriteString("|class|action|scope|effect|\n|---|---|---|---|\n")
	seen := map[xid.Class]bool{}
	for _, number := range append(slices.Sorted(maps.Keys(xid.Xids)), 0) { // 0 is unknown
		class := xid.ClassOf(number)
		if seen[class] {
			continue
		}
		seen[class] = true
		scope := "reported device"
		if class.WholeGPU() {
			scope = "whole GPU"
		}
		e := class.Event()
		fmt.Fprintf(&table, "|`%s`|%s|%s|%s|\n", e.Class, inlineCode(e.Action), scope, class.Effect())
	}
	return table.String()
}

func xidsTable() string {
	var table strings.Builder
	table.WriteString("|Xid|error|origin|class|\n|---|---|---|---|\n")
	for _, number := range slices.Sorted(maps.Keys(xid.Xids)) {
		row := xid.Xids[number]
		fmt.Fprintf(&table, "|%d|%s|%s|`%s`|\n", number, row.Name, row.Origin, row.Class.Event().Class)
	}
	return table.String()
}

// nvlinkTable returns a table with a row for each unit and verdict of NVLink 5 errors.
func nvlinkTable() string {
	var table strings.Builder
	table.WriteString("|Xid|unit|verdict|events|error status|\n|---|---|---|---|---|\n")
	for _, r := range xid.NVLinkErrors() {
		var events, statuses []string
		for _, e := range r.Events {
			events = append(events, fmt.Sprint(e))
		}
		for _, s := range r.Statuses {
			statuses = append(statuses, fmt.Sprintf("%#x", s))
		}
		fmt.Fprintf(&table, "|%d|%s|`%s`|%s|%s|\n", r.Xid, inlineCodes(r.Units), r.Verdict, strings.Join(events, " "), strings.Join(statuses, " "))
	}
	return table.String()
}

func inlineCodes(words []string) string { return "`" + strings.Join(words, "` `") + "`" }

func sxidsTable() string {
	var table strings.Builder
	table.WriteString("|SXid|error|severity|\n|---|---|---|\n")
	for _, number := range slices.Sorted(maps.Keys(sxid.Errors)) {
		fmt.Fprintf(&table, "|%d|%s|`%s`|\n", number, sxid.Name(number), sxid.Errors[number].Severity)
	}
	return table.String()
}

func eventTypesTable() string {
	var table strings.Builder
	table.WriteString("|reason|NVML event type|class|\n|---|---|---|\n")
	for _, k := range nvml.EventTypes {
		fmt.Fprintf(&table, "|`%s`|%#x|`%s`|\n", k.Kind, k.Mask, k.Class.Event().Class)
	}
	return table.String()
}

func checksTable() string {
	var table strings.Builder
	table.WriteString("|reason|condition|NVML|action|recovery|\n|---|---|---|---|---|\n")
	for _, c := range collect.Checks() {
		recovery := "when the condition ends"
		if c.Fault.NeedsReset {
			recovery = "after a reset"
		}
		fmt.Fprintf(&table, "|`%s`|%s|%s|%s|%s|\n", c.Fault.Reason, c.Condition, withFieldNames(c.Source()), inlineCode(c.Fault.Action), recovery)
	}
	return table.String()
}

func inlineCode(word string) string {
	if word == "" || strings.Contains(word, " ") {
		return word
	}
	return "`" + word + "`"
}
