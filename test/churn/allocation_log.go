package churn

import (
	"slices"
	"time"
)

// KubeletListing is the kubelet's list of allocations at one moment of Span.
type KubeletListing struct {
	Span // from the request to the response
	// Allocated are the devices with their containers. The kubelet sometimes allocates a device to two pods: a List call
	// during an allocation releases the devices of ended pods, and the allocation in progress with them
	// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go).
	Allocated []DeviceOwner
	// Complete is true if each device outside Allocated is unallocated. False after a failed call, and for a kubelet that
	// has just started, because its first lists are empty.
	Complete bool
}

// AllocationLog turns lists, added in order of time, into allocation periods.
type AllocationLog struct {
	allocations     []AllocationPeriod
	openAllocations map[DeviceOwner]int        // index of each period without an end
	lastComplete    time.Time                  // request time of the newest complete list
	outages         []Span                     // from a complete list to the next, with incomplete lists between
	inOutage        bool                       // the newest outage lasts
	created         map[ContainerKey]time.Time // by pod
	lastListed      []DeviceOwner              // of the newest list
}

// DeviceOwner is a device with a container of its allocation.
type DeviceOwner struct {
	Device string
	Owner  ContainerKey
}

// NewAllocationLog returns a log that starts at a time without allocations.
func NewAllocationLog(start time.Time) *AllocationLog {
	return &AllocationLog{openAllocations: map[DeviceOwner]int{}, lastComplete: start, created: map[ContainerKey]time.Time{}}
}

// PodCreated records the creation time of a pod, before the node gets the pod.
func (r *AllocationLog) PodCreated(namespace, pod string, at time.Time) {
	r.created[ContainerKey{Namespace: namespace, Pod: pod}] = at
}

// Add adds a list of the kubelet.
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

// DeviceCount returns the number of a pod's devices in the newest list.
func (r *AllocationLog) DeviceCount(namespace, pod string) (n int) {
	for _, h := range r.lastListed {
		if h.Owner.podKey() == (ContainerKey{Namespace: namespace, Pod: pod}) {
			n++
		}
	}
	return n
}

// LastComplete returns the request time of the newest complete list.
func (r *AllocationLog) LastComplete() time.Time { return r.lastComplete }

// Allocations returns all periods; the open periods last until end.
func (r *AllocationLog) Allocations(end time.Time) []AllocationPeriod {
	for _, at := range r.openAllocations {
		r.allocations[at].End.To = end
	}
	return r.allocations
}

// Outages returns the times without a complete list.
func (r *AllocationLog) Outages(end time.Time) []Span {
	if r.inOutage {
		r.outages[len(r.outages)-1].To = end
	}
	return r.outages
}
