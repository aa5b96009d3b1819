package churn

import (
	"slices"
	"time"
)

// KubeletListing is who holds what at one moment between Asked and Came, as the kubelet says.
type KubeletListing struct {
	Span // from when it was asked to when it had answered
	// Allocated are the devices with their holders. A kubelet gives a device to two pods now and
	// then: one that is asked List while it allocates, and frees an ended pod's devices to
	// answer, forgets what it is about to allocate (UpdateAllocatedDevices in
	// pkg/kubelet/cm/devicemanager/manager.go).
	Allocated []DeviceOwner
	// Complete says that what it does not name is not held. An answer that never came is not,
	// nor is one of a kubelet that was just started: that names nobody at first.
	Complete bool
}

// AllocationLog makes answers into holdings. They have to be taken in one after the other.
type AllocationLog struct {
	allocations     []AllocationPeriod
	openAllocations map[DeviceOwner]int        // those that last, by their place
	lastComplete    time.Time                  // when the newest whole answer was asked for
	outages         []Span                     // from a whole answer to the next, with others between them
	inOutage        bool                       // the newest outage lasts
	created         map[ContainerKey]time.Time // by pod
	lastListed      []DeviceOwner              // what was named last
}

// DeviceOwner is a device and a container that has it.
type DeviceOwner struct {
	Device string
	Owner  ContainerKey
}

// NewAllocationLog begins at a moment at which nobody holds anything.
func NewAllocationLog(begin time.Time) *AllocationLog {
	return &AllocationLog{openAllocations: map[DeviceOwner]int{}, lastComplete: begin, created: map[ContainerKey]time.Time{}}
}

// PodCreated notes that a pod is about to be given to the node.
func (r *AllocationLog) PodCreated(namespace, pod string, at time.Time) {
	r.created[ContainerKey{Namespace: namespace, Pod: pod}] = at
}

// Add takes an answer in.
func (r *AllocationLog) Add(a KubeletListing) {
	for _, h := range a.Allocated {
		at, known := r.openAllocations[h]
		if !known {
			at = len(r.allocations)
			r.openAllocations[h] = at
			r.allocations = append(r.allocations, AllocationPeriod{
				Device: h.Device, Container: h.Owner, Start: Span{r.lastComplete, a.To}, Created: r.created[h.Owner.podKey()],
			})
		}
		r.allocations[at].End.From = a.From
	}
	for h, at := range r.openAllocations {
		if a.Complete && !slices.Contains(a.Allocated, h) {
			r.allocations[at].End.To = a.To
			delete(r.openAllocations, h)
		}
	}
	r.lastListed = a.Allocated
	switch {
	case a.Complete && r.inOutage:
		r.outages[len(r.outages)-1].To = a.To
	case !a.Complete && !r.inOutage:
		r.outages = append(r.outages, Span{From: r.lastComplete})
	}
	if r.inOutage = !a.Complete; a.Complete {
		r.lastComplete = a.From
	}
}

// DeviceCount counts what a pod held by the newest answer.
func (r *AllocationLog) DeviceCount(namespace, pod string) (n int) {
	for _, h := range r.lastListed {
		if h.Owner.podKey() == (ContainerKey{Namespace: namespace, Pod: pod}) {
			n++
		}
	}
	return n
}

// LastComplete is when the newest whole answer was asked for.
func (r *AllocationLog) LastComplete() time.Time { return r.lastComplete }

// Allocations are all that were ever named. What lasts at the end has no end.
func (r *AllocationLog) Allocations(end time.Time) []AllocationPeriod {
	for _, at := range r.openAllocations {
		r.allocations[at].End.To = end
	}
	return r.allocations
}

// Outages are the times without a whole answer.
func (r *AllocationLog) Outages(end time.Time) []Span {
	if r.inOutage {
		r.outages[len(r.outages)-1].To = end
	}
	return r.outages
}
