package kubelet

import "time"

// Version is the Kubernetes minor version whose behavior a Kubelet has.
type Version string

// The versions that differ in the simulated behavior.
const (
	V136 Version = "1.36" // and older: plugins are identified by resource alone, and there is no Pods API
	V137 Version = "1.37" // plugins are identified by resource and socket
)

// PodSpec is a pod to run. Its namespace and name identify it to the methods of Kubelet.
type PodSpec struct {
	Namespace string // "default" if empty
	Name      string
	Labels    map[string]string // for the Pods API
	// Static pods come from a manifest on the node, others from the API server. The kubelet appends the node's name to their names.
	Static bool
	// InitContainers include sidecars. They start one after the other, before Containers.
	InitContainers []ContainerSpec
	Containers     []ContainerSpec
	// ExclusiveCPUs and Memory are listed for the pod as a whole, as the gate PodLevelResourceManagers of 1.37 does.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
	// RunOnce is restartPolicy Never, for real kubelets: here EndPod ends any pod.
	RunOnce bool
	// GracePeriod is the time between the pod's deletion and the end of its containers.
	GracePeriod time.Duration
}

// ContainerSpec is a container of a pod.
type ContainerSpec struct {
	Name    string
	Limits  map[string]int // requested devices by resource: {"nvidia.com/gpu": 1}
	Claims  []ClaimSpec
	Sidecar bool // an init container with restartPolicy Always
	// ExclusiveCPUs and Memory are listed for the container. A real kubelet gives them to containers of Guaranteed pods.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
}

// MemoryBlock is memory that is reserved for a container, or allocatable.
type MemoryBlock struct {
	Type      string // "memory", "hugepages-2Mi"
	Bytes     uint64
	NUMANodes []int64
}

// ClaimSpec is an allocated resource claim of Dynamic Resource Allocation. Containers that name the same claim share its devices.
type ClaimSpec struct {
	Namespace string // the pod's if empty
	Name      string
	Devices   []ClaimedDevice
	// PreparedCount is how often the driver prepared the claim; 0 means once. A kubelet without the fix of kubernetes#141335
	// repeats the call if another driver of the claim failed, and keeps the devices of each call.
	PreparedCount int
}

// ClaimedDevice is a device in a DRA driver's NodePrepareResources response.
type ClaimedDevice struct {
	Driver, Pool, Device string
	Share                string   // share id; empty unless the device is shared
	CDI                  []string // CDI device names
}

// PodEnd is how a pod ends. The zero value is a pod that succeeds.
type PodEnd struct {
	Reason string                   // reason of a failure that no container caused: "Evicted"
	Exits  map[string]ContainerExit // by container; the zero ContainerExit for others
}

// ContainerExit is how a container exits.
type ContainerExit struct {
	Code   int32  // exit status, or 128 + signal number
	Reason string // if empty, "Completed" or "Error" by the code; also "OOMKilled"
}

// What a signal leaves as exit code.
const (
	exitSIGKILL = 128 + 9
	exitSIGTERM = 128 + 15
)
