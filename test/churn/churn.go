// Package churn holds what /metrics says of who holds what against what the kubelet
// says, while pods come and go and the kubelet is restarted under them.
//
// Run is the churn: it has a Node's pods come and go, asks its kubelet all the while and
// scrapes it. Record makes the kubelet's answers into Holdings, each with what is not
// known of its beginning and its end, since an answer is true of one moment only. Judge
// compares every Snapshot, over the time of its flight, with all of them.
package churn

import "time"

// ContainerKey is a container, as the kubelet names it. The zero Owner is nobody.
type ContainerKey struct{ Namespace, Pod, Container string }

// Pod tells whose container it is.
func (o ContainerKey) podKey() ContainerKey { return ContainerKey{Namespace: o.Namespace, Pod: o.Pod} }

// Span is a time, or the limits between which a moment lies.
type Span struct{ From, To time.Time }

func (s Span) String() string {
	const clock = "15:04:05.000"
	return s.From.Format(clock) + "-" + s.To.Format(clock)
}

// overlaps tells whether two times have a moment in common.
func (s Span) overlaps(o Span) bool { return !s.From.After(o.To) && !s.To.Before(o.From) }

// AllocationPeriod is a time in which a container had a device.
type AllocationPeriod struct {
	Device    string
	Container ContainerKey
	// Since and Until are the limits between which it began, and ended.
	Start, End Span
	// Created is when its pod was given to the node: no sooner was the device allocated.
	Created time.Time
}

// possiblyDuring tells whether it can have lasted at some moment of a time.
func (h AllocationPeriod) possiblyDuring(s Span) bool {
	return Span{h.Start.From, h.End.To}.overlaps(s)
}

// certainlyDuring tells whether it lasted through all of a time, for sure.
func (h AllocationPeriod) certainlyDuring(s Span) bool {
	return h.Start.To.Before(s.From) && h.End.From.After(s.To)
}

// allocatedSpan is the time in which the device can have been allocated to the container: the
// kubelet names nobody before Allocate has returned and it has noted what it gave.
func (h AllocationPeriod) allocatedSpan() Span { return Span{h.Created, h.End.To} }

// overlaps tells whether two containers had the same device at the same time, for sure.
func (h AllocationPeriod) overlaps(o AllocationPeriod) bool {
	return h.Device == o.Device && h.Container != o.Container && h.Start.To.Before(o.End.From) && o.Start.To.Before(h.End.From)
}
