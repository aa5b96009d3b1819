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

	"github.com/podgauge/podgauge/exporter"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/sim"
)

// scaledNode is a node of docs/scale.md. A pod holds each of its devices.
type scaledNode struct {
	name    string
	models  []*sim.Model
	slices  int // of each GPU
	sharers int // of each GPU, with a process each
	rows    []device.Metric
	args    []string
}

const stable = "--metrics.pod-labels=allocation"

// eight is the node that fleets are made of.
var eight = slices.Repeat([]*sim.Model{sim.H100}, 8)

// Of the nodes, those of which docs/scale.md computes fleets.
const (
	allSeries  = 1
	leanSeries = 4
)

// lean are the families of large fleets: what is recorded, and what alerts ask for that are on health.
const lean = "podgauge_build_info,podgauge_*_up,podgauge_plugin_streams,podgauge_plugin_refusals_total,podgauge_holders_age_seconds,podgauge_series*," +
	"nvidia_gpu_up,nvidia_gpu_stalled,nvidia_gpu_info,nvidia_gpu_health*,nvidia_gpu_unhealthy_info,nvidia_gpu_xid_*,nvidia_gpu_incident*,nvidia_gpu_allocat*," +
	"nvidia_gpu_recovery_action,nvidia_gpu_row_remap_failure,nvidia_gpu_ecc_aggregate_errors_total,nvidia_gpu_pcie_replays_total," +
	"nvidia_gpu_utilization_ratio,nvidia_gpu_graphics_engine_active_ratio,nvidia_gpu_memory_used_bytes,nvidia_gpu_memory_total_bytes," +
	"nvidia_gpu_power_watts,nvidia_gpu_energy_joules_total,nvidia_gpu_temperature_celsius"

// unasked are families that no alert, no recording rule and no dashboard asks for.
const unasked = "go_*,nvidia_gpu_feature_supported,nvidia_gpu_compute_mode,nvidia_gpu_performance_state,nvidia_gpu_persistence_mode_enabled," +
	"nvidia_gpu_row_remap_banks,nvidia_gpu_repair_pending,nvidia_gpu_fabric_fault,nvidia_gpu_nvlink_speed_*,nvidia_gpu_pcie_replay_rollovers_total," +
	"nvidia_gpu_ecc_enabled,nvidia_gpu_ecc_*_location_*,nvidia_gpu_ecc_sram_aggregate_unit_*,nvidia_gpu_bar1_*,nvidia_gpu_memory_reserved_bytes"

var scaledNodes = []scaledNode{
	{name: "a T4", models: []*sim.Model{sim.T4}},
	{name: "8 H100", models: eight},
	{name: "8 H100, `" + stable + "`", models: eight, args: []string{stable}},
	{name: "8 H100, without what nobody asks for", models: eight, args: []string{"--metrics.exclude=" + unasked}},
	{name: "8 H100, the short list, `" + stable + "`", models: eight, args: []string{stable, "--metrics.include=" + lean}},
	{name: "8 H100, `--metrics.dcgm`", models: eight, args: []string{"--metrics.dcgm"}},
	{name: "8 H100, `--metrics.nvlink-links`", models: eight, rows: nvml.MetricsPerLink(), args: []string{"--metrics.nvlink-links"}},
	{name: "8 H100, each shared by four pods, with `hostPID`", models: eight, sharers: 4},
	{name: "8 H100 in 56 slices", models: eight, slices: 7, args: []string{"--mig-strategy=single"}},
	{name: "8 H100 in 56 slices, `" + stable + "`", models: eight, slices: 7, args: []string{"--mig-strategy=single", stable}},
}

// scale is how many series such a node has, and how many of them name one of its pods.
type scale struct{ series, ofPod int }

