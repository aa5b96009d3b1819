package status

import (
	"fmt"
	"strconv"
	"time"

	"github.com/podgauge/podgauge/internal/text"
)

// displayTime is a time as text, for people and for programs; empty if unknown.
type displayTime struct{ ISO, Text string }

// formatTime returns "3 min ago" or "for 3 min", depending on the format of the duration.
func formatTime(now, at time.Time, format string) displayTime {
	if at.IsZero() {
		return displayTime{}
	}
	t := displayTime{at.UTC().Format(time.RFC3339), "just now"}
	if d := now.Sub(at); d >= time.Second {
		t.Text = fmt.Sprintf(format, text.Duration(d))
	}
	return t
}

// Formats of formatTime.
const (
	ago   = "%s ago"
	since = "for %s"
)

const gib = 1 << 30

// formatWatts returns "412 W" or "3.1 kW".
func formatWatts(w float64) string {
	if w < 1000 {
		return fmt.Sprintf("%.0f W", w)
	}
	return fmt.Sprintf("%.1f kW", w/1000)
}

func formatPercent(ratio float64) string { return strconv.Itoa(int(100*ratio + 0.5)) }
