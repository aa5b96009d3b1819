package churn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// minLabelledDuration is the shortest allocation that must have a label in
	// snapshots.
	minLabelledDuration = time.Second
	// minScrapes is the minimum number of whole scrapes within such an
	// allocation. On a loaded machine a scrape may take a second, and may
	// return a collection from before the allocation.
	minScrapes = 2
	// maxStaleOwner is the longest time after a kubelet restart for an owner
	// that the kubelet does not list
	// (docs/contributing/adr/0004-unknown-owners.md): a minute from the
	// connection, which podgauge makes within a second.
	maxStaleOwner = time.Minute + time.Second
	// maxUnnamed is the longest time after a restart for an unallocated device
	// that podgauge reports as allocated without an owner. The restart
	// interrupted the pod's admission. Podgauge waits ten seconds for the pod
	// (ADR 4).
	maxUnnamed = 11 * time.Second
)

// Verify compares snapshots, in the order of their collections, with the ground
// truth.
func Verify(t GroundTruth, snapshots []MetricsSnapshot) VerifyResult {
	v := verifier{
		GroundTruth: t, longestCollection: time.Second / 10,
		allocationsByDevice: map[string][]AllocationPeriod{}, ownerSeen: map[DeviceOwner][]time.Time{},
	}
	pods := map[ContainerKey]bool{}
	for _, p := range t.Allocations {
		v.allocationsByDevice[p.Device] = append(v.allocationsByDevice[p.Device], p)
		pods[p.Container.podKey()] = true
	}
	v.Transitions, v.Restarts, v.Snapshots = 2*len(pods), len(t.Outages), len(snapshots)
	for _, o := range t.Outages {
		v.kubeletUnseen = append(v.kubeletUnseen, unseenSpan(o, snapshots))
	}
	for i := range snapshots {
		v.checkSnapshot(&snapshots[i])
		v.scrapes = append(v.scrapes, snapshots[i].Scrapes...)
	}
	for _, p := range t.Allocations {
		v.checkAllocation(p)
	}
	for i, p := range t.Allocations {
		for _, other := range t.Allocations[:i] {
			if p.overlaps(other) {
				v.DoubleAllocated++
			}
		}
	}
	for _, s := range snapshots {
		v.longestCollection = max(v.longestCollection, s.To.Sub(s.From))
	}
	for _, device := range slices.Sorted(maps.Keys(v.allocationsByDevice)) {
		v.EnergyBalances = append(v.EnergyBalances, v.checkBalance(device, snapshots))
	}
	return v.VerifyResult
}

// unseenSpan returns the time around an outage in which podgauge cannot notice
// the end of an allocation. The span lasts from the start of the last
// collection before the outage to the end of the first collection after it with
// a response of the kubelet.
func unseenSpan(o Span, snapshots []MetricsSnapshot) Span {
	u := Span{To: o.To}
	for _, s := range snapshots {
		if !s.KubeletUp {
			continue
		}
		if s.From.Before(o.From) {
			u.From = s.From
		}
		if !s.From.Before(o.To) {
			u.To = s.To
			break
		}
	}
	return u
}

func (v *verifier) checkSnapshot(s *MetricsSnapshot) {
	var unknown []string
	if !s.KubeletUp {
		unknown = append(unknown, "the kubelet is reported down")
	}
	for device := range v.allocationsByDevice {
		if state := v.checkDevice(s, device); state != "" {
			unknown = append(unknown, state)
		}
	}
	for device := range s.Devices {
		if v.allocationsByDevice[device] == nil { // never allocated
			v.checkDevice(s, device)
		}
	}
	switch restarting := slices.ContainsFunc(v.Outages, func(o Span) bool { return o.overlaps(s.Span) }); {
	case restarting:
		v.DuringRestarts++
	case len(unknown) > 0:
		v.Unknown = append(v.Unknown, fmt.Sprintf("%s: %s", s.Span, strings.Join(unknown, "; ")))
	}
}

// checkDevice checks a device in a snapshot. It returns a description if the
// snapshot lacks a state that the kubelet listed.
func (v *verifier) checkDevice(s *MetricsSnapshot, device string) (unknown string) {
	shown := s.Devices[device]
	for _, owner := range shown.Owners {
		v.checkOwner(s, DeviceOwner{device, owner})
		if owner != shown.Owner && !shown.isShared() {
			v.reportWrong(s, device, "has owner %v in some series and %v in others", owner, shown.Owner)
		}
	}
	if shown.HasEnergy && shown.EnergyOwner != shown.Owner {
		v.reportWrong(s, device, "has owner %v, but energy of %v", shown.Owner, shown.EnergyOwner)
	}
	allocated := slices.ContainsFunc(v.allocationsByDevice[device], func(p AllocationPeriod) bool {
		return p.certainlyDuring(s.Span)
	})
	switch {
	case allocated && shown.State == StateIdle:
		v.reportWrong(s, device, "is reported idle")
		return ""
	case shown.State == StateNamed || shown.State == StateIdle || shown.isShared():
		return ""
	case !allocated && v.isUnknownAllowed(s, device, shown.State):
		return ""
	}
	return fmt.Sprintf("%s is %s; kubelet: %s", device, shown.State, v.describeAllocations(device, s.Span))
}

