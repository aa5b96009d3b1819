package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// printMeasurement logs a measurement for docs/contributing/e2e.md.
func printMeasurement(t *testing.T, name, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", name, value)
}

// measureDurations logs durations with their limit. The test fails if a duration is longer than the limit times node.Tolerance.
func measureDurations(t *testing.T, name string, limit time.Duration, durations ...time.Duration) {
	t.Helper()
	slices.Sort(durations)
	longest := durations[len(durations)-1]
	value := formatSeconds(longest)
	if len(durations) > 1 {
		value = fmt.Sprintf("p50 %s, max %s (n=%d)", formatSeconds(durations[len(durations)/2]), formatSeconds(longest), len(durations))
	}
	value += "; limit " + formatSeconds(limit)
	if longest > limit {
		value += ": EXCEEDED"
	}
	printMeasurement(t, name, value)
	if longest > limit*node.Tolerance() {
		t.Errorf("%s: got %s, want at most %s", name, formatSeconds(longest), formatSeconds(limit*node.Tolerance()))
	}
}

func formatSeconds(d time.Duration) string { return fmt.Sprintf("%.4f s", d.Seconds()) }
