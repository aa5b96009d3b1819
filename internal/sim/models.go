package sim

import (
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Model is a kind of GPU: what it is called, what it has and what it can do at most.
// Sizes are in bytes, powers in watts, clocks in hertz, temperatures in °C.
type Model struct {
	name, vbios, capability string
	features                modelFeature

	memory, reserved, bar1           float64
	idleWatts, maxLimitWatts         float64 // at rest, and as it is delivered
	minLimitWatts                    float64 // the lowest limit that can be set
	idleSM, maxSM                    float64
	idleMemory, maxMemory            float64
	idleVideo, maxVideo              float64
	idleCelsius, idleMemoryCelsius   float64
	shutdownCelsius, slowdownCelsius float64
	maxCelsius, maxMemoryCelsius     float64
	pcieGeneration                   float64
	nvlinks                          int
	remapBanks                       float64 // of memory, each with rows to spare
	nvlinkBytes, pcieBytes           float64 // a second, of a link and of the slot, when busy
	maxMIGDevices                    int     // 0: it cannot be partitioned
}

// modelFeature is something that only some GPUs have, or have only in some state.
type modelFeature uint32

const (
	featureWholeGPU modelFeature = 1 << iota // and not in MIG mode now
	featureMIG
	featureGPM
	featureJPEG
	featureHBM
	featureAveragePower       // of the power
	featureTemperatureLimits  // of the temperature, in °C
	featureTemperatureMargins // to them instead
	featurePCIeErrors         // of every kind
	featurePCIeBytes
	featureNVLink
	featureNVLinkErrorsToHopper // and its errors
	featureNVLinkErrorsAmpere
	featureNVLinkErrorsHopper
	featureNVLinkErrorsBlackwell
	featureFabric
	featureC2C
	featureSRAMErrors     // tells it apart
	featureLegacyECC      // tells caches and registers apart
	featureRowRemapping   // rows
	featureInactiveRemaps // tells those that are not
	featurePageRetirement // pages
	featureRepair
	featureUnrepairable
)

const (
	ampereFeatures    = featureMIG | featureJPEG | featureHBM | featurePCIeBytes | featureNVLink | featureSRAMErrors | featureRowRemapping
	hopperFeatures    = ampereFeatures | featureGPM | featureAveragePower | featureTemperatureMargins | featurePCIeErrors | featureFabric | featureRepair
	blackwellFeatures = hopperFeatures | featureNVLinkErrorsBlackwell | featureInactiveRemaps | featureUnrepairable
)

const (
	gib = 1 << 30
	mib = 1 << 20
)

// The models. What they have is what NVML can tell of them, by nvml.h and by what is
// known of real ones.
var (
	// H100 is one of the eight on an HGX board.
	H100 = &Model{
		name: "NVIDIA H100 80GB HBM3", vbios: "96.00.89.00.01", capability: "9.0",
		features: hopperFeatures | featureNVLinkErrorsToHopper | featureNVLinkErrorsAmpere | featureNVLinkErrorsHopper,
		memory:   80 * gib, reserved: 600 * mib, bar1: 128 * gib,
		idleWatts: 70, maxLimitWatts: 700, minLimitWatts: 200,
		idleSM: 345e6, maxSM: 1980e6, idleMemory: 2619e6, maxMemory: 2619e6, idleVideo: 765e6, maxVideo: 1545e6,
		idleCelsius: 32, idleMemoryCelsius: 38, maxCelsius: 87, maxMemoryCelsius: 95, slowdownCelsius: 89, shutdownCelsius: 95,
		pcieGeneration: 5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 26.562e9, remapBanks: 2560, maxMIGDevices: computeSlicesPerGPU,
	}
	// A100 is one of the eight on an HGX board. NVML has no profiling counters for it.
	A100 = &Model{
		name: "NVIDIA A100-SXM4-80GB", vbios: "92.00.45.00.03", capability: "8.0",
		features: ampereFeatures | featureTemperatureLimits | featureNVLinkErrorsToHopper | featureNVLinkErrorsAmpere,
		memory:   80 * gib, reserved: 656 * mib, bar1: 128 * gib,
		idleWatts: 56, maxLimitWatts: 400, minLimitWatts: 100,
		idleSM: 210e6, maxSM: 1410e6, idleMemory: 1593e6, maxMemory: 1593e6, idleVideo: 585e6, maxVideo: 1290e6,
		idleCelsius: 29, idleMemoryCelsius: 36, maxCelsius: 85, maxMemoryCelsius: 95, slowdownCelsius: 89, shutdownCelsius: 92,
		pcieGeneration: 4, pcieBytes: 12e9, nvlinks: 12, nvlinkBytes: 25.781e9, remapBanks: 640, maxMIGDevices: computeSlicesPerGPU,
	}
	// GB200 is one of the four in a tray of an NVL72 rack: a B200 beside a CPU of NVIDIA's.
	GB200 = &Model{
		name: "NVIDIA GB200", vbios: "97.00.82.00.2F", capability: "10.0",
		features: blackwellFeatures | featureC2C,
		memory:   185 * gib, reserved: 747 * mib, bar1: 256 * gib,
		idleWatts: 142, maxLimitWatts: 1200, minLimitWatts: 200,
		idleSM: 120e6, maxSM: 2062e6, idleMemory: 3996e6, maxMemory: 3996e6, idleVideo: 660e6, maxVideo: 1665e6,
		idleCelsius: 28, idleMemoryCelsius: 32, maxCelsius: 88, maxMemoryCelsius: 95, slowdownCelsius: 90, shutdownCelsius: 96,
		pcieGeneration: 5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 53.125e9, remapBanks: 4608, maxMIGDevices: computeSlicesPerGPU,
	}
	// T4 is a card that has none of what the others are linked and measured by.
	T4 = &Model{
		name: "Tesla T4", vbios: "90.04.96.00.9F", capability: "7.5",
		features: featureTemperatureLimits | featureLegacyECC | featurePageRetirement,
		memory:   15 * gib, reserved: 448 * mib, bar1: 256 * mib,
		idleWatts: 9, maxLimitWatts: 70, minLimitWatts: 60,
		idleSM: 300e6, maxSM: 1590e6, idleMemory: 405e6, maxMemory: 5001e6, idleVideo: 540e6, maxVideo: 1470e6,
		idleCelsius: 34, maxCelsius: 85, slowdownCelsius: 93, shutdownCelsius: 96,
		pcieGeneration: 3,
	}
)

// Models are all there are.
func Models() []*Model { return []*Model{H100, A100, GB200, T4} }

// NewNamedMachine makes a machine of the names that people give to such nodes: "h100", eight of
// them; "a100", four, of which two are partitioned and one is about to be; "gb200",
// a tray of four; "t4", four cards; "mixed", one of each. It is nil for any other.
func NewNamedMachine(name string, metrics []device.Metric, clock func() time.Time) *Machine {
	switch name {
	case "h100":
		return NewMachine(metrics, 8, clock)
	case "a100":
		m := NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{A100}, 4)...)
		gpus := m.GPUs()
		m.Partition(gpus[0], slices.Repeat([]string{"1g.10gb"}, computeSlicesPerGPU)...)
		m.Partition(gpus[1], "1c.3g.40gb", "2c.3g.40gb", "3g.40gb")
		m.Partition(gpus[2])
		return m
	case "gb200":
		return NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{GB200}, 4)...)
	case "t4":
		return NewMachineWithModels(metrics, clock, slices.Repeat([]*Model{T4}, 4)...)
	case "mixed":
		return NewMachineWithModels(metrics, clock, Models()...)
	}
	return nil
}
