// Package churn holds what /metrics says of who holds what against what the kubelet
// says, while pods come and go and the kubelet is restarted under them.
//
// Run is the churn: it has a Node's pods come and go, asks its kubelet all the while and
// scrapes it. Record makes the kubelet's answers into Holdings, each with what is not
// known of its beginning and its end, since an answer is true of one moment only. Judge
// compares every Snapshot, over the time of its flight, with all of them.
package churn

import "time"

// Owner is a container, as the kubelet names it. The zero Owner is nobody.
type Owner struct{ Namespace, Pod, Container string }

// Pod tells whose container it is.
func (o Owner) pod() Owner { return Owner{Namespace: o.Namespace, Pod: o.Pod} }

// Span is a time, or the limits between which a moment lies.
type Span struct{ From, To time.Time }

func (s Span) String() string {
	const clock = "15:04:05.000"
	return s.From.Format(clock) + "-" + s.To.Format(clock)
}

// meets tells whether two times have a moment in common.
func (s Span) meets(o Span) bool { return !s.From.After(o.To) && !s.To.Before(o.From) }

// Holding is a time in which a container had a device.
type Holding struct {
	Device string
	Owner  Owner
	// Since and Until are the limits between which it began, and ended.
	Since, Until Span
	// Placed is when its pod was given to the node: no sooner was the device allocated.
	Placed time.Time
}

// may tells whether it can have lasted at some moment of a time.
func (h Holding) may(s Span) bool { return Span{h.Since.From, h.Until.To}.meets(s) }

// must tells whether it lasted through all of a time, for sure.
func (h Holding) must(s Span) bool { return h.Since.To.Before(s.From) && h.Until.From.After(s.To) }

// allocated is the time in which the device can have been allocated to the container: the
// kubelet names nobody before Allocate has returned and it has noted what it gave.
func (h Holding) allocated() Span { return Span{h.Placed, h.Until.To} }

// overlaps tells whether two containers had the same device at the same time, for sure.
func (h Holding) overlaps(o Holding) bool {
	return h.Device == o.Device && h.Owner != o.Owner && h.Since.To.Before(o.Until.From) && o.Since.To.Before(h.Until.From)
}
