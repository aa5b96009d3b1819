package churn

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// GroundTruth is the state of the node from sources other than podgauge.
type GroundTruth struct {
	Allocations []AllocationPeriod
	// Outages are the times of kubelet restarts, without a complete list.
	Outages []Span
	// EnergyAt returns a device's energy counter in joules at a time.
	EnergyAt func(device string, at time.Time) float64
}

// verifier is the state of Verify.
type verifier struct {
	GroundTruth
	VerifyResult
	allocationsByDevice map[string][]AllocationPeriod
	// longestCollection is the duration of the longest collection, at least 100
	// ms.
	longestCollection time.Duration
	// kubeletUnseen has for each outage the time without a connection between
	// podgauge and the kubelet.
	kubeletUnseen []Span
	// ownerSeen has the ends of the collections with an owner.
	ownerSeen map[DeviceOwner][]time.Time
	scrapes   []Span
}

// VerifyResult is the result of Verify. Each string describes a violation.
type VerifyResult struct {
	Transitions    int // starts and ends of pods with devices
	Restarts       int
	Snapshots      int // each collection once
	DuringRestarts int // snapshots that overlap a restart
	// DoubleAllocated counts allocations of a device that another running pod
	// had.
	DoubleAllocated int
	// Wrong are snapshots with a container that had no allocation of the device
	// during the collection, with an allocated device as idle, or with
	// contradictory series.
	Wrong []string
	// StaleAllowed counts devices labeled with the last owner before a restart,
	// if podgauge could not notice the owner's end (ADR 4).
	StaleAllowed int
	// UnnamedAllowed counts devices allocated without an owner, of pods that a
	// restart interrupted (ADR 4).
	UnnamedAllowed int
	// LongAllocations counts allocations of a second or more. Labelled counts
	// their labels in snapshots, and Lateness is the delay of each label after
	// the kubelet's list.
	LongAllocations, Labelled int
	Unlabelled                []string
	Lateness                  []time.Duration
	// Unknown are snapshots outside restarts that lack an owner, or an idle
	// state, in the kubelet's list.
	Unknown []string
	// EnergyBalances has an entry per device; Misattributed are wrong owner
	// counters.
	EnergyBalances []EnergyBalance
	Misattributed  []string
}

// EnergyBalance compares a device's energy counter with the attributed energy
// of containers and idle time, in joules.
type EnergyBalance struct {
	Device string
	// Measured is the increase of the counter from the start of the first
	// snapshot to the end of the last.
	Measured float64
	// Attributed is the increase of all owner counters; an owner that ended
	// counts with the last exported value.
	Attributed float64
	// MaxUnseen limits the energy attributed to owners after their last
	// snapshot. The energy between a pod's last snapshot and the next belongs
	// to that pod (docs/contributing/adr/0003-owner-counters.md).
	MaxUnseen float64
	// Uncertainty is the energy during the first and the last snapshot. A
	// collection reads the counter at an unknown moment.
	Uncertainty float64
}

// counterResolution is the error of a counter's value, in joules. NVML counts
// millijoules, and a float64 of Unix seconds has a resolution of 0.25 µs.
const counterResolution = 0.01

// Deviation returns the difference between measured and attributed energy
// beyond the unseen energy; 0 if both are consistent.
func (b EnergyBalance) Deviation() float64 {
	switch {
	case b.Attributed > b.Measured+counterResolution:
		return b.Attributed - b.Measured
	case b.Attributed < b.Measured-b.MaxUnseen-b.Uncertainty-counterResolution:
		return b.Measured - b.MaxUnseen - b.Uncertainty - b.Attributed
	default:
		return 0
	}
}

// Limits of a successful churn.
const (
	minLabelledRatio = 0.99 // of the allocations of a second or more
	maxUnknownRatio  = 0.01 // of the snapshots outside restarts
)

// Measurement is a line of the report.
type Measurement struct{ Name, Value string }

// Measurements returns the report, for the log and docs/contributing/e2e.md.
func (v VerifyResult) Measurements() []Measurement {
	slices.Sort(v.Lateness)
	late := func(quantile float64) time.Duration {
		if len(v.Lateness) == 0 {
			return 0
		}
		return v.Lateness[int(quantile*float64(len(v.Lateness)-1))].Round(time.Millisecond)
	}
	measured, attributed, deviation := 0.0, 0.0, 0.0
	for _, b := range v.EnergyBalances {
		measured, attributed, deviation = measured+b.Measured, attributed+b.Attributed, max(deviation, b.Deviation())
	}
	return []Measurement{
		{"pod transitions", fmt.Sprintf("%d, with %d kubelet restarts; the kubelet allocated a device twice %d times",
			v.Transitions, v.Restarts, v.DoubleAllocated)},
		{"snapshots", fmt.Sprintf("%d, including %d during restarts", v.Snapshots, v.DuringRestarts)},
		{"wrong owners", fmt.Sprintf("%d; %d stale owners after restarts", len(v.Wrong), v.StaleAllowed)},
		{"labeled allocations of a second or more", fmt.Sprintf("%d of %d; after p50 %s, p99 %s, max %s", v.Labelled,
			v.LongAllocations, late(.5), late(.99), late(1))},
		{
			"snapshots outside restarts with an unknown owner",
			fmt.Sprintf("%d of %d; %d devices without an owner, of pods that a restart interrupted", len(v.Unknown),
				v.Snapshots-v.DuringRestarts, v.UnnamedAllowed),
		},
		{
			"energy of all owners and of idle time",
			fmt.Sprintf("%.0f J attributed of %.0f J measured; the rest was used after the last snapshots of pods; "+
				"largest deviation of a device %.3f J", attributed, measured, deviation),
		},
	}
}

// Err returns an error for each violated limit, with up to five examples.
func (v VerifyResult) Err() error {
	var errs []error
	fail := func(found []string, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s\n%s", fmt.Sprintf(format, args...),
			strings.Join(found[:min(5, len(found))], "\n")))
	}
	if len(v.Wrong) > 0 {
		fail(v.Wrong, "%d wrong owners in snapshots:", len(v.Wrong))
	}
	if v.LongAllocations == 0 || float64(v.Labelled) < minLabelledRatio*float64(v.LongAllocations) {
		fail(v.Unlabelled, "%d of %d allocations of a second or more are labeled:", v.Labelled, v.LongAllocations)
	}
	// Rounded up, to allow a single snapshot of fewer than a hundred.
	if outside := v.Snapshots - v.DuringRestarts; outside == 0 ||
		float64(len(v.Unknown)) > math.Ceil(maxUnknownRatio*float64(outside)) {
		fail(v.Unknown, "%d of %d snapshots outside restarts have an unknown owner:", len(v.Unknown), outside)
	}
	if len(v.Misattributed) > 0 {
		fail(v.Misattributed, "%d wrong owner counters:", len(v.Misattributed))
	}
	if len(v.EnergyBalances) == 0 {
		errs = append(errs, errors.New("no energy counter checked"))
	}
	for _, b := range v.EnergyBalances {
		if b.Deviation() != 0 || b.Attributed <= 0 {
			errs = append(errs, fmt.Errorf("%s used %.3f J (±%.3f J); %.3f J are attributed and at most %.3f J unseen",
				b.Device, b.Measured, b.Uncertainty, b.Attributed, b.MaxUnseen))
		}
	}
	return errors.Join(errs...)
}
