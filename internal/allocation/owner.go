package allocation

import (
	"cmp"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Owner is the container of an allocation. The zero Owner is no container.
type Owner struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
}

// Compare orders owners by namespace, pod and container.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Namespace, p.Namespace), cmp.Compare(o.Pod, p.Pod),
		cmp.Compare(o.Container, p.Container))
}

// Common returns the common part of two owners: the container, the pod without a container, or the zero Owner.
func (o Owner) Common(p Owner) Owner {
	switch {
	case o == p:
		return o
	case o.Namespace == p.Namespace && o.Pod == p.Pod:
		return Owner{Namespace: o.Namespace, Pod: o.Pod}
	}
	return Owner{}
}

// PodMeta is a pod's metadata from the kubelet's Pods API.
type PodMeta struct {
	UID    string
	Labels []device.Label // the requested labels that the pod has, by name
	// Workload is nil if unknown or empty.
	Workload *Workload
}

// Assignment is a container's time with a device.
type Assignment struct {
	Owner      Owner
	PodUID     string    // empty: unknown
	Since      time.Time // when the container was first known to have the device
	ObservedAt time.Time // Termination is about the time from here on
}

// Termination is the fate of an Assignment's container in the kubelet's Pods API.
type Termination struct {
	PodUID   string
	Workload *Workload // nil: unknown, or empty
	PodEnded bool      // the pod has ended or is deleted: nothing can change
	PodPhase string    // the last known phase
	Restarts int32     // starts of the container after the first

	// Ended is set if the run of the container at Assignment.ObservedAt has
	// ended. Otherwise, and if unknown, the fields below are zero.
	Ended    bool
	EndedAt  time.Time
	Reason   string // "OOMKilled", "Evicted"
	ExitCode *int32
}
