package app_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/internal/web/api"
	"github.com/podgauge/podgauge/test/helpers/docs"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/kubelet/churn"
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

// TestChurn adds and deletes several pods a second on the simulated node, restarts the kubelet, and compares each scrape with the kubelet's
// state. PODGAUGE_CHURN is the number of transitions.
func TestChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	transitions, err := strconv.Atoi(cmp.Or(os.Getenv("PODGAUGE_CHURN"), "60"))
	if err != nil {
		t.Fatalf("PODGAUGE_CHURN: %v", err)
	}
	n := newChurnTarget(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	begin := time.Now()
	record, snapshots, err := churn.Run(t.Context(), n, churn.Plan{
		Transitions: transitions, KubeletRestarts: 2 + transitions/100, ListInterval: 5 * time.Millisecond, ScrapeInterval: 100 * time.Millisecond,
		GPUsPerPod: []int{1, 1, 1, 1, 2, 2}, Seed: seed,
	})
	require.NoError(t, err)
	now := time.Now()
	v := churn.Verify(churn.GroundTruth{Allocations: record.Allocations(now), Outages: record.Outages(now), EnergyAt: n.joules}, snapshots)
	for _, f := range v.Measurements() {
		t.Logf("figure: %s: %s", f.Name, f.Value)
	}
	t.Logf("figure: transitions a second: %.1f", float64(v.Transitions)/now.Sub(begin).Seconds())
	expect.NoError(t, v.Err())
	if v.Transitions < transitions {
		t.Errorf("got %d transitions, want %d", v.Transitions, transitions)
	}
}

// churnTarget is the simulated node as a churn.NodeUnderTest. Each GPU has a fixed power, with or without an owner, so that all
// energy counters are known at any time.
type churnTarget struct {
	*testApp
	start      time.Time
	watts      map[string]float64
	restarting atomic.Bool // the kubelet's connections may have ended, before its state does
}

func newChurnTarget(t *testing.T) *churnTarget {
	t.Helper()
	machine := sim.NewMachine(metric.Metrics(), 8, time.Now)
	n := &churnTarget{watts: map[string]float64{}}
	power := slices.IndexFunc(metric.Metrics(), func(m device.Metric) bool { return m.Name == "nvidia_gpu_power_watts" })
	for i, gpu := range machine.GPUs() {
		machine.SetUtilization(device.ID(gpu), float64(i)/8)
		samples, err := machine.Read(gpu)
		require.NoError(t, err)
		for _, s := range samples {
			if s.Metric == power {
				n.watts[string(gpu)] = s.Value
			}
		}
	}
	n.start = time.Now()
	own := kubelet.PodSpec{Namespace: "podgauge", Name: "podgauge-x7k2p", Containers: []kubelet.ContainerSpec{{Name: "podgauge"}}}
	n.testApp = newTestAppWith(t, testSetup{machine: machine, env: map[string]string{"POD_NAME": own.Name}})
	n.waitRegistered()
	require.NoError(t, n.kubelet.RunPod(t.Context(), own))
	program.WaitUntil(t, "the kubelet's start is over", func() bool { // without a collection, which would count energy
		_, allocations := n.getPath(api.AllocationsPath)
		return strings.Contains(allocations, `"complete":true`)
	})
	return n
}

// joules returns the energy of a GPU since the start.
func (n *churnTarget) joules(id string, at time.Time) float64 {
	return n.watts[id] * at.Sub(n.start).Seconds()
}

func (n *churnTarget) PodName(name string) string { return name }

// pod returns a pod. Pods with even numbers have a grace period, so that List contains them for a while after the deletion.
func (n *churnTarget) pod(name string, gpus int) kubelet.PodSpec {
	p := gpuPod(churn.PodNamespace, name, gpus)
	if number, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]); number%2 == 0 {
		p.GracePeriod = 200 * time.Millisecond
	}
	return p
}

func (n *churnTarget) CreatePod(ctx context.Context, name string, gpus int) error {
	return n.kubelet.RunPod(ctx, n.pod(name, gpus))
}

func (n *churnTarget) DeletePod(name string) error { return n.kubelet.DeletePod(n.pod(name, 0)) }

func (n *churnTarget) RestartKubelet(ctx context.Context, i int, wait time.Duration) error {
	n.restarting.Store(true)
	defer n.restarting.Store(false)
	return n.kubelet.Restart(ctx, func() { <-time.After(wait) })
}

func (n *churnTarget) ListAllocations(context.Context) (churn.KubeletListing, error) {
	var a churn.KubeletListing
	restarting := n.restarting.Load()
	a.From = time.Now()
	s := n.kubelet.State()
	a.To = time.Now()
	a.Complete = s.PodsRead && !restarting
	for _, p := range s.Pods {
		for _, c := range p.Containers {
			for _, d := range c.Devices {
				if p.InList {
					a.Allocated = append(a.Allocated, churn.DeviceOwner{Device: d.ID, Owner: churn.ContainerKey{Namespace: p.Namespace, Pod: p.Name, Container: c.Name}})
				}
			}
		}
	}
	return a, nil
}

func (n *churnTarget) Scrape(ctx context.Context) (churn.MetricsSnapshot, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.url+"/metrics", http.NoBody)
	if err != nil {
		return churn.MetricsSnapshot{}, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return churn.MetricsSnapshot{}, err
	}
	defer resp.Body.Close()
	return churn.Parse(resp.Body)
}
