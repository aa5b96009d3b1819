package churn

import (
	"fmt"
	"slices"
)

// checkBalance adds up the owner counters of a device and checks each of them.
func (v *verifier) checkBalance(device string, snapshots []MetricsSnapshot) EnergyBalance {
	known := slices.DeleteFunc(slices.Clone(snapshots), func(s MetricsSnapshot) bool {
		visible := s.Devices[device]
		return !visible.HasEnergy || visible.State != StateIdle && visible.State != StateNamed
	})
	b := EnergyBalance{Device: device}
	if len(known) == 0 {
		return b
	}
	// The counter of the idle time may include energy from before the first
	// snapshot.
	first, last := known[0], known[len(known)-1]
	b.Attributed = -first.Devices[device].AttributedJoules
	byOwner := map[ContainerKey]*attributedEnergy{}
	for i, s := range known {
		visible := s.Devices[device]
		a := byOwner[visible.EnergyOwner]
		if a == nil {
			a = &attributedEnergy{firstSnapshot: i}
			byOwner[visible.EnergyOwner] = a
		}
		a.lastSnapshot, a.joules = i, visible.AttributedJoules
	}
	for owner, a := range byOwner {
		b.Attributed += a.joules
		v.checkAttribution(device, owner, *a, known)
	}
	for i := range known[1:] {
		// Energy between two snapshots is attributed to the owner in the first,
		// or to a container between both.
		between := Span{known[i].From, known[i+1].To}
		unseen := func(o ContainerKey) bool { return byOwner[o] == nil || byOwner[o].lastSnapshot <= i }
		if unseen(known[i].Devices[device].EnergyOwner) ||
			slices.ContainsFunc(v.allocationsByDevice[device], func(p AllocationPeriod) bool {
				return p.possiblyDuring(between) && unseen(p.Container)
			}) {
			b.MaxUnseen += v.consumed(device, between)
		}
	}
	b.Uncertainty = v.consumed(device, first.Span) + v.consumed(device, last.Span)
	b.Measured = v.EnergyAt(device, last.To) - v.EnergyAt(device, first.From)
	return b
}

// attributedEnergy is the energy of a device that the snapshots attribute to a
// container.
type attributedEnergy struct {
	firstSnapshot, lastSnapshot int // indexes
	joules                      float64
}

// consumed returns the increase of the device's counter over s.
func (v *verifier) consumed(device string, s Span) float64 {
	return v.EnergyAt(device, s.To) - v.EnergyAt(device, s.From)
}

// checkAttribution checks the energy of a pod. It must include all energy
// between the first and the last collection during the allocation, and no
// energy from before the pod's creation. Collections read counters and owners
// at different moments. The pod's energy may therefore start one collection
// before its creation, and collections at start and end of the allocation do
// not count. Pods that had the device twice, or together with a second pod, are
// not checked.
func (v *verifier) checkAttribution(device string, owner ContainerKey, a attributedEnergy,
	snapshots []MetricsSnapshot,
) {
	var periods []AllocationPeriod
	for _, p := range v.allocationsByDevice[device] {
		if p.Container == owner {
			periods = append(periods, p)
		}
	}
	if len(periods) != 1 || slices.ContainsFunc(v.allocationsByDevice[device], periods[0].overlaps) {
		return
	}
	first, last := snapshots[a.firstSnapshot].Span, snapshots[a.lastSnapshot].Span
	during := slices.Clone(snapshots[a.firstSnapshot : a.lastSnapshot+1])
	during = slices.DeleteFunc(during, func(s MetricsSnapshot) bool { return !periods[0].certainlyDuring(s.Span) })
	var minJoules float64
	if len(during) > 1 {
		minJoules = v.consumed(device, Span{during[0].To, during[len(during)-1].From})
	}
	maxJoules := v.consumed(device, Span{periods[0].Created.Add(-v.longestCollection), last.To})
	if a.joules < minJoules-counterResolution || a.joules > maxJoules+counterResolution {
		v.Misattributed = append(v.Misattributed, fmt.Sprintf(
			"%s: %.3f J are attributed to %v, want %.3f to %.3f J; created at %s, allocated from %s to %s, first "+
				"snapshot %s, last %s",
			device, a.joules, owner, minJoules, maxJoules, periods[0].Created.Format("15:04:05.000"), periods[0].Start,
			periods[0].End, first, last))
	}
}
