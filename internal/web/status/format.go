package status

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// displayTime is a moment, for people and for programs.
type displayTime struct{ ISO, Text string }

// IsKnown tells whether it is known at all.
func (t displayTime) IsKnown() bool { return t.ISO != "" }

// formatAgo is how long it has been.
func formatAgo(now, at time.Time) displayTime {
	if at.IsZero() {
		return displayTime{}
	}
	t := displayTime{at.UTC().Format(time.RFC3339), "just now"}
	if d := now.Sub(at); d >= time.Second {
		t.Text = formatDuration(d) + " ago"
	}
	return t
}

// formatSince is for how long it has been so.
func formatSince(now, at time.Time) displayTime {
	if at.IsZero() {
		return displayTime{}
	}
	t := displayTime{at.UTC().Format(time.RFC3339), "just now"}
	if d := now.Sub(at); d >= time.Second {
		t.Text = "for " + formatDuration(d)
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

// sanitize is a text as it may be shown. Names come from drivers and kubelets: html/template
// sees to it that they stay text, and this that they do not turn the direction of writing.
func sanitize(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// formatAction is what a fault asks for, in words. The words of drivers to come are shown as they are.
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
		"inspect":             "look at the machine",
		"replace":             "replace the GPU",
	}[action], strings.ReplaceAll(action, "_", " ")))
}

const gib = 1 << 30

// formatMemory is "61.2 of 80.0 GiB".
func formatMemory(used, total float64) string {
	return fmt.Sprintf("%.1f of %.1f GiB", used/gib, total/gib)
}

// formatWatts is "412 W", or "3.1 kW".
func formatWatts(w float64) string {
	if w < 1000 {
		return fmt.Sprintf("%.0f W", w)
	}
	return fmt.Sprintf("%.1f kW", w/1000)
}

// formatPercent is a share, as a whole number.
func formatPercent(ratio float64) string { return strconv.Itoa(int(100*ratio + 0.5)) }

// pluralize is "1 device", "2 devices".
func pluralize(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
