// Package config says what the device plugin shall do: its flags, environment
// variables and file, spelled as NVIDIA's device plugin spells them.
//
// One table (settings.go) has each setting once; from it come the flags, the known
// keys of the file, the precedence and docs/config.md. A Builder makes Settings
// of what was given, and a Watch makes them anew when the file changes.
package config

// MIG strategies: what a GPU that is partitioned is offered as.
const (
	MIGNone   = "none"   // not at all: GPUs are offered whole
	MIGSingle = "single" // its slices, under the name of whole GPUs
	MIGMixed  = "mixed"  // its slices, under a name for each profile
)

// Device list strategies: how a container is told which devices it holds.
const (
	ListEnvvar         = "envvar"
	ListVolumeMounts   = "volume-mounts"
	ListCDIAnnotations = "cdi-annotations"
	ListCDICRI         = "cdi-cri"
)

// Device id strategies: what a device is called towards the container runtime.
const (
	IDsUUID  = "uuid"
	IDsIndex = "index"
)

// Allocation policies of shared devices.
const (
	AllocateDistributed = "distributed" // the device with the fewest replicas in use first
	AllocatePacked      = "packed"      // the device with the most replicas in use first
	AllocateDistinct    = "distinct"    // never two replicas of one GPU in a container; ours
)

// Device discovery strategies. NVIDIA's third, tegra, is refused.
const (
	DiscoverAuto = "auto"
	DiscoverNVML = "nvml"
)

// Settings are everything that can be configured about the device plugin. Once
// published they are never written again, nor is what they point to.
type Settings struct {
	MIGStrategy     string
	FailOnInitError bool

	// DriverRoot and DevRoot are as the host sees them, ContainerDriverRoot is
	// where the driver root is mounted here.
	DriverRoot, DevRoot, ContainerDriverRoot string

	PassDeviceSpecs     bool
	DeviceListStrategy  []string // at least one, each once
	DeviceIDStrategy    string
	GDRCopy, GDS, MOFED bool

	CDIAnnotationPrefix string
	CDIHookPath         string
	CDIFeatureFlags     []string
	CDIDisabledHooks    []string

	MPSRoot          string
	AllocationPolicy string
	DeviceDiscovery  string
	IMEX             IMEX
	KubeletSocket    string // empty: register nowhere
	Health           HealthConfig

	Sharing       SharingConfig
	Resources     ResourceNames
	DeviceFilter  DeviceFilter
	Claims        ClaimsConfig
	PreStartCheck bool
}

// IMEX says which channels of the fabric every container gets.
type IMEX struct {
	ChannelIDs []int // none, or 0
	Required   bool  // a missing channel is an error
}
