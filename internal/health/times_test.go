package health_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// timesOf returns the times of a device now, without those below a second: "healthy 9s, unhealthy xid_79 30s".
func timesOf(s device.Status) (text string, total time.Duration) {
	var parts []string
	for _, t := range s.Times {
		spent := t.Until(time.Now())
		total += spent
		if spent >= time.Second {
			state := strings.TrimSpace(t.Health.String() + " " + t.Reason)
			parts = append(parts, fmt.Sprint(state, " ", spent.Truncate(time.Second)))
		}
	}
	return strings.Join(parts, ", "), total
}

// TestHealthTimes checks that the times of a device add up to the time since its first publication in the process, also after
// several changes between two readings.
func TestHealthTimes(t *testing.T) {
	inScenario(t, 2, func(t *testing.T, s *scenarioRun) {
		var begun time.Time
		check := func(want ...string) {
			t.Helper()
			statuses, _ := s.inventory.Get()
			for i, status := range statuses {
				text, total := timesOf(status)
				expect.Equal(t, text, want[i], "times of device", i)
				expect.Equal(t, total.Round(time.Second), time.Since(begun).Round(time.Second), "total of device", i)
			}
		}
		s.script("start; 100ms")
		begun = time.Now()
		s.script("10s; fail d1 xid 79; 30s: - xid_79")
		check("healthy 40s", "healthy 10s, unhealthy xid_79 30s")
		s.script("reset d1; 10s: - -; 20s")
		check("healthy 1m10s", "healthy 37s, unhealthy xid_79 31s, recovering xid_79 2s")
		s.script("fail d1 xid 79; 5s; retire d0 bad; 10s: retired xid_79")
		check("healthy 1m15s, unhealthy retired 10s", "healthy 37s, unhealthy xid_79 46s, recovering xid_79 2s")
		s.script("restart; 100ms")
		begun = time.Now()
		s.script("5s: retired xid_79")
		check("unhealthy retired 5s", "unhealthy xid_79 5s")
	})
}
