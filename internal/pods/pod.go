package pods

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Pod is what of a pod is kept. Its slices are shared and not to be written.
type Pod struct {
	Namespace, Name string
	// UID is that of cgroups and log folders: of a static pod the hash of its manifest,
	// 32 digits without dashes, and the same when the pod is made again of it.
	UID string
	// Created is when the API server took it in; zero for a static pod.
	Created time.Time
	// Labels are those on the allowlist, by name.
	Labels []device.Label
	// Deleting is true from when the pod's deletion was asked for.
	Deleting bool
	// Phase is "Pending", "Running", "Succeeded", "Failed" or "Unknown". An evicted pod
	// is "Failed" while its containers still run.
	Phase string
	// Reason says of a failed pod what failed it, where that was not its containers:
	// "Evicted", "UnexpectedAdmissionError".
	Reason string
	// Containers are the init containers, sidecars among them, then the regular ones,
	// then the ephemeral ones, as far as the kubelet has said something of them.
	Containers []Container
}

// Container of a pod.
type Container struct {
	Name string
	Kind ContainerKind
	// ID is the runtime's, without the runtime's name: with containerd and CRI-O 64
	// hexadecimal digits. It is the next start's as soon as there is one, and empty
	// before the first.
	ID    string
	State ContainerState
	// LastState is how the start before ended; it is Waiting where there was none.
	LastState ContainerState
	// Restarts counts the starts after the first, as far as the kubelet remembers.
	Restarts int32
}

// ContainerKind of a container.
type ContainerKind uint8

// The kinds of containers.
const (
	Regular   ContainerKind = iota
	Init                    // sidecars too
	Ephemeral               // of kubectl debug
)

// ContainerState of a container.
type ContainerState struct {
	Type ContainerStateType
	// Reason is one word, of what it waits for or why it ended: "CrashLoopBackOff",
	// "OOMKilled".
	Reason string
	// ExitCode and Signal are of one that has ended. Most runtimes leave Signal 0 and
	// say 128 and the signal's number in ExitCode.
	ExitCode, Signal int32
	// Started and Finished have whole seconds; they are zero where they are not known.
	Started, Finished time.Time
}

// ContainerStateType of a container.
type ContainerStateType uint8

// The statuses of containers. One of which nothing is said waits.
const (
	Waiting ContainerStateType = iota
	Running
	Terminated
)

// Terminal tells whether the pod's phase is one that never changes again.
func (p *Pod) Terminal() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// Ended tells whether the pod is over, and all is said of how: an evicted pod is
// Terminal before its containers are killed.
func (p *Pod) Ended() bool {
	return p.Terminal() && !slices.ContainsFunc(p.Containers, func(c Container) bool { return c.State.Type == Running })
}

// Label returns the value of a label on the allowlist.
func (p *Pod) Label(name string) (value string, ok bool) {
	for _, l := range p.Labels {
		if l.Name == name {
			return l.Value, true
		}
	}
	return "", false
}

// equal tells whether two versions of a pod are the same here, however they differ
// elsewhere.
func (p *Pod) equal(other *Pod) bool {
	return p.Namespace == other.Namespace && p.Name == other.Name && p.UID == other.UID &&
		p.Created.Equal(other.Created) && p.Deleting == other.Deleting &&
		p.Phase == other.Phase && p.Reason == other.Reason &&
		slices.Equal(p.Labels, other.Labels) && slices.EqualFunc(p.Containers, other.Containers, Container.equal)
}

func (c Container) equal(other Container) bool {
	return c.Name == other.Name && c.Kind == other.Kind && c.ID == other.ID && c.Restarts == other.Restarts &&
		c.State.equal(other.State) && c.LastState.equal(other.LastState)
}

func (s ContainerState) equal(other ContainerState) bool {
	return s.Type == other.Type && s.Reason == other.Reason && s.ExitCode == other.ExitCode && s.Signal == other.Signal &&
		s.Started.Equal(other.Started) && s.Finished.Equal(other.Finished)
}

// clone is a pod that shares no slice with p.
func (p *Pod) clone() *Pod {
	c := *p
	c.Labels, c.Containers = slices.Clone(p.Labels), slices.Clone(p.Containers)
	return &c
}
