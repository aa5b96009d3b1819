package app

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
)

// scaleCase is a node of docs/explanation/scale.md. Each device is allocated to a pod.
type scaleCase struct {
	name       string
	models     []*sim.Model
	migPerGPU  int // MIG devices of each GPU
	podsPerGPU int // pods that share each GPU, with a process each
	rows       []device.Metric
	args       []string
}

const stableSeriesFlag = "--metrics.pod-labels=allocation"

// eightH100 is the node of the fleets.
var eightH100 = slices.Repeat([]*sim.Model{sim.H100}, 8)

// Indexes in scaleCases of the nodes for which docs/explanation/scale.md computes fleets.
const (
	caseAllSeries  = 1
	caseLeanSeries = 4
)

var scaleCases = []scaleCase{
	{name: "a T4", models: []*sim.Model{sim.T4}},
	{name: "8 H100", models: eightH100},
	{name: "8 H100, `" + stableSeriesFlag + "`", models: eightH100, args: []string{stableSeriesFlag}},
	{name: "8 H100, `--metrics.set=minimal`", models: eightH100, args: []string{"--metrics.set=minimal"}},
	{name: "8 H100, `--metrics.set=minimal`, `" + stableSeriesFlag + "`", models: eightH100, args: []string{"--metrics.set=minimal", stableSeriesFlag}},
	{name: "8 H100, `--metrics.set=full`", models: eightH100, args: []string{"--metrics.set=full"}},
	{name: "8 H100, `--metrics.dcgm`", models: eightH100, args: []string{"--metrics.dcgm"}},
	{name: "8 H100, `--metrics.nvlink-links`", models: eightH100, rows: metric.MetricsPerLink(), args: []string{"--metrics.nvlink-links"}},
	{name: "8 H100, each shared by four pods, with `hostPID`", models: eightH100, podsPerGPU: 4},
	{name: "8 H100 in 56 MIG devices", models: eightH100, migPerGPU: 7, args: []string{"--mig-strategy=single"}},
	{name: "8 H100 in 56 MIG devices, `" + stableSeriesFlag + "`", models: eightH100, migPerGPU: 7, args: []string{"--mig-strategy=single", stableSeriesFlag}},
	{name: "8 H100 in 56 MIG devices, `--metrics.set=full`", models: eightH100, migPerGPU: 7, args: []string{"--mig-strategy=single", "--metrics.set=full"}},
}

// seriesCount is the number of series of a node, and the part of them that names a given pod.
type seriesCount struct{ series, perPod int }

// countSeries runs the program on the node and counts its series.
func (n *scaleCase) countSeries(t *testing.T) (c seriesCount) {
	t.Helper()
	if n.rows == nil {
		n.rows = metric.Metrics()
	}
	machine := sim.NewMachineWithModels(n.rows, fixedClock, n.models...)
	if n.migPerGPU > 0 {
		for _, gpu := range machine.GPUs() {
			machine.Partition(gpu, slices.Repeat([]string{"1g.10gb"}, n.migPerGPU)...)
		}
	}
	s, args, allocations := testSetup{machine: machine}, append([]string{"--metrics.set=default"}, n.args...), len(machine.AllocatableIDs())
	p := newFakeProcFS(t, false)
	if n.podsPerGPU > 0 {
		s.procDir, allocations = p.root, allocations*n.podsPerGPU
		config := filepath.Join(t.TempDir(), "config.yaml")
		text := fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: %s, replicas: %d}]}}\n", gpuResource, n.podsPerGPU)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config-file="+config)
	}
	w := newTestAppWith(t, s, args...)
	w.waitAllocatable(gpuResource, allocations)
	for i := range allocations {
		owner := gpuPod("team", fmt.Sprintf("pod-%d", i), 1)
		w.runPod(owner)
		if n.podsPerGPU > 0 {
			w.runProcess(p, uint32(1000+i), owner, 1<<30, 0.1)
		}
	}
	w.waitScrape("all pods, and the usage of shared GPUs", func(text string) bool {
		return strings.Count(text, "\nnvidia_gpu_allocation_info{") == allocations &&
			(n.podsPerGPU == 0 || strings.Count(text, "\nnvidia_gpu_container_sm_utilization_ratio{") == allocations)
	})
	if slices.Contains(args, "--metrics.dcgm") {
		w.waitScrape("rates, after ten seconds", func(text string) bool {
			return strings.Count(text, "\nDCGM_FI_PROF_PCIE_TX_BYTES{") == allocations
		})
	}
	if slices.Contains(args, "--metrics.set=full") {
		w.waitCounted(gpuResource, allocations)
	}
	text := w.stableScrape()
	c.perPod = strings.Count(text, `pod="pod-0"`)
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, "podgauge_series "); is {
			c.series, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return c
}