// checkOwner checks the container labels of a device.
func (v *verifier) checkOwner(s *MetricsSnapshot, l DeviceOwner) {
	switch {
	case slices.ContainsFunc(v.allocationsByDevice[l.Device], func(p AllocationPeriod) bool {
		return p.Container == l.Owner && p.possiblyDuring(s.Span)
	}):
		v.ownerSeen[l] = append(v.ownerSeen[l], s.To)
	case v.isStaleAllowed(s, l):
		v.StaleAllowed++
	default:
		v.reportWrong(s, l.Device, "has owner %v", l.Owner)
	}
}

// isUnknownAllowed reports whether the snapshot may lack an owner. Between
// Allocate and the kubelet's checkpoint the owner is unknown, and a restart can
// interrupt that allocation.
func (v *verifier) isUnknownAllowed(s *MetricsSnapshot, device string, state OwnerState) bool {
	if slices.ContainsFunc(v.allocationsByDevice[device], func(p AllocationPeriod) bool {
		return p.allocatedSpan().overlaps(s.Span)
	}) {
		return true
	}
	interrupted := state == StateUnnamed && slices.ContainsFunc(v.Outages, func(o Span) bool {
		return Span{o.From, o.To.Add(maxUnnamed)}.overlaps(s.Span)
	})
	if interrupted {
		v.UnnamedAllowed++
	}
	return interrupted
}

func (v *verifier) reportWrong(s *MetricsSnapshot, device, format string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf("%s: %s %s; kubelet: %s", s.Span, device, fmt.Sprintf(format, args...),
		v.describeAllocations(device, s.Span)))
}

// isStaleAllowed reports whether a label may belong to the last owner before a
// kubelet restart. An owner that ended without a connection between podgauge
// and the kubelet may be exported for maxStaleOwner, unless the kubelet lists a
// different owner (docs/contributing/adr/0004-unknown-owners.md).
func (v *verifier) isStaleAllowed(s *MetricsSnapshot, l DeviceOwner) bool {
	for i, o := range v.Outages {
		if s.To.Before(o.From) || s.From.After(o.To.Add(maxStaleOwner)) {
			continue
		}
		for _, p := range v.allocationsByDevice[l.Device] {
			if p.Container == l.Owner && p.End.overlaps(v.kubeletUnseen[i]) && !v.wasReplaced(p, s.From) {
				return true
			}
		}
	}
	return false
}

// wasReplaced reports whether the kubelet listed a new owner of the device
// before the collection.
func (v *verifier) wasReplaced(p AllocationPeriod, collected time.Time) bool {
	return slices.ContainsFunc(v.allocationsByDevice[p.Device], func(other AllocationPeriod) bool {
		return other.Container != p.Container && other.Start.To.After(p.End.From) && !other.Start.To.After(collected)
	})
}

// checkAllocation checks that snapshots have the label of an allocation of
// minLabelledDuration outside restarts.
func (v *verifier) checkAllocation(p AllocationPeriod) {
	duration := p.End.From.Sub(p.Start.To)
	for _, o := range v.Outages {
		duration -= max(0, earlier(o.To, p.End.From).Sub(later(o.From, p.Start.To)))
	}
	if duration < minLabelledDuration || v.scrapesIn(Span{p.Start.To, p.End.From}) < minScrapes {
		return
	}
	v.LongAllocations++
	for _, at := range v.ownerSeen[DeviceOwner{p.Device, p.Container}] {
		if !at.Before(p.Start.From) {
			v.Labelled++
			v.Lateness = append(v.Lateness, max(0, at.Sub(p.Start.To)))
			return
		}
	}
	v.Unlabelled = append(v.Unlabelled, fmt.Sprintf("%s was allocated to %v for %s", p.Device, p.Container, duration))
}

// scrapesIn returns the number of whole scrapes within s.
func (v *verifier) scrapesIn(s Span) (n int) {
	for _, scrape := range v.scrapes {
		if !scrape.From.Before(s.From) && !scrape.To.After(s.To) {
			n++
		}
	}
	return n
}

func earlier(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// describeAllocations describes the allocations of a device within three
// seconds of s.
func (v *verifier) describeAllocations(device string, s Span) string {
	around := Span{s.From.Add(-3 * time.Second), s.To.Add(3 * time.Second)}
	var descriptions []string
	for _, p := range v.allocationsByDevice[device] {
		if p.possiblyDuring(around) {
			descriptions = append(descriptions, fmt.Sprintf("allocated to %v from %s to %s", p.Container, p.Start,
				p.End))
		}
	}
	for _, o := range v.Outages {
		if o.overlaps(around) {
			descriptions = append(descriptions, "restart at "+o.String())
		}
	}
	if len(descriptions) == 0 {
		return "unallocated within three seconds"
	}
	return strings.Join(descriptions, "; ")
}
