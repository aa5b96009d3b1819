package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/program"
	"github.com/podgauge/podgauge/test/helpers/require"
)

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
