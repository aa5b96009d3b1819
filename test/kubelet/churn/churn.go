// Package churn compares the container labels of /metrics with the kubelet's
// allocations while pods start and end and the kubelet restarts.
//
// Run creates and deletes pods on a NodeUnderTest, lists the kubelet's
// allocations and scrapes podgauge. AllocationLog converts the lists to
// AllocationPeriods. Start and end of a period are known within limits, because
// a list shows a single moment. Verify compares each MetricsSnapshot, over the
// time of its collection, with all periods.
package churn

import "time"

// ContainerKey identifies a container as the kubelet does. The zero key means
// no container.
type ContainerKey struct{ Namespace, Pod, Container string }

// podKey returns the key of the container's pod.
func (k ContainerKey) podKey() ContainerKey { return ContainerKey{Namespace: k.Namespace, Pod: k.Pod} }

// Span is a time range, or the limits of an unknown moment.
type Span struct{ From, To time.Time }

func (s Span) String() string {
	const clock = "15:04:05.000"
	return s.From.Format(clock) + "-" + s.To.Format(clock)
}

// overlaps reports whether two spans have a moment in common.
func (s Span) overlaps(o Span) bool { return !s.From.After(o.To) && !s.To.Before(o.From) }

// AllocationPeriod is the allocation of a device to a container, with its time.
type AllocationPeriod struct {
	Device    string
	Container ContainerKey
	// Start and End are the limits of the period's first and last moment.
	Start, End Span
	// Created is the creation time of the pod, and the earliest time of the
	// allocation.
	Created time.Time
}

// possiblyDuring reports whether the period may include a moment of s.
func (p AllocationPeriod) possiblyDuring(s Span) bool {
	return Span{p.Start.From, p.End.To}.overlaps(s)
}

// certainlyDuring reports whether the period includes all of s.
func (p AllocationPeriod) certainlyDuring(s Span) bool {
	return p.Start.To.Before(s.From) && p.End.From.After(s.To)
}

// allocatedSpan returns the longest possible time of the allocation. The
// kubelet lists a container only after Allocate has returned and the checkpoint
// is written.
func (p AllocationPeriod) allocatedSpan() Span { return Span{p.Created, p.End.To} }

// overlaps reports whether two containers certainly had the same device at the
// same time.
func (p AllocationPeriod) overlaps(o AllocationPeriod) bool {
	return p.Device == o.Device && p.Container != o.Container && p.Start.To.Before(o.End.From) &&
		o.Start.To.Before(p.End.From)
}
