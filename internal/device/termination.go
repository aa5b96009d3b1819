package device

import "time"

// Assignment is a container's time with a device, as far as it is asked how that went on.
type Assignment struct {
	Owner      Owner
	PodUID     string    // the pod's, where it is known already
	Since      time.Time // when the container was first known to have the device
	ObservedAt time.Time // how the container went on from here on is asked
}

// Termination is what the kubelet's Pods API says of how a Stay went on.
type Termination struct {
	PodUID string // the pod's
	// PodEnded says that the pod has ended or is gone, so that no more will be known.
	PodEnded bool
	PodPhase string // the pod's; its last known one where it is gone
	// Restarts counts the container's starts after the first.
	Restarts int32

	// Ended says that the run of the container that was under way at Assignment.ObservedAt has ended;
	// the rest is nothing where it has not, and what nobody has seen is nothing too.
	Ended    bool
	EndedAt  time.Time
	Reason   string // "OOMKilled", "Evicted"
	ExitCode *int32
}
