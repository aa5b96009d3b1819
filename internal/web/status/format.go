package status

import (
	"fmt"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/text"
)

// displayTime is a time for programs and for people.
type displayTime struct{ ISO, Text string }

// formatTime returns "3 min ago" or "for 3 min", depending on the format of the
// duration; nil for an unknown time.
func formatTime(now, at time.Time, format string) *displayTime {
	if at.IsZero() {
		return nil
	}
	t := &displayTime{ISO: at.UTC().Format(time.RFC3339), Text: "just now"}
	if age := now.Sub(at); age >= time.Second {
		t.Text = fmt.Sprintf(format, text.Duration(age))
	}
	return t
}

const gib = 1 << 30

// formatWatts returns "412 W" or "3.1 kW".
func formatWatts(w float64) string {
	if w < 1000 {
		return fmt.Sprintf("%.0f W", w)
	}
	return fmt.Sprintf("%.1f kW", w/1000)
}

func formatPercent(ratio float64) string { return strconv.Itoa(int(100*ratio + 0.5)) }

// limited has the first elements of a list, and the number of omitted elements.
// The JSON API has all.
type limited[T any] struct {
	First []T
	More  int
}

func limit[T any](all []T, n int) limited[T] {
	first := all[:min(len(all), n)]
	return limited[T]{first, len(all) - len(first)}
}
