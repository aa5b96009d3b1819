package churn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Verdict is what a Judge found. The lists say what was wrong, in words.
type Verdict struct {
	// Transitions are the beginnings and the ends of pods that held devices.
	Transitions int
	Restarts    int
	Snapshots   int // each flight once
	InRestarts  int // that met one
	// Twice counts how often the kubelet gave away a device that a pod had.
	Twice int
	// Wrong are the snapshots that name a container which did not hold the device at any
	// moment of the flight, call a device idle that was held all through it, or contradict
	// themselves.
	Wrong []string
	// Stood counts the devices in snapshots whose label is that of the last holder before a
	// restart, which ended when nobody could see it (ADR 4).
	Stood int
	// Cut counts the devices in snapshots that are allocated without a name to a pod that a
	// restart cut short (ADR 4).
	Cut int
	// Long counts the holdings of a second or more, Labelled those that a snapshot named,
	// and Lateness is how long after the kubelet named them.
	Long, Labelled int
	Unlabelled     []string
	Lateness       []time.Duration
	// Unknown are the snapshots outside restarts that did not know a holder, or that there is
	// none, which the kubelet knew.
	Unknown []string
	// Counters are of the devices, and Misbooked the pods' accounts that are wrong.
	Counters  []Counter
	Misbooked []string
}

// What has to be true of a churn.
const (
	leastLabelled = 0.99 // of the holdings of a second or more
	mostUnknown   = 0.01 // of the snapshots outside restarts
)

// Figure is something that was measured.
type Figure struct{ What, Value string }

// Figures are the verdict in numbers.
func (v Verdict) Figures() []Figure {
	slices.Sort(v.Lateness)
	late := func(share float64) time.Duration {
		if len(v.Lateness) == 0 {
			return 0
		}
		return v.Lateness[int(share*float64(len(v.Lateness)-1))].Round(time.Millisecond)
	}
	rose, shown, off := 0.0, 0.0, 0.0
	for _, c := range v.Counters {
		rose, shown, off = rose+c.Rose, shown+c.Shown, max(off, c.Off())
	}
	return []Figure{
		{"pod transitions", fmt.Sprintf("%d, with %d kubelet restarts; the kubelet gave a device away twice %d times", v.Transitions, v.Restarts, v.Twice)},
		{"snapshots", fmt.Sprintf("%d, of them %d during restarts", v.Snapshots, v.InRestarts)},
		{"series of a pod that did not hold the device", fmt.Sprintf("%d; the last holder before a restart stood %d times", len(v.Wrong), v.Stood)},
		{"holdings of a second or more that were labelled", fmt.Sprintf("%d of %d; after p50 %s, p99 %s, max %s", v.Labelled, v.Long, late(.5), late(.99), late(1))},
		{"snapshots outside restarts that did not know a holder", fmt.Sprintf("%d of %d; a device of a pod that a restart cut short was allocated without a name %d times", len(v.Unknown), v.Snapshots-v.InRestarts, v.Cut)},
		{"energy of all holders and of idle time", fmt.Sprintf("%.0f J shown of %.0f J; the rest was burned after pods' last snapshots; most that a device is off %.3f J", shown, rose, off)},
	}
}

// Err says what is not as it has to be.
func (v Verdict) Err() error {
	var all []error
	fault := func(found []string, format string, args ...any) {
		all = append(all, fmt.Errorf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(found[:min(5, len(found))], "\n")))
	}
	if len(v.Wrong) > 0 {
		fault(v.Wrong, "%d times a snapshot was wrong about a holder:", len(v.Wrong))
	}
	if v.Long == 0 || float64(v.Labelled) < leastLabelled*float64(v.Long) {
		fault(v.Unlabelled, "%d of %d holdings of a second or more were labelled:", v.Labelled, v.Long)
	}
	// Rounded up: less than a hundred snapshots cannot tell a hundredth from none.
	if outside := v.Snapshots - v.InRestarts; outside == 0 || float64(len(v.Unknown)) > math.Ceil(mostUnknown*float64(outside)) {
		fault(v.Unknown, "%d of %d snapshots outside restarts did not know a holder:", len(v.Unknown), outside)
	}
	if len(v.Misbooked) > 0 {
		fault(v.Misbooked, "%d accounts are wrong:", len(v.Misbooked))
	}
	if len(v.Counters) == 0 {
		all = append(all, errors.New("no counter was judged"))
	}
	for _, c := range v.Counters {
		if c.Off() != 0 || c.Shown <= 0 {
			all = append(all, fmt.Errorf("%s burned %.3f J (give or take %.3f); its accounts show %.3f J, and %.3f J at most are hidden", c.Device, c.Rose, c.Slack, c.Shown, c.Hidden))
		}
	}
	return errors.Join(all...)
}
