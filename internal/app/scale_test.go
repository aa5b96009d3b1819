package app_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/docs"
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
		args = append(args, "--config-file="+sharedConfig(t, n.podsPerGPU))
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
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
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
	docs.CheckTables(t, *update, "../../docs/explanation/scale.md", map[string]string{
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
