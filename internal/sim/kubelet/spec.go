package kubelet

import "time"

// Version is the Kubernetes minor version of a simulated kubelet.
type Version string

// The versions differ in the simulated behavior.
const (
	V136 Version = "1.36" // and older: plugins are identified by resource alone, and there is no Pods API
	V137 Version = "1.37" // plugins are identified by resource and socket
)

// PodSpec is a pod to run. Methods of Kubelet identify a pod by namespace and
// name.
type PodSpec struct {
	Namespace string // "default" if empty
	Name      string
	Labels    map[string]string // for the Pods API
	// Static pods come from a manifest on the node, the rest from the API
	// server. The kubelet appends the node's name to names of static pods.
	Static bool
	// InitContainers include sidecars. Init containers start in turn, before
	// Containers.
	InitContainers []ContainerSpec
	Containers     []ContainerSpec
	// ExclusiveCPUs and Memory are listed for the pod as a whole, as the gate
	// PodLevelResourceManagers of 1.37 does.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
	// RunOnce is restartPolicy Never, for real kubelets: here EndPod ends any
	// pod.
	RunOnce bool
	// GracePeriod is the time between the pod's deletion and the end of the
	// containers.
	GracePeriod time.Duration
}

// ContainerSpec is a container of a pod.
type ContainerSpec struct {
	Name    string
	Limits  map[string]int // requested devices by resource: {"nvidia.com/gpu": 1}
	Claims  []ClaimSpec
	Sidecar bool // an init container with restartPolicy Always
	// ExclusiveCPUs and Memory are listed for the container. A real kubelet
	// reserves CPUs and memory for containers of Guaranteed pods.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
}

// MemoryBlock is reserved or allocatable memory.
type MemoryBlock struct {
	Type      string // "memory", "hugepages-2Mi"
	Bytes     uint64
	NUMANodes []int64
}

// ClaimSpec is an allocated resource claim of Dynamic Resource Allocation.
// Containers with the same claim share the devices.
type ClaimSpec struct {
	Namespace string // the pod's if empty
	Name      string
	Devices   []ClaimedDevice
	// PreparedCount is how often the driver prepared the claim; 0 means once. A
	// kubelet without the fix of kubernetes#141335 repeats the call if a second
	// driver of the claim failed, and keeps the devices of each call.
	PreparedCount int
}

// ClaimedDevice is a device in a DRA driver's NodePrepareResources response.
type ClaimedDevice struct {
	Driver, Pool, Device string
	Share                string   // share id; empty unless the device is shared
	CDI                  []string // CDI device names
}

// PodEnd is how a pod ends. The zero value is a success.
type PodEnd struct {
	Reason string                   // of a failure without a container's fault: "Evicted"
	Exits  map[string]ContainerExit // by container; the zero ContainerExit if missing
}

// ContainerExit is how a container exits.
type ContainerExit struct {
	Code   int32  // exit status, or 128 + signal number
	Reason string // if empty, "Completed" or "Error" by the code; also "OOMKilled"
}

// Exit codes of containers ended by a signal.
const (
	exitSIGKILL = 128 + 9
	exitSIGTERM = 128 + 15
)
