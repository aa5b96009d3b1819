package churn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Truth is what was so, whatever /metrics says.
type Truth struct {
	Holdings []Holding
	// Outages are the times in which the kubelet was no witness: it was restarted.
	Outages []Span
	// Burned is a device's own energy counter, in joules, at a time.
	Burned func(device string, at time.Time) float64
}

const (
	// long is how long a holding has to last to be one that has to be labelled.
	long = time.Second
	// leastScrapes is how many scrapes must begin and end within such a holding: on a loaded
	// machine a scrape may take a second, and the flight that it joins may have begun before.
	leastScrapes = 2
	// standsFor is how long after the kubelet's return a holder may be shown that it does
	// not name (docs/adr/0004-unknown-holders.md): a minute from the connection, which is
	// made when podgauge asks next, a second later at most.
	standsFor = time.Minute + time.Second
	// unnamedFor is how long after a restart a device may be said to be allocated without a
	// name that nobody has: to a pod that the restart cut short, which the kubelet never
	// named, or turned away. Such a one is looked for for ten seconds (ADR 4).
	unnamedFor = 11 * time.Second
)

// Judge compares snapshots, in the order of their flights, with the truth.
func Judge(t Truth, snapshots []Snapshot) Verdict {
	j := judgement{Truth: t, longest: time.Second / 10, byDevice: map[string][]Holding{}, labelled: map[Held][]time.Time{}}
	pods := map[Owner]bool{}
	for _, h := range t.Holdings {
		j.byDevice[h.Device] = append(j.byDevice[h.Device], h)
		pods[h.Owner.pod()] = true
	}
	j.Transitions, j.Restarts, j.Snapshots = 2*len(pods), len(t.Outages), len(snapshots)
	for _, o := range t.Outages {
		j.unseen = append(j.unseen, unseen(o, snapshots))
	}
	for i := range snapshots {
		j.snapshot(&snapshots[i])
		j.scrapes = append(j.scrapes, snapshots[i].Scrapes...)
	}
	for _, h := range t.Holdings {
		j.holding(h)
	}
	for i, h := range t.Holdings {
		for _, other := range t.Holdings[:i] {
			if h.overlaps(other) {
				j.Twice++
			}
		}
	}
	for _, s := range snapshots {
		j.longest = max(j.longest, s.To.Sub(s.From))
	}
	for _, device := range slices.Sorted(maps.Keys(j.byDevice)) {
		j.Counters = append(j.Counters, j.counter(device, snapshots))
	}
	return j.Verdict
}

// judgement is a verdict in the making.
type judgement struct {
	Truth
	Verdict
	byDevice map[string][]Holding
	// longest is how long the longest flight took, and a tenth of a second at least.
	longest time.Duration
	// unseen are, for each outage, when podgauge did not see the kubelet.
	unseen []Span
	// labelled are the ends of the flights that named a holder.
	labelled map[Held][]time.Time
	scrapes  []Span
}

