package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// TestReplay captures GPUs of all kinds beside a running podgauge. The replay exports the families and values of the original, apart from UUIDs,
// serial numbers, times and podgauge's own metrics.
func TestReplay(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	t.Parallel()
	dir := program.ShortDir(t)
	podgauge := filepath.Join(dir, "podgauge")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", podgauge, "../podgauge").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := nvmltest.Build(dir); err != nil {
		t.Fatal(err)
	}
	machine := []string{
		"gpus 5", "gpu 1 model a100", "gpu 2 model t4", "gpu 3 model gb200",
		"gpu 1 mig_mode 1", "gpu 1 slice 0 1g.10gb gi 7 ci 0", "gpu 1 slice 1 3g.40gb gi 2 ci 0",
		"gpu 4 mig_mode 1", "gpu 4 slice 0 1g.10gb gi 7 ci 0", "gpu * energy 1000", "gpu 0 metric 2 37",
		"gpu 0 process 4194303 1000 sm 50", "gpu 0 power 123000", "gpu 2 remapped_pending 1", "gpu 3 recovery_action 1",
	}
	require.NoError(t, nvmltest.NewScenario(filepath.Join(dir, "scenario")).Set(machine...))
	driver := []string{"LD_LIBRARY_PATH=" + dir, nvmltest.EnvScenario + "=" + filepath.Join(dir, "scenario")}
	args := []string{"--device-plugin=false", "--kernel-log=", "--metrics.set=full", "--metrics.nvlink-links"}
	k := background.Kubelet(t, kubelet.Options{RunningSince: time.Now().Add(-time.Hour)})
	original := program.StartFile(t, podgauge, driver, append(args, "--kubelet-dir="+k.Dir())...)

	command := exec.CommandContext(t.Context(), podgauge, "capture")
	command.Env = append(os.Environ(), driver...)
	content, err := command.Output()
	require.NoError(t, err)
	file := filepath.Join(dir, "capture")
	require.NoError(t, os.WriteFile(file, content, 0o600))
	replayed := program.Start(t, nil, append(args, "--replay="+file)...)
	var want, got string
	defer func() {
		if t.Failed() {
			t.Logf("only in the original or in the replay: %q", difference(strings.Split(want, "\n"), strings.Split(got, "\n")))
		}
	}()
	program.WaitUntil(t, "the scrapes are identical", func() bool {
		want, got = repeatable(original.Scrape(t)), repeatable(replayed.Scrape(t))
		return want == got && strings.Contains(want, `nvidia_gpu_sm_active_ratio{container="",gpu="4",mig_uuid="X"`)
	})
	for _, series := range []string{`nvidia_gpu_sm_active_ratio{container="",gpu="0"`, `nvidia_gpu_nvlink_link_transmit_bytes_total{`, "nvidia_gpu_c2c_links{"} {
		if !strings.Contains(want, series) {
			t.Errorf("the comparison lacks %s", series)
		}
	}
	out, status := runCommand(t, "timings", file)
	if status != 0 || !strings.HasPrefix(out, "NVIDIA H100 80GB HBM3, driver 580.95.05, ") || !strings.Contains(out, "\n|`nvmlDeviceGetFieldValues`|") {
		t.Errorf("timings: got status %d, %s", status, out)
	}
}

var masked = regexp.MustCompile(`\b(uuid|mig_uuid|serial|chassis_serial)="[^"]+"`)

// repeatable returns the samples of a scrape that a replay repeats.
func repeatable(scrape string) string {
	lines := strings.Split(masked.ReplaceAllString(scrape, `$1="X"`), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return !strings.HasPrefix(line, "nvidia_") || strings.Contains(line, "_timestamp_seconds")
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// difference returns the lines of only one list.
func difference(a, b []string) (lines []string) {
	for _, line := range append(slices.Clone(a), b...) {
		if slices.Contains(a, line) != slices.Contains(b, line) {
			lines = append(lines, line)
		}
	}
	return lines
}
