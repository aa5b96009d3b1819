package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// printMeasurement prints what was measured, in the one form that docs/contributing/e2e.md copies.
func printMeasurement(t *testing.T, what, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", what, value)
}

// timeoutFactor is how much longer than it may something can take before a test fails: the machine may have other things to do, and what is
// broken takes for ever. PODGAUGE_STRICT=1 (make e2e-all) leaves none.
func timeoutFactor() time.Duration {
	if os.Getenv("PODGAUGE_STRICT") != "" {
		return 1
	}
	return 4
}

// measureDurations prints how long something took, each time it was tried, and says where that was longer than it may be.
func measureDurations(t *testing.T, what string, limit time.Duration, durations ...time.Duration) {
	t.Helper()
	slices.Sort(durations)
	longest := durations[len(durations)-1]
	value := formatSeconds(longest)
	if len(durations) > 1 {
		value = fmt.Sprintf("p50 %s, max %s (n=%d)", formatSeconds(durations[len(durations)/2]), formatSeconds(longest), len(durations))
	}
	value += "; may be " + formatSeconds(limit)
	if longest > limit {
		value += ": OVER"
	}
	printMeasurement(t, what, value)
	if longest > limit*timeoutFactor() {
		t.Errorf("%s: took %s, and may take %s", what, formatSeconds(longest), formatSeconds(limit))
	}
}

// formatSeconds writes a duration to three digits or so.
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