// unseen is the time around an outage in which podgauge did not see the kubelet: from the
// begin of the last flight before it to the end of the first one after it that the kubelet
// answered. Whoever ended in it, podgauge cannot know to have ended.
func unseen(o Span, snapshots []Snapshot) Span {
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

func (j *judgement) snapshot(s *Snapshot) {
	var unknown []string
	if !s.KubeletUp {
		unknown = append(unknown, "the kubelet is said not to answer")
	}
	for device := range j.byDevice {
		if hold := j.device(s, device); hold != "" {
			unknown = append(unknown, hold)
		}
	}
	for device := range s.Devices {
		if j.byDevice[device] == nil { // nobody ever had it
			j.device(s, device)
		}
	}
	switch away := slices.ContainsFunc(j.Outages, func(o Span) bool { return o.meets(s.Span) }); {
	case away:
		j.InRestarts++
	case len(unknown) > 0:
		j.Unknown = append(j.Unknown, fmt.Sprintf("%s: %s", s.Span, strings.Join(unknown, "; ")))
	}
}

// device judges what a snapshot says of one device, and says what it does not know of what
// the kubelet knew.
func (j *judgement) device(s *Snapshot, device string) (unknown string) {
	shown := s.Devices[device]
	for _, owner := range shown.Owners {
		j.named(s, Held{device, owner})
		if owner != shown.Holder && !shown.shared() {
			j.wrong(s, device, "is held by %v in some series, and in others by %v", owner, shown.Holder)
		}
	}
	if shown.Counted && shown.Booked != shown.Holder {
		j.wrong(s, device, "is held by %v, and its energy is booked on %v", shown.Holder, shown.Booked)
	}
	held := slices.ContainsFunc(j.byDevice[device], func(h Holding) bool { return h.must(s.Span) })
	switch {
	case held && shown.Hold == Idle:
		j.wrong(s, device, "is said to be idle")
		return ""
	case shown.Hold == Named || shown.Hold == Idle || shown.shared():
		return ""
	case !held && j.excused(s, device, shown.Hold):
		return ""
	}
	return fmt.Sprintf("%s is %s; in truth %s", device, shown.Hold, j.story(device, s.Span))
}

// named judges a label.
func (j *judgement) named(s *Snapshot, l Held) {
	switch {
	case slices.ContainsFunc(j.byDevice[l.Device], func(h Holding) bool { return h.Owner == l.Owner && h.may(s.Span) }):
		j.labelled[l] = append(j.labelled[l], s.To)
	case j.stands(s, l):
		j.Stood++
	default:
		j.wrong(s, l.Device, "is said to be held by %v", l.Owner)
	}
}

// excused tells whether nobody need know who has a device: between Allocate and the kubelet's
// own bookkeeping somebody has it whom nobody can name, and a restart can cut that short.
func (j *judgement) excused(s *Snapshot, device string, hold Hold) bool {
	if slices.ContainsFunc(j.byDevice[device], func(h Holding) bool { return h.allocated().meets(s.Span) }) {
		return true
	}
	cut := hold == Unnamed && slices.ContainsFunc(j.Outages, func(o Span) bool {
		return Span{o.From, o.To.Add(unnamedFor)}.meets(s.Span)
	})
	if cut {
		j.Cut++
	}
	return cut
}

func (j *judgement) wrong(s *Snapshot, device, what string, args ...any) {
	j.Wrong = append(j.Wrong, fmt.Sprintf("%s: %s %s; in truth %s", s.Span, device, fmt.Sprintf(what, args...), j.story(device, s.Span)))
}

// stands tells whether a label is of the last holder that podgauge can have known when the
// kubelet went away, and that ended before podgauge saw the kubelet again. Such a one may be
// shown until the kubelet has been back for a while (docs/adr/0004-unknown-holders.md), unless
// the kubelet has named somebody else since.
func (j *judgement) stands(s *Snapshot, l Held) bool {
	for i, o := range j.Outages {
		if s.To.Before(o.From) || s.From.After(o.To.Add(standsFor)) {
			continue
		}
		for _, h := range j.byDevice[l.Device] {
			if h.Owner == l.Owner && h.Until.meets(j.unseen[i]) && !j.replaced(h, s.From) {
				return true
			}
		}
	}
	return false
}

// replaced tells whether the kubelet named another for a holding's device before a flight.
func (j *judgement) replaced(h Holding, flight time.Time) bool {
	return slices.ContainsFunc(j.byDevice[h.Device], func(other Holding) bool {
		return other.Owner != h.Owner && other.Since.To.After(h.Until.From) && !other.Since.To.After(flight)
	})
}

// holding judges whether a holding was ever shown, if it surely lasted for long while the
// kubelet could be asked.
func (j *judgement) holding(h Holding) {
	lasted := h.Until.From.Sub(h.Since.To)
	for _, o := range j.Outages {
		lasted -= max(0, earlier(o.To, h.Until.From).Sub(later(o.From, h.Since.To)))
	}
	if lasted < long || j.scrapesIn(Span{h.Since.To, h.Until.From}) < leastScrapes {
		return
	}
	j.Long++
	for _, at := range j.labelled[Held{h.Device, h.Owner}] {
		if !at.Before(h.Since.From) {
			j.Labelled++
			j.Lateness = append(j.Lateness, max(0, at.Sub(h.Since.To)))
			return
		}
	}
	j.Unlabelled = append(j.Unlabelled, fmt.Sprintf("%s was held by %v for %s", h.Device, h.Owner, lasted))
}

// scrapesIn counts the scrapes that began and ended within a span.
func (j *judgement) scrapesIn(s Span) (n int) {
	for _, scrape := range j.scrapes {
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

// story is who held a device around a time.
func (j *judgement) story(device string, s Span) string {
	around := Span{s.From.Add(-3 * time.Second), s.To.Add(3 * time.Second)}
	var words []string
	for _, h := range j.byDevice[device] {
		if h.may(around) {
			words = append(words, fmt.Sprintf("%v had it from %s to %s", h.Owner, h.Since, h.Until))
		}
	}
	for _, o := range j.Outages {
		if o.meets(around) {
			words = append(words, "the kubelet was away "+o.String())
		}
	}
	if len(words) == 0 {
		return "nobody had it within three seconds"
	}
	return strings.Join(words, "; ")
}
