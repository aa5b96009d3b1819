package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestLostAccessToDriver takes the access to all GPUs from a running podgauge, as `systemctl daemon-reload` can. That is no fault of a GPU. The
// process ends, the next one waits longer, and a process with access works.
func TestLostAccessToDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	dir := program.ShortDir(t)
	if _, err := nvmltest.Build(dir); err != nil {
		t.Fatal(err)
	}
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
