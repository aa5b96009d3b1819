package status

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// when is a moment, for people and for programs.
type when struct{ ISO, Text string }

// There tells whether it is known at all.
func (w when) There() bool { return w.ISO != "" }

// ago is how long it has been.
func ago(now, at time.Time) when {
	if at.IsZero() {
		return when{}
	}
	w := when{at.UTC().Format(time.RFC3339), "just now"}
	if d := now.Sub(at); d >= time.Second {
		w.Text = span(d) + " ago"
	}
	return w
}

// since is for how long it has been so.
func since(now, at time.Time) when {
	if at.IsZero() {
		return when{}
	}
	w := when{at.UTC().Format(time.RFC3339), "just now"}
	if d := now.Sub(at); d >= time.Second {
		w.Text = "for " + span(d)
	}
	return w
}

func span(d time.Duration) string {
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

// clean is a text as it may be shown. Names come from drivers and kubelets: html/template
// sees to it that they stay text, and this that they do not turn the direction of writing.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// todo is what a fault asks for, in words. The words of drivers to come are shown as they are.
func todo(action string) string {
	return clean(cmp.Or(map[string]string{
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

// memory is "61.2 of 80.0 GiB".
func memory(used, total float64) string {
	return fmt.Sprintf("%.1f of %.1f GiB", used/gib, total/gib)
}

// watts is "412 W", or "3.1 kW".
func watts(w float64) string {
	if w < 1000 {
		return fmt.Sprintf("%.0f W", w)
	}
	return fmt.Sprintf("%.1f kW", w/1000)
}

// percent is a share, as a whole number.
func percent(share float64) string { return strconv.Itoa(int(100*share + 0.5)) }

// counted is "1 device", "2 devices".
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
