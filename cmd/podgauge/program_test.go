package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// startPodgauge runs podgauge on the stand-in for NVML, which is found through the environment. The returned function reads how often each
// NVML function was called.
func startPodgauge(t *testing.T, machine []string, args ...string) (p *program.RunningProgram, calls func() nvmltest.CallCounts) {
	t.Helper()
	dir := program.ShortDir(t)
	if _, err := nvmltest.Build(dir); err != nil {
		t.Fatal(err)
	}
	require.NoError(t, nvmltest.NewScenario(filepath.Join(dir, "scenario")).Set(machine...))
	p = program.Start(t, []string{
		"LD_LIBRARY_PATH=" + dir,
		nvmltest.EnvScenario + "=" + filepath.Join(dir, "scenario"), nvmltest.EnvCalls + "=" + filepath.Join(dir, "calls"),
	}, append(args, "--kubelet-dir="+dir)...)
	return p, func() nvmltest.CallCounts {
		t.Helper()
		read, err := nvmltest.ReadCalls(filepath.Join(dir, "calls"))
		require.NoError(t, err)
		return read
	}
}

// addedLabels matches the labels that the exporter adds to each series of a GPU.
var addedLabels = regexp.MustCompile(`(container|gpu|mig_uuid|namespace|pod|uuid)="[^"]*",?`)

// TestValues checks the exact value of each reading from the library to the scrape.
func TestValues(t *testing.T) {
	t.Parallel()
	p, _ := startPodgauge(t, append(nvmltest.BusyGPU, "gpus 1"), "--device-plugin=false", "--metrics.set=full")
	got := map[string]string{}
	read := func() (complete bool) {
		for line := range strings.Lines(p.Scrape(t)) {
			series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
			got[strings.NewReplacer(",}", "}", "{}", "").Replace(addedLabels.ReplaceAllString(series+"}", ""))] = value
		}
		for series := range nvmltest.BusyValues {
			if got[series] == "" {
				return false
			}
		}
		return true
	}
	program.WaitUntil(t, "the first metrics", func() bool { read(); return got["nvidia_gpu_power_watts"] != "" })
	t.Logf("%s: first metrics after %s", runtime.GOARCH, time.Since(p.Started).Round(time.Millisecond))
	program.WaitUntil(t, "series of all readings", read)
	sinceStart := regexp.MustCompile(`_(bytes|joules)_total|throttle_seconds_total`) // these count from the first reading
	for series, want := range nvmltest.BusyValues {
		if sinceStart.MatchString(series) {
			want = 0
		}
		if value, err := strconv.ParseFloat(got[series], 64); err != nil || value != want {
			t.Errorf("%s: got %s, want %v", series, got[series], want)
		}
	}
}

// TestCallsOfTheProgram checks that, with all features on GPUs of all kinds, the one function that takes 20 ms is never called.
func TestCallsOfTheProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	t.Parallel()
	models := []string{"h100", "a100", "b200", "gb200", "t4", "h100"}
	machine := []string{fmt.Sprint("gpus ", len(models))}
	for i, model := range models {
		machine = append(machine, fmt.Sprintf("gpu %d model %s", i, model), fmt.Sprintf("gpu %d process 17 1000", i))
	}
	machine = append(machine, "gpu 5 mig_mode 1", "gpu 5 slice 0 1g.10gb gi 7 ci 0", "gpu 5 slice 1 3g.40gb gi 2 ci 0")
	p, calls := startPodgauge(t, machine, "--device-plugin=false", "--metrics.set=full", "--metrics.dcgm", "--metrics.nvlink-links", "--metrics.pod-labels=allocation")
	text := ""
	program.WaitUntil(t, "all GPUs were read twice, and sampled", func() bool {
		text = p.Scrape(t)
		return strings.Contains(text, `nvidia_gpu_sm_active_ratio{container="",gpu="5",mig_uuid="MIG-`) && calls().Count("nvmlDeviceGetMemoryInfo_v2", 4) > 1
	})
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	require.NoError(t, err)
	for _, problem := range problems { // podgauge cannot choose the names of the Go collector and of dcgm-exporter
		if !strings.HasPrefix(problem.Metric, "go_") && !strings.HasPrefix(problem.Metric, "DCGM_") {
			t.Errorf("promlint: %s: %s", problem.Metric, problem.Text)
		}
	}
	counted := calls()
	for gpu := range models {
		if n := counted.Count("nvmlDeviceGetPcieThroughput", gpu); n > 0 {
			t.Errorf("nvmlDeviceGetPcieThroughput on GPU %[2]d: got %[1]d calls, want none", n, gpu)
		}
		if counted.GPUTotal(gpu) == 0 {
			t.Errorf("GPU %d: got no NVML calls", gpu)
		}
	}
}
