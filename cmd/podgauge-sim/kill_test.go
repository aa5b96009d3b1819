package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/helpers/program"
)

// TestStateAfterSIGKILL kills a process in a storm of Xids. The next process
// has the fault and its time, and counts from 0.
func TestStateAfterSIGKILL(t *testing.T) {
	dir := program.ShortDir(t)
	storm := []string{"0s xid 1 79"} // becomes unhealthy
	for n := range 5000 {
		storm = append(storm, fmt.Sprintf("%dms xid 0 31", n))
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte(strings.Join(storm, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	stateDir := filepath.Join(dir, "state")
	p := program.Start(t, nil, "--simulate=script:"+script, "--state-dir="+stateDir)
	last := regexp.MustCompile(`nvidia_gpu_incident_last_timestamp_seconds\{.*gpu="1",.*reason="xid_79".*\} .*\n`)
	lastFault := ""
	program.WaitUntil(t, "the fault is exported and stored", func() bool {
		lastFault = last.FindString(p.Scrape(t))
		content, err := os.ReadFile(filepath.Join(stateDir, "state.json"))
		return lastFault != "" && err == nil && strings.Contains(string(content), "xid_79")
	})
	p.Kill()

	p = program.Start(t, nil, "--state-dir="+stateDir)
	unhealthy := regexp.MustCompile(`nvidia_gpu_unhealthy_info\{.*gpu="1",.*reason="xid_79"`)
	noCount := regexp.MustCompile(`nvidia_gpu_incidents_total\{.*gpu="1",.*reason="xid_79".*\} 0\n`)
	program.WaitUntil(t, "the next process has the fault, without a count", func() bool {
		page := p.Scrape(t)
		return unhealthy.MatchString(page) && strings.Contains(page, lastFault) && noCount.MatchString(page)
	})
}
