package churn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// GroundTruth is what was so, whatever /metrics says.
type GroundTruth struct {
	Allocations []AllocationPeriod
	// Outages are the times in which the kubelet was no witness: it was restarted.
	Outages []Span
	// EnergyAt is a device's own energy counter, in joules, at a time.
	EnergyAt func(device string, at time.Time) float64
}

const (
	// minLabelledDuration is how long a holding has to last to be one that has to be labelled.
	minLabelledDuration = time.Second
	// minScrapes is how many scrapes must begin and end within such a holding: on a loaded
	// machine a scrape may take a second, and the flight that it joins may have begun before.
	minScrapes = 2
	// maxStaleOwner is how long after the kubelet's return a holder may be shown that it does
	// not name (docs/adr/0004-unknown-holders.md): a minute from the connection, which is
	// made when podgauge asks next, a second later at most.
	maxStaleOwner = time.Minute + time.Second
	// maxUnnamed is how long after a restart a device may be said to be allocated without a
	// name that nobody has: to a pod that the restart cut short, which the kubelet never
	// named, or turned away. Such a one is looked for for ten seconds (ADR 4).
	maxUnnamed = 11 * time.Second
)

// Verify compares snapshots, in the order of their flights, with the truth.
func Verify(t GroundTruth, snapshots []MetricsSnapshot) VerifyResult {
	j := verifier{GroundTruth: t, longestCollection: time.Second / 10, allocationsByDevice: map[string][]AllocationPeriod{}, ownerSeen: map[DeviceOwner][]time.Time{}}
	pods := map[ContainerKey]bool{}
	for _, h := range t.Allocations {
		j.allocationsByDevice[h.Device] = append(j.allocationsByDevice[h.Device], h)
		pods[h.Container.podKey()] = true
	}
	j.Transitions, j.Restarts, j.Snapshots = 2*len(pods), len(t.Outages), len(snapshots)
	for _, o := range t.Outages {
		j.kubeletUnseen = append(j.kubeletUnseen, unseenSpan(o, snapshots))
	}
	for i := range snapshots {
		j.checkSnapshot(&snapshots[i])
		j.scrapes = append(j.scrapes, snapshots[i].Scrapes...)
	}
	for _, h := range t.Allocations {
		j.checkAllocation(h)
	}
	for i, h := range t.Allocations {
		for _, other := range t.Allocations[:i] {
			if h.overlaps(other) {
				j.DoubleAllocated++
			}
		}
	}
	for _, s := range snapshots {
		j.longestCollection = max(j.longestCollection, s.To.Sub(s.From))
	}
	for _, device := range slices.Sorted(maps.Keys(j.allocationsByDevice)) {
		j.EnergyBalances = append(j.EnergyBalances, j.checkBalance(device, snapshots))
	}
	return j.VerifyResult
}

// verifier is a verdict in the making.
type verifier struct {
	GroundTruth
	VerifyResult
	allocationsByDevice map[string][]AllocationPeriod
	// longestCollection is how long the longest flight took, and a tenth of a second at least.
	longestCollection time.Duration
	// kubeletUnseen are, for each outage, when podgauge did not see the kubelet.
	kubeletUnseen []Span
	// ownerSeen are the ends of the flights that named a holder.
	ownerSeen map[DeviceOwner][]time.Time
	scrapes   []Span
}

// unseenSpan is the time around an outage in which podgauge did not see the kubelet: from the
// begin of the last flight before it to the end of the first one after it that the kubelet
// answered. Whoever ended in it, podgauge cannot know to have ended.
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
		unknown = append(unknown, "the kubelet is said not to answer")
	}
	for device := range v.allocationsByDevice {
		if hold := v.checkDevice(s, device); hold != "" {
			unknown = append(unknown, hold)
		}
	}
	for device := range s.Devices {
		if v.allocationsByDevice[device] == nil { // nobody ever had it
			v.checkDevice(s, device)
		}
	}
	switch away := slices.ContainsFunc(v.Outages, func(o Span) bool { return o.overlaps(s.Span) }); {
	case away:
		v.DuringRestarts++
	case len(unknown) > 0:
		v.Unknown = append(v.Unknown, fmt.Sprintf("%s: %s", s.Span, strings.Join(unknown, "; ")))
	}
}

// checkDevice judges what a snapshot says of one device, and says what it does not know of what
// the kubelet knew.
func (v *verifier) checkDevice(s *MetricsSnapshot, device string) (unknown string) {
	shown := s.Devices[device]
	for _, owner := range shown.Owners {
		v.checkOwner(s, DeviceOwner{device, owner})
		if owner != shown.Owner && !shown.isShared() {
			v.reportWrong(s, device, "is held by %v in some series, and in others by %v", owner, shown.Owner)
		}
	}
	if shown.HasEnergy && shown.EnergyOwner != shown.Owner {
		v.reportWrong(s, device, "is held by %v, and its energy is booked on %v", shown.Owner, shown.EnergyOwner)
	}
	held := slices.ContainsFunc(v.allocationsByDevice[device], func(h AllocationPeriod) bool { return h.certainlyDuring(s.Span) })
	switch {
	case held && shown.State == StateIdle:
		v.reportWrong(s, device, "is said to be idle")
		return ""
	case shown.State == StateNamed || shown.State == StateIdle || shown.isShared():
		return ""
	case !held && v.isUnknownAllowed(s, device, shown.State):
		return ""
	}
	return fmt.Sprintf("%s is %s; in truth %s", device, shown.State, v.describeAllocations(device, s.Span))
}

