package pods

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

// Pod is the subset of a pod that podgauge keeps. Callers must not change its
// slices.
type Pod struct {
	Namespace, Name string
	// UID is the UID of cgroups and log folders. For a static pod: the hash of
	// the manifest, 32 digits without dashes, and the same for each new pod of
	// that manifest.
	UID     string
	Created time.Time      // by the API server; zero for a static pod
	Labels  []device.Label // on the allowlist, by name
	// Workload has the pod's controller and job. Nil: the pod has neither, and
	// no label on the allowlist.
	Workload *allocation.Workload
	// Phase is "Pending", "Running", "Succeeded", "Failed" or "Unknown". An
	// evicted pod is "Failed" while containers still run.
	Phase string
	// Reason is the kubelet's reason for a failure beyond the containers:
	// "Evicted", "UnexpectedAdmissionError".
	Reason string
	// Containers are the init, sidecar, regular and ephemeral containers with a
	// status.
	Containers []Container
}

// Container is one container of a pod.
type Container struct {
	Name string
	// ID is the runtime's id of the newest run, without the runtime's name:
	// with containerd and CRI-O 64 hexadecimal digits. Empty before the first
	// run.
	ID        string
	State     ContainerState
	LastState ContainerState // Terminated: the end of the run before State
	Restarts  int32          // runs after the first, as counted by the kubelet
}

// ContainerState is the state of a container, comparable by ==. Reason,
// ExitCode and Finished belong to Terminated.
type ContainerState struct {
	Type     ContainerStateType
	Reason   string    // "OOMKilled", "Error", "Completed"
	ExitCode int32     // 128 and the signal's number after a signal
	Finished time.Time // in whole seconds and local time, as time.Unix returns
}

// ContainerStateType is the type of a ContainerState.
type ContainerStateType uint8

// The types of container states. A container without a status waits.
const (
	Waiting ContainerStateType = iota
	Running
	Terminated
)

// Terminal reports whether the phase is final.
func (p *Pod) Terminal() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Ended reports whether the pod is Terminal and no container runs. An evicted
// pod is Terminal before the runtime kills the containers.
func (p *Pod) Ended() bool {
	return p.Terminal() && !slices.ContainsFunc(p.Containers, func(c Container) bool { return c.State.Type == Running })
}

// equal reports whether two versions of a pod are the same as far as kept.
func (p *Pod) equal(other *Pod) bool {
	return p.Namespace == other.Namespace && p.Name == other.Name && p.UID == other.UID &&
		p.Created.Equal(other.Created) && p.Phase == other.Phase && p.Reason == other.Reason &&
		slices.Equal(p.Labels, other.Labels) && p.Workload.Equal(other.Workload) &&
		slices.Equal(p.Containers, other.Containers)
}

// maxWorkloadBytes bounds names and values of a Workload's labels: each affected
// container of an incident keeps them. A label above is left out.
const maxWorkloadBytes = 1024

// bytes returns the approximate memory of a pod.
func (p *Pod) bytes() int {
	n := 256 + len(p.Namespace) + len(p.Name) + len(p.UID) + len(p.Reason)
	for _, l := range p.Labels {
		n += 64 + len(l.Name) + len(l.Value)
	}
	if p.Workload != nil {
		n += 512 + maxWorkloadBytes
	}
	for _, c := range p.Containers {
		n += 256 + len(c.Name) + len(c.ID) + len(c.State.Reason) + len(c.LastState.Reason)
	}
	return n
}
