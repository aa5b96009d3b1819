package churn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// VerifyResult is what a Judge found. The lists say what was wrong, in words.
type VerifyResult struct {
	// Transitions are the beginnings and the ends of pods that held devices.
	Transitions    int
	Restarts       int
	Snapshots      int // each flight once
	DuringRestarts int // that met one
	// DoubleAllocated counts how often the kubelet gave away a device that a pod had.
	DoubleAllocated int
	// Wrong are the snapshots that name a container which did not hold the device at any
	// moment of the flight, call a device idle that was held all through it, or contradict
	// themselves.
	Wrong []string
	// StaleAllowed counts the devices in snapshots whose label is that of the last holder before a
	// restart, which ended when nobody could see it (ADR 4).
	StaleAllowed int
	// UnnamedAllowed counts the devices in snapshots that are allocated without a name to a pod that a
	// restart cut short (ADR 4).
	UnnamedAllowed int
	// LongAllocations counts the holdings of a second or more, Labelled those that a snapshot named,
	// and Lateness is how long after the kubelet named them.
	LongAllocations, Labelled int
	Unlabelled                []string
	Lateness                  []time.Duration
	// Unknown are the snapshots outside restarts that did not know a holder, or that there is
	// none, which the kubelet knew.
	Unknown []string
	// EnergyBalances are of the devices, and Misbooked the pods' accounts that are wrong.
	EnergyBalances []EnergyBalance
	Misattributed  []string
}

// What has to be true of a churn.
const (
	minLabelledRatio = 0.99 // of the holdings of a second or more
	maxUnknownRatio  = 0.01 // of the snapshots outside restarts
)

// Measurement is something that was measured.
type Measurement struct{ Name, Value string }

// Measurements are the verdict in numbers.
func (v VerifyResult) Measurements() []Measurement {
	slices.Sort(v.Lateness)
	late := func(share float64) time.Duration {
		if len(v.Lateness) == 0 {
			return 0
		}
		return v.Lateness[int(share*float64(len(v.Lateness)-1))].Round(time.Millisecond)
	}
	rose, shown, off := 0.0, 0.0, 0.0
	for _, c := range v.EnergyBalances {
		rose, shown, off = rose+c.Measured, shown+c.Attributed, max(off, c.Deviation())
	}
	return []Measurement{
		{"pod transitions", fmt.Sprintf("%d, with %d kubelet restarts; the kubelet gave a device away twice %d times", v.Transitions, v.Restarts, v.DoubleAllocated)},
		{"snapshots", fmt.Sprintf("%d, of them %d during restarts", v.Snapshots, v.DuringRestarts)},
		{"series of a pod that did not hold the device", fmt.Sprintf("%d; the last holder before a restart stood %d times", len(v.Wrong), v.StaleAllowed)},
		{"holdings of a second or more that were labelled", fmt.Sprintf("%d of %d; after p50 %s, p99 %s, max %s", v.Labelled, v.LongAllocations, late(.5), late(.99), late(1))},
		{"snapshots outside restarts that did not know a holder", fmt.Sprintf("%d of %d; a device of a pod that a restart cut short was allocated without a name %d times", len(v.Unknown), v.Snapshots-v.DuringRestarts, v.UnnamedAllowed)},
		{"energy of all holders and of idle time", fmt.Sprintf("%.0f J shown of %.0f J; the rest was burned after pods' last snapshots; most that a device is off %.3f J", shown, rose, off)},
	}
}

// Err says what is not as it has to be.
func (v VerifyResult) Err() error {
	var all []error
	fault := func(found []string, format string, args ...any) {
		all = append(all, fmt.Errorf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(found[:min(5, len(found))], "\n")))
	}
	if len(v.Wrong) > 0 {
		fault(v.Wrong, "%d times a snapshot was wrong about a holder:", len(v.Wrong))
	}
	if v.LongAllocations == 0 || float64(v.Labelled) < minLabelledRatio*float64(v.LongAllocations) {
		fault(v.Unlabelled, "%d of %d holdings of a second or more were labelled:", v.Labelled, v.LongAllocations)
	}
	// Rounded up: less than a hundred snapshots cannot tell a hundredth from none.
	if outside := v.Snapshots - v.DuringRestarts; outside == 0 || float64(len(v.Unknown)) > math.Ceil(maxUnknownRatio*float64(outside)) {
		fault(v.Unknown, "%d of %d snapshots outside restarts did not know a holder:", len(v.Unknown), outside)
	}
	if len(v.Misattributed) > 0 {
		fault(v.Misattributed, "%d accounts are wrong:", len(v.Misattributed))
	}
	if len(v.EnergyBalances) == 0 {
		all = append(all, errors.New("no counter was judged"))
	}
	for _, c := range v.EnergyBalances {
		if c.Deviation() != 0 || c.Attributed <= 0 {
			all = append(all, fmt.Errorf("%s burned %.3f J (give or take %.3f); its accounts show %.3f J, and %.3f J at most are hidden", c.Device, c.Measured, c.Uncertainty, c.Attributed, c.MaxUnseen))
		}
	}
	return errors.Join(all...)
}
