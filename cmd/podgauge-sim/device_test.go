package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/program"
)

// runCommand runs podgauge in a separate process.
func runCommand(t *testing.T, args ...string) (out string, status int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], args...)
	command.Env = append(os.Environ(), program.Env+"=1")
	combined, _ := command.CombinedOutput() // the status is enough
	return string(combined), command.ProcessState.ExitCode()
}

func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestRetireAndTrust checks that a device retired by the command stays retired after a SIGKILL, is shown everywhere, and recovers when trusted.
func TestRetireAndTrust(t *testing.T) {
	dir := program.ShortDir(t)
	state := "--state-dir=" + filepath.Join(dir, "state")
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("0s xid 1 31\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() *program.RunningProgram { return program.Start(t, nil, "--simulate=script:"+script, state) }
	device := func(want int, args ...string) string {
		t.Helper()
		out, status := runCommand(t, append(append([]string{"device"}, args...), state)...)
		if status != want {
			t.Errorf("%q: got status %d, want %d: %s", args, status, want, out)
		}
		return out
	}
	if out := device(1, "trust", "2"); !strings.Contains(out, "no socket") {
		t.Errorf("before the first start: got %q", out)
	}
	p := start()
	program.WaitUntil(t, "the socket responds", func() bool {
		out, status := runCommand(t, "device", "retire", "2", "--reason=fan is noisy, ticket 4711", state)
		return status == 0 && strings.Contains(out, "is retired: fan is noisy, ticket 4711\n") && !strings.Contains(out, "not stored")
	})
	p.Kill() // at once: the response means that the retirement is stored
	if out := device(1, "trust", "2"); !strings.Contains(out, "podgauge is not running") {
		t.Errorf("after SIGKILL: got %q", out)
	}

	p = start()
	retired := func() bool {
		return regexp.MustCompile(`nvidia_gpu_unhealthy_info\{action="",.*gpu="2",.*reason="retired"`).MatchString(p.Scrape(t))
	}
	program.WaitUntil(t, "the device is retired in the next process", retired)
	base := strings.TrimSuffix(p.URL, "/metrics")
	incidents := get(t, base+"/api/v1/incidents?device=2&reason=retired")
	if !strings.Contains(incidents, `"total":1`) || !strings.Contains(incidents, `"note":"fan is noisy, ticket 4711"`) || strings.Contains(incidents, `"recovered"`) {
		t.Errorf("incidents: got %s", incidents)
	}
	if devices := get(t, base+"/api/v1/devices?device=2"); !strings.Contains(devices, `"reason":"retired","note":"fan is noisy, ticket 4711"`) {
		t.Errorf("devices: got %s", devices)
	}
	if page := get(t, base+"/"); !strings.Contains(page, "fan is noisy, ticket 4711") {
		t.Error("the page lacks the reason")
	}
	out, _ := runCommand(t, "status", "--url="+base)
	if !strings.Contains(out, "retired: fan is noisy, ticket 4711") || !strings.Contains(out, "7 of 8 devices healthy") {
		t.Errorf("status: got %s", out)
	}
	if scrape := p.Scrape(t); strings.Contains(scrape, `nvidia_gpu_incidents_total{container="",gpu="2"`) {
		t.Error("a retirement counts as a fault")
	}
	device(0, "trust", "2")
	program.WaitUntil(t, "the device is healthy, and the incident has ended", func() bool {
		return !retired() && strings.Contains(get(t, base+"/api/v1/incidents?device=2&reason=retired"), `"recovered"`)
	})
	if out := device(1, "retire", "9", "--reason=x"); !strings.Contains(out, `no device "9": expected one of 0 (GPU-`) {
		t.Errorf("unknown device: got %q", out)
	}
	p.Kill()
	p = start()
	program.WaitUntil(t, "the device is listed", func() bool { return strings.Contains(p.Scrape(t), `gpu="2"`) })
	if retired() {
		t.Error("the device is retired again after a restart")
	}
}