// count runs the program on the node.
func (n *scaledNode) count(t *testing.T) (c scale) {
	t.Helper()
	if n.rows == nil {
		n.rows = nvml.Metrics()
	}
	machine := sim.NewMachineOf(n.rows, standing, n.models...)
	if n.slices > 0 {
		for _, gpu := range machine.GPUs() {
			machine.Partition(gpu, slices.Repeat([]string{"1g.10gb"}, n.slices)...)
		}
	}
	s, args, held := setting{machine: machine}, n.args, len(machine.IDs())
	p := newProcesses(t, false)
	if n.sharers > 0 {
		s.proc, held = p.root, held*n.sharers
		config := filepath.Join(t.TempDir(), "config.yaml")
		text := fmt.Sprintf("version: v1\nsharing: {timeSlicing: {resources: [{name: %s, replicas: %d}]}}\n", resource, n.sharers)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config-file="+config)
	}
	w := newWorldOf(t, s, args...)
	w.untilAllocatable(resource, held)
	for i := range held {
		it := pod("team", fmt.Sprintf("pod-%d", i), 1)
		w.run(it)
		if n.sharers > 0 {
			w.runs(p, uint32(1000+i), it, 1<<30, 0.1)
		}
	}
	w.untilScrape("all pods, and what they share", func(text string) bool {
		return strings.Count(text, "\nnvidia_gpu_allocation_info{") == held &&
			(n.sharers == 0 || strings.Count(text, "\nnvidia_gpu_container_processes{") == held)
	})
	if slices.Contains(args, "--metrics.dcgm") {
		w.untilScrape("rates, which take ten seconds", func(text string) bool {
			return strings.Count(text, "\nDCGM_FI_PROF_PCIE_TX_BYTES{") == held
		})
	}
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--metrics.include=") }) {
		w.untilCounted(resource, held)
	}
	text := w.settled()
	c.ofPod = strings.Count(text, `pod="pod-0"`)
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, "podgauge_series "); is {
			c.series, _ = strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return c
}

// What a fleet's figures are computed with, besides the series that were counted. docs/scale.md
// says where these are from.
const (
	ownSeries      = 118  // of podgauge itself, the Go runtime and the process: not in podgauge_series
	leanOwnSeries  = 9    // those of them that the short list has
	bytesPerSeries = 3000 // of Prometheus' memory, for a series in its head
	bytesPerSample = 2    // on disk, index included
)

// TestScalePage: the tables in docs/scale.md are what such nodes show, and what follows from it.
func TestScalePage(t *testing.T) {
	t.Parallel()
	counts := make([]scale, len(scaledNodes))
	t.Run("nodes", func(t *testing.T) {
		for i, n := range scaledNodes {
			t.Run(n.name, func(t *testing.T) {
				t.Parallel()
				counts[i] = n.count(t)
			})
		}
	})
	if t.Failed() {
		return
	}
	var nodes strings.Builder
	nodes.WriteString("| node | series | of them new with each pod and device |\n|---|---|---|\n")
	for i, n := range scaledNodes {
		fmt.Fprintf(&nodes, "| %s | %s | %d |\n", n.name, figure(float64(counts[i].series)), counts[i].ofPod)
	}
	hasTables(t, "../../docs/scale.md", map[string]string{
		"nodes": nodes.String(), "all": fleets(counts[allSeries].series + ownSeries),
		"lean": fleets(counts[leanSeries].series + leanOwnSeries),
	})
}

// fleets are what so many nodes cost that have so many series each.
func fleets(series int) string {
	var b strings.Builder
	b.WriteString("| nodes | series | samples a second, scraped every 15 s | 30 s | 60 s | memory | disk a day, every 30 s |\n|---|---|---|---|---|---|---|\n")
	for _, nodes := range []float64{1, 10, 100, 1000, 10000} {
		all := nodes * float64(series)
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", figure(nodes), figure(all), figure(all/15), figure(all/30), figure(all/60),
			size(all*bytesPerSeries), size(all/30*86400*bytesPerSample))
	}
	return b.String()
}

