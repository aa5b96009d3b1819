package device

import "time"

// Stay is a container's time with a device, as far as it is asked how that went on.
type Stay struct {
	Owner Owner
	UID   string    // the pod's, where it is known already
	Since time.Time // when the container was first known to have the device
	At    time.Time // how the container went on from here on is asked
}

// Fate is what the kubelet's Pods API says of how a Stay went on.
type Fate struct {
	UID string // the pod's
	// Over says that the pod has ended or is gone, so that no more will be known.
	Over  bool
	Phase string // the pod's; its last known one where it is gone
	// Restarts counts the container's starts after the first.
	Restarts int32

	// Ended says that the run of the container that was under way at Stay.At has ended;
	// the rest is nothing where it has not, and what nobody has seen is nothing too.
	Ended    bool
	At       time.Time
	Reason   string // "OOMKilled", "Evicted"
	ExitCode *int32
}
