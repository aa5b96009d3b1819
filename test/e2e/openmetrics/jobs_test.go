package openmetrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
)

// simulatedJobs are the alerts about a pod with the first four GPUs of a simulated machine. %d in a line of a script stands for each of
// them. All GPUs train from the beginning.
var simulatedJobs = []struct {
	name    string
	machine *sim.Model
	script  string
	want    []string
}{
	{"hung collective", sim.H100, "20m work %d waiting\n45m work %d training", []string{"PodgaugeJobWaiting activity"}},
	{"hung collective before Hopper", sim.A100, "20m work %d waiting\n45m work %d training", []string{"PodgaugeJobWaiting power"}},
	{"ended process", sim.H100, "20m work %d waiting\n20m work 3 checkpoint\n45m work %d training", []string{"PodgaugeJobCulprit 3"}},
	{"lost GPU", sim.H100, "20m work %d waiting\n20m xid 3 79\n45m work %d training", []string{"PodgaugeJobCulprit 3"}},
	{"slow GPU", sim.H100, "20m slow 2 0.5\n45m slow 2 0", []string{"PodgaugeStraggler 2 sm_clock", "PodgaugeStraggler 2 throttling"}},
	{
		"PCIe link", sim.A100,
		`20m set 1 nvidia_gpu_pcie_link_generation 1` + "\n" + `45m set 1 nvidia_gpu_pcie_link_generation 4`,
		[]string{"PodgaugeStraggler 1 pcie_link"},
	},

	{"training", sim.H100, "", nil},
	{"data loading", sim.H100, "20m work %d data-loading\n45m work %d training", nil},
	{"checkpoints", sim.H100, "20m work %d checkpoint\n25m work %d training\n40m work %d checkpoint\n44m work %d training", nil},
	{"checkpoint of one GPU", sim.H100, "20m work %d waiting\n20m work 0 checkpoint\n27m work %d training", nil},
	{"evaluation", sim.H100, "20m work %d evaluation\n45m work %d training", nil},
	{"evaluation before Hopper", sim.A100, "20m work %d evaluation\n45m work %d training", nil},
	{"inference", sim.H100, "20m work %d inference\n45m work %d training", nil},
	{"short barrier", sim.H100, "20m work %d waiting\n28m work %d training", nil},
	{"all GPUs slow", sim.H100, "20m slow %d 0.5\n45m slow %d 0", nil},
}

// TestSimulatedJobs runs the rules on the values of a simulated machine, whose clock the test sets.
func TestSimulatedJobs(t *testing.T) {
	for _, job := range simulatedJobs {
		t.Run(job.name, func(t *testing.T) {
			t.Parallel()
			const end = time.Hour
			h := recordMachine(t, job.machine, "0m work %d training\n"+job.script, end)
			firing := h.evaluate(t, append(recordingsOf(t, rulesFile), rulesOf(t, jobsFile)...), time.Minute, end)
			var got []string
			for _, now := range firing {
				for _, alert := range now {
					words := alert.Get(model.AlertNameLabel) + " " + alert.Get("gpu") + " " + alert.Get("evidence") + " " + alert.Get("reason")
					got = append(got, strings.Join(strings.Fields(words), " "))
				}
			}
			slices.Sort(got)
			expect.EqualSlices(t, slices.Compact(got), job.want, "alerts")
			if last := firing[len(firing)-1]; len(last) > 0 {
				t.Errorf("alerts at the end: %v", last)
			}
		})
	}
}

// recordMachine returns the series of eight GPUs each minute. Pod a has the first four, and pod b, which trains, the others.
func recordMachine(t *testing.T, gpuModel *sim.Model, script string, end time.Duration) *history {
	t.Helper()
	now := time.Unix(0, 0)
	m := sim.NewMachineWithModels(queriedRows(t), func() time.Time { return now }, slices.Repeat([]*sim.Model{gpuModel}, 8)...)
	for _, id := range m.AllocatableIDs() {
		m.SetUtilization(id, 1)
		require.NoError(t, m.SetWork(id, "training"))
	}
	var lines []string
	for line := range strings.Lines(script) {
		for gpu := range 4 {
			if !strings.Contains(line, "%d") {
				lines = append(lines, line)
				break
			}
			lines = append(lines, strings.ReplaceAll(line, "%d", fmt.Sprint(gpu)))
		}
	}
	parsed, err := sim.ReadScript(strings.NewReader(strings.Join(lines, "\n")))
	require.NoError(t, err)
	h, series := newHistory(), map[string]*promql.Series{}
	add := func(at time.Duration, value float64, set labels.Labels) {
		key := set.String()
		if series[key] == nil {
			series[key] = h.newSeries(set)
		}
		appendSample(series[key], at, value)
	}
	for at := time.Duration(0); at <= end; at += time.Minute {
		now = time.Unix(0, 0).Add(at)
		for len(parsed.Steps) > 0 && parsed.Steps[0].At <= at {
			require.NoError(t, parsed.Steps[0].RunOn(t.Context(), m))
			parsed.Steps = parsed.Steps[1:]
		}
		for i, gpu := range m.GPUs() {
			ofDevice := labels.FromStrings("node", "node-a", "gpu", fmt.Sprint(i), "uuid", string(gpu))
			pod := []string{"a", "b"}[i/4]
			owner := labels.NewBuilder(ofDevice).Set("namespace", "ml").Set("pod", pod).Set("container", "main").Labels()
			name := func(set labels.Labels, name string, more ...device.Label) labels.Labels {
				b := labels.NewBuilder(set).Set(model.MetricNameLabel, name)
				for _, l := range more {
					b.Set(l.Name, l.Value)
				}
				return b.Labels()
			}
			add(at, 1, name(labels.NewBuilder(owner).Del("gpu").Labels(), "nvidia_gpu_allocation_info"))
			add(at, 1, name(ofDevice, "nvidia_gpu_info", device.Label{Name: "model", Value: "a model"}))
			samples, _ := m.Read(gpu) // a lost GPU has none
			for _, s := range samples {
				row := m.Metrics()[s.Metric]
				set := ofDevice
				if row.Kind == device.Gauge || row.Kind == device.OwnerCounter {
					set = owner
				}
				add(at, s.Value, name(set, row.Name, row.Labels...))
			}
		}
	}
	return h
}

// queriedRows returns the rows of the families that the rules query.
func queriedRows(t *testing.T) (rows []device.Metric) {
	t.Helper()
	queried := map[string]bool{}
	for _, rule := range recordingsOf(t, jobsFile) {
		for _, s := range selectors(t, rule.Expr) {
			queried[s.Name] = true
		}
	}
	kinds := map[string]device.Kind{"owner-counter": device.OwnerCounter, "device-counter": device.FaultCounter, "device-gauge": device.StateGauge}
	for _, f := range documentedFamilies(t) {
		if !queried[f.name] || !f.isReading {
			continue
		}
		row := device.Metric{Name: f.name, Kind: kinds[f.kind]}
		if len(f.values) == 0 {
			rows = append(rows, row)
		}
		for label, values := range f.values {
			for _, value := range values {
				row.Labels = []device.Label{{Name: label, Value: value}}
				rows = append(rows, row)
			}
		}
	}
	return rows
}
