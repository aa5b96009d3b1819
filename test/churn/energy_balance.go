package churn

import (
	"fmt"
	"slices"
	"time"
)

// EnergyBalance is a device's energy counter, and what its holders' accounts show of it.
type EnergyBalance struct {
	Device string
	// Measured is what it rose by from the begin of the first snapshot to the end of the last,
	// in joules.
	Measured float64
	// Attributed is what the accounts rose by: those that were not shown to the end count with
	// what they showed last.
	Attributed float64
	// MaxUnseen is the most that accounts can have got after they were last shown: what the
	// device burns from a pod's last snapshot to the next is that pod's
	// (docs/adr/0003-holder-counters.md).
	MaxUnseen float64
	// Uncertainty is how much of it was burned while these two were taken: a flight reads the
	// counter at a moment that it does not tell.
	Uncertainty float64
}

// counterResolution is how far a counter's value may lie beside the truth, in joules: it counts whole
// millijoules, and a float64 of seconds since 1970 has steps of a quarter of a microsecond.
const counterResolution = 0.01

// Deviation is how much the accounts are off, beyond what is hidden; 0 where they add up.
func (c EnergyBalance) Deviation() float64 {
	switch {
	case c.Attributed > c.Measured+counterResolution:
		return c.Attributed - c.Measured
	case c.Attributed < c.Measured-c.MaxUnseen-c.Uncertainty-counterResolution:
		return c.Measured - c.MaxUnseen - c.Uncertainty - c.Attributed
	default:
		return 0
	}
}

// checkBalance adds a device's accounts up, and judges each of them.
func (v *verifier) checkBalance(device string, snapshots []MetricsSnapshot) EnergyBalance {
	known := slices.DeleteFunc(slices.Clone(snapshots), func(s MetricsSnapshot) bool {
		visible := s.Devices[device]
		return !visible.HasEnergy || visible.State != StateIdle && visible.State != StateNamed
	})
	c := EnergyBalance{Device: device}
	if len(known) == 0 {
		return c
	}
	// The idle account may have something from before the first snapshot.
	first, last := known[0], known[len(known)-1]
	c.Attributed = -first.Devices[device].AttributedJoules
	accounts := map[ContainerKey]*attributedEnergy{}
	for i, s := range known {
		visible := s.Devices[device]
		a := accounts[visible.EnergyOwner]
		if a == nil {
			a = &attributedEnergy{firstSnapshot: i}
			accounts[visible.EnergyOwner] = a
		}
		a.lastSnapshot, a.joules = i, visible.AttributedJoules
	}
	for owner, a := range accounts {
		c.Attributed += a.joules
		v.checkAttribution(device, owner, *a, known)
	}
	for i := range known[1:] {
		// What is burned between two is booked on whom the first shows, or on somebody who
		// was there in between.
		between := Span{known[i].From, known[i+1].To}
		unseen := func(o ContainerKey) bool { return accounts[o] == nil || accounts[o].lastSnapshot <= i }
		if unseen(known[i].Devices[device].EnergyOwner) || slices.ContainsFunc(v.allocationsByDevice[device], func(h AllocationPeriod) bool {
			return h.possiblyDuring(between) && unseen(h.Container)
		}) {
			c.MaxUnseen += v.consumed(device, between)
		}
	}
	c.Uncertainty = v.consumed(device, first.Span) + v.consumed(device, last.Span)
	c.Measured = v.EnergyAt(device, last.To) - v.EnergyAt(device, first.From)
	return c
}

// attributedEnergy is what a container was shown to have burned of a device.
type attributedEnergy struct {
	firstSnapshot, lastSnapshot int // the snapshots
	joules                      float64
}

func (v *verifier) consumed(device string, s Span) float64 {
	return v.EnergyAt(device, s.To) - v.EnergyAt(device, s.From)
}

// checkAttribution judges what was booked on a pod: what was burned between its first snapshot and
// its last, and nothing from before it was given to the node. A flight reads the counters at
// one moment of its time and has the holders of another, so that what is booked may have been
// burned the length of a flight before. A pod that had the device twice, or together with
// another, is not judged.
func (v *verifier) checkAttribution(device string, owner ContainerKey, a attributedEnergy, snapshots []MetricsSnapshot) {
	var held []AllocationPeriod
	for _, h := range v.allocationsByDevice[device] {
		if h.Container == owner {
			held = append(held, h)
		}
	}
	if len(held) != 1 || slices.ContainsFunc(v.allocationsByDevice[device], held[0].overlaps) {
		return
	}
	first, last := snapshots[a.firstSnapshot].Span, snapshots[a.lastSnapshot].Span
	least := v.consumed(device, Span{first.To, last.From}) // the first and the last may be one
	most := v.consumed(device, Span{held[0].Created.Add(-v.longestCollection), last.To})
	if a.joules < max(0, least)-counterResolution || a.joules > most+counterResolution {
		v.Misattributed = append(v.Misattributed, fmt.Sprintf("%s: %.3f J are booked on %v, which burned %.3f to %.3f J from %s to %s",
			device, a.joules, owner, max(0, least), most, held[0].Created.Format(time.TimeOnly), last))
	}
}
