package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// startPodgauge runs podgauge on the stand-in for NVML, which is found through the environment. The returned function reads how often each
// NVML function was called.
func startPodgauge(t *testing.T, machine []string, args ...string) (p *program.RunningProgram, calls func() nvmltest.CallCounts) {
	t.Helper()
	dir := program.ShortDir(t)
	_, err := nvmltest.Build(dir)
	require.NoError(t, err)
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

// TestLostAccessToDriver takes the access to all GPUs from a running podgauge, as `systemctl daemon-reload` can. That is no fault of a GPU. The
// process ends, the next one waits longer, and a process with access works.
func TestLostAccessToDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	dir := program.ShortDir(t)
	_, err := nvmltest.Build(dir)
	require.NoError(t, err)
	scenario := nvmltest.NewScenario(filepath.Join(dir, "scenario"))
	set := func(lines ...string) {
		t.Helper()
		require.NoError(t, scenario.Set(lines...))
	}
	start := func() *program.RunningProgram {
		return program.Start(t, []string{"LD_LIBRARY_PATH=" + dir, nvmltest.EnvScenario + "=" + filepath.Join(dir, "scenario")},
			"--driver-restart-after=4s", "--state-dir="+filepath.Join(dir, "state"), "--kubelet-dir="+dir, "--device-plugin=false")
	}
	counts := func(text string, series ...string) (n []int) {
		text = regexp.MustCompile(`nvidia_gpu_health_state_seconds_total.*`).ReplaceAllString(text, "") // also has reasons
		for _, s := range series {
			n = append(n, strings.Count(text, s))
		}
		return n
	}
	waitForSeries := func(p *program.RunningProgram, what string, want []int, series ...string) (text string) {
		t.Helper()
		program.WaitUntil(t, what, func() bool {
			text = p.Scrape(t)
			return slices.Equal(counts(text, series...), want)
		})
		return text
	}
	noAccess := []string{"fail * gpu * UNKNOWN", "fail * gpu - UNKNOWN"}
	set("gpus 4")
	p := start()
	healthy := []string{"\npodgauge_nvml_up 1", "\nnvidia_gpu_healthy{", "\nnvidia_gpu_unhealthy_info{"}
	waitForSeries(p, "four healthy GPUs", []int{1, 4, 0}, healthy...)
	set(noAccess...)
	text := waitForSeries(p, "four GPUs without a driver", []int{1, 4}, "\npodgauge_nvml_up 0", `reason="driver"`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "nvidia_gpu_health_flaps_total{") && !strings.HasSuffix(line, " 0\n") {
			t.Errorf("got %s, want 0", line)
		}
	}
	status, log := p.WaitForExit(t)
	if status != 1 || strings.Count(log, "device unhealthy") != 0 || strings.Count(log, "driver unusable") != 1 || !strings.Contains(log, "exiting, so that the kubelet restarts the container") {
		t.Errorf("exit status %d, want 1 after one line about the driver:\n%s", status, log)
	}

	began := time.Now() // the driver fails from the beginning
	p = start()
	if status, log = p.WaitForExit(t); status != 1 || time.Since(began) < 8*time.Second {
		t.Errorf("exit status %d after %s, want 1 after twice the time:\n%s", status, time.Since(began), log)
	}

	require.NoError(t, scenario.Clear("fail"))
	waitForSeries(start(), "four healthy GPUs again", []int{1, 4, 0}, healthy...)
}
