package status

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// displayTime is a time as text, for people and for programs.
type displayTime struct{ ISO, Text string }

// IsKnown reports whether there is a time.
func (t displayTime) IsKnown() bool { return t.ISO != "" }

// formatAgo returns "3 min ago".
func formatAgo(now, at time.Time) displayTime { return formatTime(now, at, "%s ago") }

// formatSince returns "for 3 min".
func formatSince(now, at time.Time) displayTime { return formatTime(now, at, "for %s") }

func formatTime(now, at time.Time, format string) displayTime {
	if at.IsZero() {
		return displayTime{}
	}
	t := displayTime{at.UTC().Format(time.RFC3339), "just now"}
	if d := now.Sub(at); d >= time.Second {
		t.Text = fmt.Sprintf(format, formatDuration(d))
	}
	return t
}

func formatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h", d/time.Hour)
	default:
		return fmt.Sprintf("%d days", d/day)
	}
}

// sanitize replaces characters without a glyph. Names come from drivers and the kubelet: html/template escapes markup, but not
// control characters, such as those for right-to-left text.
func sanitize(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// formatAction returns an action in words.
func formatAction(action string) string {
	return sanitize(cmp.Or(map[string]string{
		"restart_app":         "restart the application",
		"restart_vm":          "restart the virtual machine",
		"reset_gpu":           "reset the GPU",
		"reset_bus":           "reset the bus",
		"drain_and_reset":     "drain, then reset the GPU",
		"drain_p2p":           "drain the peers",
		"recover_imex_domain": "recover the IMEX domain",
		"reboot":              "reboot the node",
		"inspect":             "inspect the machine",
		"replace":             "replace the GPU",
	}[action], strings.ReplaceAll(action, "_", " ")))
}

const gib = 1 << 30

// formatMemory returns "61.2 of 80.0 GiB".
func formatMemory(used, total float64) string {
	return fmt.Sprintf("%.1f of %.1f GiB", used/gib, total/gib)
}

// formatWatts returns "412 W" or "3.1 kW".
func formatWatts(w float64) string {
	if w < 1000 {
		return fmt.Sprintf("%.0f W", w)
	}
	return fmt.Sprintf("%.1f kW", w/1000)
}

func formatPercent(ratio float64) string { return strconv.Itoa(int(100*ratio + 0.5)) }

// pluralize returns "1 device" or "2 devices".
func pluralize(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
