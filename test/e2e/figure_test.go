package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"
)

// figure prints what was measured, in the one form that docs/e2e.md copies.
func figure(t *testing.T, what, value string) {
	t.Helper()
	t.Logf("figure: %s: %s", what, value)
}

// leniency is how much longer than it may something can take before a test fails: the machine may have other things to do, and what is
// broken takes for ever. PODGAUGE_STRICT=1 (make e2e-all) leaves none.
func leniency() time.Duration {
	if os.Getenv("PODGAUGE_STRICT") != "" {
		return 1
	}
	return 4
}

// figureOf prints how long something took, each time it was tried, and says where that was longer than it may be.
func figureOf(t *testing.T, what string, most time.Duration, took ...time.Duration) {
	t.Helper()
	slices.Sort(took)
	longest := took[len(took)-1]
	value := seconds(longest)
	if len(took) > 1 {
		value = fmt.Sprintf("p50 %s, max %s (n=%d)", seconds(took[len(took)/2]), seconds(longest), len(took))
	}
	value += "; may be " + seconds(most)
	if longest > most {
		value += ": OVER"
	}
	figure(t, what, value)
	if longest > most*leniency() {
		t.Errorf("%s: took %s, and may take %s", what, seconds(longest), seconds(most))
	}
}

// seconds writes a duration to three digits or so.
func seconds(d time.Duration) string {
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