// Inputs of the fleet calculation besides the counted series. docs/explanation/scale.md has the sources.
const (
	selfSeries     = 101  // podgauge's own series with the set default: not in podgauge_series
	leanSelfSeries = 21   // the same with the set minimal
	bytesPerSeries = 3000 // memory of Prometheus per series in its head block
	bytesPerSample = 2    // on disk, index included
)

// TestScalePage checks that the tables in docs/explanation/scale.md have the measured series and the values derived from them.
func TestScalePage(t *testing.T) {
	t.Parallel()
	counts := make([]seriesCount, len(scaleCases))
	t.Run("nodes", func(t *testing.T) {
		for i, n := range scaleCases {
			t.Run(n.name, func(t *testing.T) {
				t.Parallel()
				counts[i] = n.countSeries(t)
			})
		}
	})
	if t.Failed() {
		return
	}
	var nodes strings.Builder
	nodes.WriteString("|node|series|new per pod and device|\n|---|---|---|\n")
	for i, n := range scaleCases {
		fmt.Fprintf(&nodes, "|%s|%s|%d|\n", n.name, formatNumber(float64(counts[i].series)), counts[i].perPod)
	}
	checkTables(t, "../../docs/explanation/scale.md", map[string]string{
		"nodes": nodes.String(), "all": fleetTable(counts[caseAllSeries].series + selfSeries),
		"lean": fleetTable(counts[caseLeanSeries].series + leanSelfSeries),
	})
}

// fleetTable returns the cost table of fleets with this number of series per node.
func fleetTable(series int) string {
	var b strings.Builder
	b.WriteString("|nodes|series|samples per second at 15 s|30 s|60 s|memory|disk per day at 30 s|\n|---|---|---|---|---|---|---|\n")
	for _, nodes := range []float64{1, 10, 100, 1000, 10000} {
		all := nodes * float64(series)
		fmt.Fprintf(&b, "|%s|%s|%s|%s|%s|%s|%s|\n", formatNumber(nodes), formatNumber(all), formatNumber(all/15), formatNumber(all/30), formatNumber(all/60),
			formatBytes(all*bytesPerSeries), formatBytes(all/30*86400*bytesPerSample))
	}
	return b.String()
}

// formatNumber formats a number for reading: from 10,000 with three significant digits, in groups.
func formatNumber(n float64) string {
	if n >= 10000 {
		digit := math.Pow10(int(math.Log10(n)) - 2)
		n = math.Round(n/digit) * digit
	}
	text := strconv.FormatFloat(math.Round(n), 'f', -1, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// formatBytes formats bytes with at least two significant digits.
func formatBytes(bytes float64) string {
	for _, unit := range []string{"kB", "MB", "GB", "TB"} {
		bytes /= 1000
		switch {
		case bytes < 10:
			return strconv.FormatFloat(bytes, 'f', 1, 64) + " " + unit
		case bytes < 1000 || unit == "TB":
			return strconv.FormatFloat(bytes, 'f', 0, 64) + " " + unit
		}
	}
	panic("not reached")
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

// alertGroups reads deploy/rules/podgauge.rules.yaml.
func alertGroups(t *testing.T) []alertGroup {
	t.Helper()
	var groups []alertGroup
	for _, text := range strings.Split(readFile(t, "../../deploy/rules/podgauge.rules.yaml"), "- name: ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		rules := strings.Split(rest, "- alert: ")
		group := alertGroup{name: name, recorded: rules[0]}
		for _, rule := range rules[1:] {
			alert, rest, _ := strings.Cut(rule, "\n")
			expression, texts, _ := strings.Cut(rest, "labels:")
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
	checkTables(t, "../../docs/reference/alerts.md", map[string]string{"alerts": table.String()})
}

// TestRemoteWriteMatches checks that the remote-write list of docs/how-to/large-fleets.md has all series of the dashboard Fleet.
func TestRemoteWriteMatches(t *testing.T) {
	matches := regexp.MustCompile(`(?:regex: |__name__=~)"([^"]+)"`).FindAllStringSubmatch(readFile(t, "../../docs/how-to/large-fleets.md"), -1)
	if len(matches) != 2 { // for remote write and for federation
		t.Fatalf("got %d matches, want 2", len(matches))
	}
	queried := regexp.MustCompile(`\w+:\w+:\w+`).FindAllString(readFile(t, "../../dashboards/fleet.json"), -1)
	if len(queried) < 20 {
		t.Fatalf("got %d queried series, want at least 20", len(queried))
	}
	for _, match := range matches {
		sent := regexp.MustCompile("^(?:" + match[1] + ")$")
		for _, series := range queried {
			if !sent.MatchString(series) {
				t.Errorf("%s is queried, but not sent by %s", series, match[1])
			}
		}
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
