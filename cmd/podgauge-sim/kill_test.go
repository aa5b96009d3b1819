package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/test/program"
)

// counterLine matches the series that outlive the process. Their values are whole numbers.
var counterLine = regexp.MustCompile(`(?m)^((?:nvidia_gpu_incidents_total|nvidia_gpu_allocation_device_failures_total|nvidia_gpu_allocation_application_errors_total|nvidia_gpu_health_flaps_total|nvidia_gpu_xid_errors_total)\{.*\}) (\d+)$`)

func parseCounters(page string) map[string]uint64 {
	all := map[string]uint64{}
	for _, m := range counterLine.FindAllStringSubmatch(page, -1) {
		all[m[1]], _ = strconv.ParseUint(m[2], 10, 64)
	}
	return all
}

// TestCountersAfterSIGKILL kills processes right after a scrape in a storm of Xids, and checks that the next process continues the counters.
// Prometheus would treat the whole value of a counter that fell as an increase.
func TestCountersAfterSIGKILL(t *testing.T) {
	dir := program.ShortDir(t)
	storm := []string{"0s xid 1 79"} // becomes unhealthy
	for n := range 5000 {
		storm = append(storm, fmt.Sprintf("%dms xid 0 31", n))
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte(strings.Join(storm, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	const stormSeries = `nvidia_gpu_xid_errors_total{container="",gpu="0",mig_uuid="",namespace="",pod="",uuid=`
	previous, stormCount := map[string]uint64{}, uint64(0)
	for n := range 4 {
		p := program.Start(t, nil, "--simulate=script:"+script, "--state-dir="+filepath.Join(dir, "state"))
		current := map[string]uint64{}
		program.WaitUntil(t, "the next process counts", func() bool {
			before := current
			current = parseCounters(p.Scrape(t))
			for series, count := range before {
				if current[series] < count {
					t.Fatalf("process %d: got %d of %s, want at least %d", n, current[series], series, count)
				}
			}
			for series, count := range previous {
				if now, exists := current[series]; exists && now < count {
					t.Fatalf("process %d: got %d of %s, want at least %d as in the previous process", n, now, series, count)
				}
			}
			for series, count := range current {
				if strings.HasPrefix(series, stormSeries) && count > stormCount+100 {
					stormCount = count
					return true
				}
			}
			return false
		})
		p.Kill()
		previous = current
	}
	for _, family := range []string{"nvidia_gpu_incidents_total", "nvidia_gpu_health_flaps_total", "nvidia_gpu_xid_errors_total"} {
		found := false
		for series, count := range previous {
			found = found || strings.HasPrefix(series, family) && count > 0
		}
		if !found {
			t.Errorf("no increase of %s, so the test proves nothing", family)
		}
	}
}
