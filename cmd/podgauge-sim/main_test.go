package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/app"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// TestWrongMode checks that a wrong value, script or capture causes one line and exit status 2.
func TestWrongMode(t *testing.T) {
	wrong := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(wrong, []byte("\n5s explode\n"), 0o600))
	for arg, want := range map[string]string{
		"--simulate=cluster":         `podgauge: --simulate: "cluster": expected node, hardware or script:FILE` + "\n",
		"--simulate=script:none":     "podgauge: --simulate: open none: no such file or directory\n",
		"--replay=none":              "podgauge: --replay: open none: no such file or directory\n",
		"--replay=" + wrong:          "podgauge: --replay: " + wrong + ": not a capture of podgauge\n",
		"--simulate=script:" + wrong: "podgauge: --simulate: " + wrong + ": line 2: unknown action \"explode\"\n",
	} {
		command := exec.Command(os.Args[0], arg)
		command.Env = append(os.Environ(), program.Env+"=1")
		output, err := command.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 || string(output) != want {
			t.Errorf("%s: got %v, %q", arg, err, output)
		}
	}
}

// TestSimulatedNodeIsIsolated checks that the simulated node changes nothing of its host.
func TestSimulatedNodeIsIsolated(t *testing.T) {
	m, err := (&simulatedPlatform{mode: modeNode}).Open(app.OpenOptions{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer m.Node.Close()
	if !strings.HasPrefix(m.KubeletDir, os.TempDir()) || !strings.HasPrefix(m.DevicePluginDir, m.KubeletDir+"/") {
		t.Errorf("folders: got %q and %q, want temporary folders", m.KubeletDir, m.DevicePluginDir)
	}
}

// runCommand runs podgauge in a separate process.
func runCommand(t *testing.T, args ...string) (out string, status int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], args...)
	command.Env = append(os.Environ(), program.Env+"=1")
	combined, _ := command.CombinedOutput() // the status is enough
	return string(combined), command.ProcessState.ExitCode()
}

// TestStateAfterSIGKILL kills a process in a storm of Xids, as soon as a command
// has retired a device. The next process has the fault and its time, counts from
// 0, and shows the retirement until the device is trusted. Its times are in UTC
// in every time zone, as docs/reference/api.md promises.
func TestStateAfterSIGKILL(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than ten seconds")
	}
	dir := program.ShortDir(t)
	storm := []string{"0s xid 1 79"} // becomes unhealthy
	for n := range 5000 {
		storm = append(storm, fmt.Sprintf("%dms xid 0 31", n))
	}
	script := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(script, []byte(strings.Join(storm, "\n")), 0o600))
	stateFlag := "--state-dir=" + filepath.Join(dir, "state")
	if out, status := runCommand(t, "device", "trust", "2", stateFlag); status != 1 || !strings.Contains(out, "no socket") {
		t.Errorf("before the first start: got status %d, %q", status, out)
	}
	p := program.Start(t, nil, "--simulate=script:"+script, stateFlag)
	last := regexp.MustCompile(`nvidia_gpu_incident_last_timestamp_seconds\{.*gpu="1",.*reason="xid_79".*\} .*\n`)
	lastFault := ""
	program.WaitUntil(t, "the fault is exported and stored", func() bool {
		lastFault = last.FindString(p.Scrape(t))
		content, err := os.ReadFile(filepath.Join(dir, "state", "state.json"))
		return lastFault != "" && err == nil && strings.Contains(string(content), "xid_79")
	})
	program.WaitUntil(t, "the command retires the device", func() bool {
		out, status := runCommand(t, "device", "retire", "2", "--reason=fan is noisy", stateFlag)
		return status == 0 && strings.Contains(out, "is retired: fan is noisy\n") && !strings.Contains(out, "not stored")
	})
	p.Kill() // at once: the response means that the retirement is stored
	if out, status := runCommand(t, "device", "trust", "2", stateFlag); status != 1 || !strings.Contains(out, "podgauge is not running") {
		t.Errorf("after SIGKILL: got status %d, %q", status, out)
	}

	p = program.Start(t, []string{"TZ=Asia/Tokyo"}, stateFlag)
	has := func(page, expression string) bool { return regexp.MustCompile(expression).MatchString(page) }
	const retired = `nvidia_gpu_unhealthy_info\{action="",.*gpu="2",.*reason="retired"`
	program.WaitUntil(t, "the next process has the fault, without a count, and the retirement", func() bool {
		page := p.Scrape(t)
		return has(page, `nvidia_gpu_unhealthy_info\{.*gpu="1",.*reason="xid_79"`) && strings.Contains(page, lastFault) && has(page, retired) &&
			has(page, `nvidia_gpu_incidents_total\{.*gpu="1",.*reason="xid_79".*\} 0\n`) && !has(page, `nvidia_gpu_incidents_total\{container="",gpu="2"`)
	})
	for command, want := range map[string]string{
		"status":                       "retired: fan is noisy",
		"status -o=json":               `"at":"[^"]+Z".*"reason":"retired","note":"fan is noisy"`,
		"incidents -o=json --device=2": `"total":1,.*"note":"fan is noisy"`,
	} {
		if out, _ := runCommand(t, append(strings.Fields(command), stateFlag)...); !has(out, want) || strings.Contains(out, "+09:00") {
			t.Errorf("%s: got %s", command, out)
		}
	}
	if out, status := runCommand(t, "device", "trust", "2", stateFlag); status != 0 {
		t.Errorf("trust: got status %d, %s", status, out)
	}
	p.Kill()
	p = program.Start(t, nil, stateFlag)
	program.WaitUntil(t, "the device is listed, and not retired again", func() bool {
		page := p.Scrape(t)
		return strings.Contains(page, `gpu="2"`) && !has(page, retired)
	})
}

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
	_, err := nvmltest.Build(dir)
	require.NoError(t, err)
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

var masked = regexp.MustCompile(`\b(uuid|mig_uuid|cluster_uuid|serial|chassis_serial)="[^"]+"`)

// repeatable returns the samples of a scrape that a replay repeats.
func repeatable(scrape string) string {
	lines := strings.Split(masked.ReplaceAllString(scrape, `$1="X"`), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return !strings.HasPrefix(line, "nvidia_") || strings.Contains(line, "_timestamp_seconds") ||
			strings.Contains(line, "_state_seconds_total")
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
