package churn

import (
	"slices"
	"time"
)

// KubeletListing is the kubelet's list of allocations at one moment of Span.
type KubeletListing struct {
	Span // from the request to the response
	// Allocated are the devices with their containers. The kubelet sometimes
	// allocates a device to two pods: a List call during an allocation releases
	// the devices of ended pods, and the allocation in progress with them
	// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go).
	Allocated []DeviceOwner
	// Complete is true if each device outside Allocated is unallocated. False
	// after a failed call, and for a kubelet that has just started, because its
	// first lists are empty.
	Complete bool
}

// AllocationLog converts lists, added in order of time, to allocation periods.
type AllocationLog struct {
	allocations     []AllocationPeriod
	openAllocations map[DeviceOwner]int        // index of each open period
	lastComplete    time.Time                  // request time of the newest complete list
	outages         []Span                     // from a complete list to the next, with incomplete lists between
	inOutage        bool                       // the newest outage has not ended
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
	return &AllocationLog{
		openAllocations: map[DeviceOwner]int{}, lastComplete: start,
		created: map[ContainerKey]time.Time{},
	}
}

// PodCreated records the creation time of a pod, before the node gets the pod.
func (l *AllocationLog) PodCreated(namespace, pod string, at time.Time) {
	l.created[ContainerKey{Namespace: namespace, Pod: pod}] = at
}

// Add adds a list of the kubelet.
func (l *AllocationLog) Add(list KubeletListing) {
	for _, o := range list.Allocated {
		i, known := l.openAllocations[o]
		if !known {
			i = len(l.allocations)
			l.openAllocations[o] = i
			l.allocations = append(l.allocations, AllocationPeriod{
				Device:    o.Device,
				Container: o.Owner,
				Start:     Span{l.lastComplete, list.To},
				Created:   l.created[o.Owner.podKey()],
			})
		}
		l.allocations[i].End.From = list.From
	}
	for o, i := range l.openAllocations {
		if list.Complete && !slices.Contains(list.Allocated, o) {
			l.allocations[i].End.To = list.To
			delete(l.openAllocations, o)
		}
	}
	l.lastListed = list.Allocated
	switch {
	case list.Complete && l.inOutage:
		l.outages[len(l.outages)-1].To = list.To
	case !list.Complete && !l.inOutage:
		l.outages = append(l.outages, Span{From: l.lastComplete})
	}
	if l.inOutage = !list.Complete; list.Complete {
		l.lastComplete = list.From
	}
}

// DeviceCount returns the number of a pod's devices in the newest list.
func (l *AllocationLog) DeviceCount(namespace, pod string) (n int) {
	for _, o := range l.lastListed {
		if o.Owner.podKey() == (ContainerKey{Namespace: namespace, Pod: pod}) {
			n++
		}
	}
	return n
}

// LastComplete returns the request time of the newest complete list.
func (l *AllocationLog) LastComplete() time.Time { return l.lastComplete }

// Allocations returns all periods; the open periods last until end.
func (l *AllocationLog) Allocations(end time.Time) []AllocationPeriod {
	for _, i := range l.openAllocations {
		l.allocations[i].End.To = end
	}
	return l.allocations
}

// Outages returns the times without a complete list.
func (l *AllocationLog) Outages(end time.Time) []Span {
	if l.inOutage {
		l.outages[len(l.outages)-1].To = end
	}
	return l.outages
}
