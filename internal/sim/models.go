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
	has                     feature

	memory, reserved, bar1         float64
	idleWatts, limitWatts          float64 // at rest, and as it is delivered
	leastWatts                     float64 // the lowest limit that can be set
	idleSM, topSM                  float64
	idleMemory, topMemory          float64
	idleVideo, topVideo            float64
	idleCelsius, idleMemoryCelsius float64
	shutdown, slowdown             float64
	warmest, warmestMemory         float64
	pcieGeneration                 float64
	nvlinks                        int
	banks                          float64 // of memory, each with rows to spare
	nvlinkBytes, pcieBytes         float64 // a second, of a link and of the slot, when busy
	mostSlices                     int     // 0: it cannot be partitioned
}

// feature is something that only some GPUs have, or have only in some state.
type feature uint32

const (
	unpartitioned feature = 1 << iota // and not in MIG mode now
	mig
	gpm
	jpeg
	hbm
	average    // of the power
	limits     // of the temperature, in °C
	margins    // to them instead
	pcieErrors // of every kind
	pcieBytes
	nvlink
	nvlinkToHopper // and its errors
	nvlinkAmpere
	nvlinkHopper
	nvlinkBlackwell
	fabric
	c2c
	sram     // tells it apart
	oldECC   // tells caches and registers apart
	remap    // rows
	inactive // tells those that are not
	retire   // pages
	repair
	unrepairable
)

const (
	ampere    = mig | jpeg | hbm | pcieBytes | nvlink | sram | remap
	hopper    = ampere | gpm | average | margins | pcieErrors | fabric | repair
	blackwell = hopper | nvlinkBlackwell | inactive | unrepairable
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
		has:    hopper | nvlinkToHopper | nvlinkAmpere | nvlinkHopper,
		memory: 80 * gib, reserved: 600 * mib, bar1: 128 * gib,
		idleWatts: 70, limitWatts: 700, leastWatts: 200,
		idleSM: 345e6, topSM: 1980e6, idleMemory: 2619e6, topMemory: 2619e6, idleVideo: 765e6, topVideo: 1545e6,
		idleCelsius: 32, idleMemoryCelsius: 38, warmest: 87, warmestMemory: 95, slowdown: 89, shutdown: 95,
		pcieGeneration: 5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 26.562e9, banks: 2560, mostSlices: slicesOfGPU,
	}
	// A100 is one of the eight on an HGX board. NVML has no profiling counters for it.
	A100 = &Model{
		name: "NVIDIA A100-SXM4-80GB", vbios: "92.00.45.00.03", capability: "8.0",
		has:    ampere | limits | nvlinkToHopper | nvlinkAmpere,
		memory: 80 * gib, reserved: 656 * mib, bar1: 128 * gib,
		idleWatts: 56, limitWatts: 400, leastWatts: 100,
		idleSM: 210e6, topSM: 1410e6, idleMemory: 1593e6, topMemory: 1593e6, idleVideo: 585e6, topVideo: 1290e6,
		idleCelsius: 29, idleMemoryCelsius: 36, warmest: 85, warmestMemory: 95, slowdown: 89, shutdown: 92,
		pcieGeneration: 4, pcieBytes: 12e9, nvlinks: 12, nvlinkBytes: 25.781e9, banks: 640, mostSlices: slicesOfGPU,
	}
	// GB200 is one of the four in a tray of an NVL72 rack: a B200 beside a CPU of NVIDIA's.
	GB200 = &Model{
		name: "NVIDIA GB200", vbios: "97.00.82.00.2F", capability: "10.0",
		has:    blackwell | c2c,
		memory: 185 * gib, reserved: 747 * mib, bar1: 256 * gib,
		idleWatts: 142, limitWatts: 1200, leastWatts: 200,
		idleSM: 120e6, topSM: 2062e6, idleMemory: 3996e6, topMemory: 3996e6, idleVideo: 660e6, topVideo: 1665e6,
		idleCelsius: 28, idleMemoryCelsius: 32, warmest: 88, warmestMemory: 95, slowdown: 90, shutdown: 96,
		pcieGeneration: 5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 53.125e9, banks: 4608, mostSlices: slicesOfGPU,
	}
	// T4 is a card that has none of what the others are linked and measured by.
	T4 = &Model{
		name: "Tesla T4", vbios: "90.04.96.00.9F", capability: "7.5",
		has:    limits | oldECC | retire,
		memory: 15 * gib, reserved: 448 * mib, bar1: 256 * mib,
		idleWatts: 9, limitWatts: 70, leastWatts: 60,
		idleSM: 300e6, topSM: 1590e6, idleMemory: 405e6, topMemory: 5001e6, idleVideo: 540e6, topVideo: 1470e6,
		idleCelsius: 34, warmest: 85, slowdown: 93, shutdown: 96,
		pcieGeneration: 3,
	}
)

// Models are all there are.
func Models() []*Model { return []*Model{H100, A100, GB200, T4} }

// Named makes a machine of the names that people give to such nodes: "h100", eight of
// them; "a100", four, of which two are partitioned and one is about to be; "gb200",
// a tray of four; "t4", four cards; "mixed", one of each. It is nil for any other.
func Named(name string, metrics []device.Metric, clock func() time.Time) *Machine {
	switch name {
	case "h100":
		return NewMachine(metrics, 8, clock)
	case "a100":
		m := NewMachineOf(metrics, clock, slices.Repeat([]*Model{A100}, 4)...)
		gpus := m.GPUs()
		m.Partition(gpus[0], slices.Repeat([]string{"1g.10gb"}, slicesOfGPU)...)
		m.Partition(gpus[1], "1c.3g.40gb", "2c.3g.40gb", "3g.40gb")
		m.Partition(gpus[2])
		return m
	case "gb200":
		return NewMachineOf(metrics, clock, slices.Repeat([]*Model{GB200}, 4)...)
	case "t4":
		return NewMachineOf(metrics, clock, slices.Repeat([]*Model{T4}, 4)...)
	case "mixed":
		return NewMachineOf(metrics, clock, Models()...)
	}
	return nil
}
