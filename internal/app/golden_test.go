package app_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeFamilies are the families whose values or series depend on the time or the machine. Golden files contain only their headers.
var timeFamilies = []string{
	"podgauge_build_info",
	"podgauge_collection_begin_timestamp_seconds", "podgauge_collection_end_timestamp_seconds", "podgauge_allocations_age_seconds",
	"podgauge_plugin_request_duration_seconds", "podgauge_pod_resources_request", "podgauge_events_up",
	"nvidia_gpu_health_since_timestamp_seconds", "nvidia_gpu_health_state_seconds_total", "nvidia_gpu_incident_last_timestamp_seconds", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds",
	"nvidia_gpu_xid_last_timestamp_seconds",
	"nvidia_gpu_allocation_last_seen_timestamp_seconds", "podgauge_series ", // a pod may first run on a device other than the test's
}

// ignoredPrefixes are the prefixes of families that podgauge does not define.
var ignoredPrefixes = []string{"go_", "process_"}

// TestGolden takes the program through the states of a node, including recoveries, and compares the scrape in each. The GPUs export few
// families.
func TestGolden(t *testing.T) {
	t.Parallel()
	w := newTestAppWith(t, testSetup{machine: newMachine(sim.T4, sim.T4, sim.T4, sim.T4), missingFamilies: []string{"nvidia_gpu_unrepairable_memory"}})
	ids := w.machine.AllocatableIDs()
	w.waitCounted(gpuResource, 4)
	w.checkScrape("idle", "nvidia_gpu_allocated{", " 0")

	w.runPodOn(gpuPod("research", "train", 2), ids[0], ids[1])
	w.runPodOn(gpuPod("serving", "embed", 1), ids[2])
	w.machine.SetUtilization(ids[0], 0.75)
	w.machine.SetUtilization(ids[1], 1)
	w.waitLine(`nvidia_gpu_power_watts{container="main",gpu="1"`, " 70")
	w.waitLine(`nvidia_gpu_allocated{container="",gpu="3"`, " 0")
	w.checkScrape("allocated", `nvidia_gpu_power_watts{container="main",gpu="0"`, " 54.75")

	w.machine.Fail(ids[1], "xid 79")
	w.waitLine("podgauge_plugin_devices{health=\"unhealthy\"", " 1")
	w.waitCounted(gpuResource, 3)
	w.checkScrape("gpu_failed", `nvidia_gpu_up{container="",gpu="1"`, " 0")
	w.checkPage("gpu_failed")
	w.machine.ResetGPU(ids[1])
	w.waitLine(`nvidia_gpu_healthy{container="main",gpu="1"`, " 1")
	w.waitCounted(gpuResource, 4)
	w.checkScrape("recovered", "podgauge_plugin_devices{health=\"unhealthy\"", " 0")

	w.machine.HangAll()
	w.checkScrape("driver_wedged", "podgauge_nvml_up", " 0") // after all calls have stalled
	w.checkPage("driver_wedged")
	w.machine.ReleaseHangs()
	w.waitLine(`nvidia_gpu_stalled{container="",gpu="0"`, " 0")
	w.checkScrape("recovered", `nvidia_gpu_up{container="",gpu="3"`, " 1")

	w.stopKubelet()
	w.waitLine("podgauge_plugin_streams{", " 0")
	w.checkScrape("kubelet_down", "podgauge_kubelet_up", " 0")
	w.checkPage("kubelet_down")
	w.startKubelet()
	w.waitLine("podgauge_plugin_streams{", " 1")
	w.waitCounted(gpuResource, 4)
	w.checkScrape("kubelet_down_recovered", "podgauge_kubelet_up", " 1")
}

// checkScrape waits for a line with this prefix and suffix, and then for a scrape that equals the golden file of a state. Earlier scrapes may
// differ, for example while the kubelet rejects a request. Promlint also checks the scrape.
func (w *testApp) checkScrape(state, begins, ends string) {
	w.t.Helper()
	text := w.waitLine(begins, ends)
	file := filepath.Join("testdata", state+".prom")
	if *update {
		text = w.stableScrape()
		require.NoError(w.t, os.WriteFile(file, w.maskTimes(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(w.t, err)
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for end := time.Now().Add(waitTimeout); !w.t.Failed() && !bytes.Equal(w.maskTimes(text), want) && time.Now().Before(end); <-poll.C {
		text = w.scrape("text/plain")
	}
	if got := w.maskTimes(text); !bytes.Equal(got, want) {
		w.t.Errorf("%s differs from %s; if intended, run make golden:\n%s", state, file, diffLines(string(want), string(got)))
	}
	lint(w.t, state, text)
}

// stableScrape scrapes until two collections agree. The interval is longer than the time in which scrapes share a collection.
func (w *testApp) stableScrape() string {
	w.t.Helper()
	poll := time.NewTicker(1100 * time.Millisecond)
	defer poll.Stop()
	text := w.scrape("text/plain")
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); {
		<-poll.C
		next := w.scrape("text/plain")
		if bytes.Equal(w.maskTimes(next), w.maskTimes(text)) {
			return next
		}
		text = next
	}
	w.t.Fatalf("no two collections agreed within %s", waitTimeout)
	return ""
}

func lint(t *testing.T, state, text string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	expect.NoError(t, err, state)
	for _, p := range problems {
		// Podgauge cannot choose the names, units, types and labels of the Go collector and of dcgm-exporter.
		if !strings.HasPrefix(p.Metric, "go_") && !strings.HasPrefix(strings.ToUpper(p.Metric), "DCGM_") {
			t.Errorf("%s: promlint: %s: %s", state, p.Metric, p.Text)
		}
	}
}

// maskTimes removes lines that depend on the clock, and replaces values that differ between runs.
func (w *testApp) maskTimes(text string) []byte {
	hasAnyPrefix := func(with []string, name string) bool {
		return slices.ContainsFunc(with, func(p string) bool { return strings.HasPrefix(name, p) })
	}
	var kept bytes.Buffer
	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if !hasAnyPrefix(ignoredPrefixes, name) && (name != line || !hasAnyPrefix(timeFamilies, name)) {
			kept.WriteString(line)
		}
	}
	if w.replacer == nil {
		return kept.Bytes()
	}
	return []byte(w.replacer.Replace(kept.String()))
}

// diffLines lists the lines that only one of the two texts has.
func diffLines(want, got string) string {
	var d strings.Builder
	lines := func(s string) []string { return slices.Collect(strings.Lines(s)) }
	for _, l := range lines(want) {
		if !slices.Contains(lines(got), l) {
			d.WriteString("-" + l)
		}
	}
	for _, l := range lines(got) {
		if !slices.Contains(lines(want), l) {
			d.WriteString("+" + l)
		}
	}
	return d.String()
}