// checkOwner judges a label.
func (v *verifier) checkOwner(s *MetricsSnapshot, l DeviceOwner) {
	switch {
	case slices.ContainsFunc(v.allocationsByDevice[l.Device], func(h AllocationPeriod) bool { return h.Container == l.Owner && h.possiblyDuring(s.Span) }):
		v.ownerSeen[l] = append(v.ownerSeen[l], s.To)
	case v.isStaleAllowed(s, l):
		v.StaleAllowed++
	default:
		v.reportWrong(s, l.Device, "is said to be held by %v", l.Owner)
	}
}

// isUnknownAllowed tells whether nobody need know who has a device: between Allocate and the kubelet's
// own bookkeeping somebody has it whom nobody can name, and a restart can cut that short.
func (v *verifier) isUnknownAllowed(s *MetricsSnapshot, device string, hold OwnerState) bool {
	if slices.ContainsFunc(v.allocationsByDevice[device], func(h AllocationPeriod) bool { return h.allocatedSpan().overlaps(s.Span) }) {
		return true
	}
	cut := hold == StateUnnamed && slices.ContainsFunc(v.Outages, func(o Span) bool {
		return Span{o.From, o.To.Add(maxUnnamed)}.overlaps(s.Span)
	})
	if cut {
		v.UnnamedAllowed++
	}
	return cut
}

func (v *verifier) reportWrong(s *MetricsSnapshot, device, what string, args ...any) {
	v.Wrong = append(v.Wrong, fmt.Sprintf("%s: %s %s; in truth %s", s.Span, device, fmt.Sprintf(what, args...), v.describeAllocations(device, s.Span)))
}

// isStaleAllowed tells whether a label is of the last holder that podgauge can have known when the
// kubelet went away, and that ended before podgauge saw the kubelet again. Such a one may be
// shown until the kubelet has been back for a while (docs/adr/0004-unknown-holders.md), unless
// the kubelet has named somebody else since.
func (v *verifier) isStaleAllowed(s *MetricsSnapshot, l DeviceOwner) bool {
	for i, o := range v.Outages {
		if s.To.Before(o.From) || s.From.After(o.To.Add(maxStaleOwner)) {
			continue
		}
		for _, h := range v.allocationsByDevice[l.Device] {
			if h.Container == l.Owner && h.End.overlaps(v.kubeletUnseen[i]) && !v.wasReplaced(h, s.From) {
				return true
			}
		}
	}
	return false
}

// wasReplaced tells whether the kubelet named another for a holding's device before a flight.
func (v *verifier) wasReplaced(h AllocationPeriod, collected time.Time) bool {
	return slices.ContainsFunc(v.allocationsByDevice[h.Device], func(other AllocationPeriod) bool {
		return other.Container != h.Container && other.Start.To.After(h.End.From) && !other.Start.To.After(collected)
	})
}

// checkAllocation judges whether a holding was ever shown, if it surely lasted for long while the
// kubelet could be asked.
func (v *verifier) checkAllocation(h AllocationPeriod) {
	lasted := h.End.From.Sub(h.Start.To)
	for _, o := range v.Outages {
		lasted -= max(0, earlier(o.To, h.End.From).Sub(later(o.From, h.Start.To)))
	}
	if lasted < minLabelledDuration || v.scrapesIn(Span{h.Start.To, h.End.From}) < minScrapes {
		return
	}
	v.LongAllocations++
	for _, at := range v.ownerSeen[DeviceOwner{h.Device, h.Container}] {
		if !at.Before(h.Start.From) {
			v.Labelled++
			v.Lateness = append(v.Lateness, max(0, at.Sub(h.Start.To)))
			return
		}
	}
	v.Unlabelled = append(v.Unlabelled, fmt.Sprintf("%s was held by %v for %s", h.Device, h.Container, lasted))
}

// scrapesIn counts the scrapes that began and ended within a span.
func (v *verifier) scrapesIn(s Span) (n int) {
	for _, scrape := range v.scrapes {
		if !scrape.From.Before(s.From) && !scrape.To.After(s.To) {
			n++
		}
	}
	return n
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// describeAllocations is who held a device around a time.
func (v *verifier) describeAllocations(device string, s Span) string {
	around := Span{s.From.Add(-3 * time.Second), s.To.Add(3 * time.Second)}
	var words []string
	for _, h := range v.allocationsByDevice[device] {
		if h.possiblyDuring(around) {
			words = append(words, fmt.Sprintf("%v had it from %s to %s", h.Container, h.Start, h.End))
		}
	}
	for _, o := range v.Outages {
		if o.overlaps(around) {
			words = append(words, "the kubelet was away "+o.String())
		}
	}
	if len(words) == 0 {
		return "nobody had it within three seconds"
	}
	return strings.Join(words, "; ")
}
