package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// printMeasurement logs a measurement for docs/contributing/e2e.md.
func printMeasurement(t *testing.T, name, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", name, value)
}

// timeoutFactor returns the factor of all time limits, as the machine may be busy: 4, or 1 with PODGAUGE_STRICT=1 (make e2e-all).
func timeoutFactor() time.Duration {
	if os.Getenv("PODGAUGE_STRICT") != "" {
		return 1
	}
	return 4
}

// measureDurations logs durations with their limit. The test fails if a duration is longer than the limit times timeoutFactor.
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
	if longest > limit*timeoutFactor() {
		t.Errorf("%s: got %s, want at most %s", name, formatSeconds(longest), formatSeconds(limit*timeoutFactor()))
	}
}

// formatSeconds formats a duration in seconds, with about three digits.
func formatSeconds(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.5f s", d.Seconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.4f s", d.Seconds())
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.3f s", d.Seconds())
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}