// figure writes a number as it is read: from 10,000 on with three digits, and in groups.
func figure(n float64) string {
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

// size writes bytes with two digits.
func size(bytes float64) string {
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

// TestLists: what docs/scale.md says that nobody asks for is asked for by nobody; the short list
// has all that is recorded, and what alerts it has silent is said.
func TestLists(t *testing.T) { // not beside TestScalePage, which writes the same page
	without, err := exporter.NewChoice(nil, strings.Split(unasked, ","))
	if err != nil {
		t.Fatal(err)
	}
	short, err := exporter.NewChoice(strings.Split(lean, ","), nil)
	if err != nil {
		t.Fatal(err)
	}
	asking := 0
	for _, glob := range []string{"../../deploy/rules/*.rules.yaml", "../../deploy/rules/*.recording.yaml", "../../dashboards/*.json"} {
		files, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, family := range askedFor(read(t, file)) {
				if asking++; !without.Takes(family) {
					t.Errorf("%s asks for %s", file, family)
				}
			}
		}
	}
	if asking < 200 {
		t.Errorf("%d are asked for only", asking)
	}
	for _, family := range askedFor(read(t, "../../deploy/rules/podgauge.recording.yaml")) {
		if !short.Takes(family) {
			t.Errorf("what is recorded asks for %s, which is not in the short list", family)
		}
	}
	var silent []string
	for _, alert := range strings.Split(read(t, "../../deploy/rules/podgauge.rules.yaml"), "- alert: ")[1:] {
		name, rest, _ := strings.Cut(alert, "\n")
		expression, _, _ := strings.Cut(rest, "labels:")
		if !slices.ContainsFunc(askedFor(expression), func(family string) bool { return !short.Takes(family) }) {
			continue
		}
		silent = append(silent, fmt.Sprintf("[`%s`](runbooks/%s.md)", strings.TrimPrefix(name, "Podgauge"), name))
	}
	hasTables(t, "../../docs/scale.md", map[string]string{
		"unasked": values("exclude", unasked), "short": values("include", lean),
		"silent": strings.Join(silent, ", ") + ".\n",
	})
}

// TestSentOn: what docs/scale.md sends on is all that the dashboard of recorded series asks for.
// Where a part of it is missing the dashboard says that all is well.
func TestSentOn(t *testing.T) {
	matches := regexp.MustCompile(`(?:regex: |__name__=~)"([^"]+)"`).FindAllStringSubmatch(read(t, "../../docs/scale.md"), -1)
	if len(matches) != 2 { // by remote write, and by federation
		t.Fatalf("%d matches", len(matches))
	}
	asked := regexp.MustCompile(`(?:nvidia_gpu|podgauge|node_[a-z]+:)[\w:]+`).FindAllString(read(t, "../../dashboards/fleet-recorded.json"), -1)
	if len(asked) < 20 {
		t.Fatalf("%d series are asked for", len(asked))
	}
	for _, match := range matches {
		sent := regexp.MustCompile("^(?:" + match[1] + ")$")
		for _, series := range asked {
			if !sent.MatchString(series) {
				t.Errorf("%s is asked for, and not sent on by %s", series, match[1])
			}
		}
	}
}

// values are the chart's, for a list of families.
func values(key, list string) string {
	var b strings.Builder
	b.WriteString("```yaml\nmetrics:\n  " + key + ": [")
	width := b.Len()
	for i, family := range strings.Split(list, ",") {
		if i > 0 {
			b.WriteString(", ")
		}
		if width += len(family) + 2; width > 120 {
			b.WriteString("\n    ")
			width = len(family)
		}
		b.WriteString(family)
	}
	return strings.ReplaceAll(b.String(), ", \n", ",\n") + "]\n```\n"
}

// askedFor are the families that a text names, and not what is recorded of them.
func askedFor(text string) (families []string) {
	for _, match := range regexp.MustCompile(`(?:^|[^\w:])((?:nvidia_gpu|podgauge|process|go)_\w+)`).FindAllStringSubmatch(text, -1) {
		families = append(families, match[1])
	}
	return families
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
