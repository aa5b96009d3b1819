package sim

// The numbers of slices of a GPU.
const (
	computeSlicesPerGPU = 7
	memorySlicesPerGPU  = 8
)

// Model describes a type of GPU. Sizes are in bytes, powers in watts, clocks in
// hertz, temperatures in °C.
type Model struct {
	name, vbios, capability string
	clusterUUID, cliqueID   string // of the NVLink domain of several nodes
	generation              generations

	memory, reserved, bar1           float64
	idleWatts, maxLimitWatts         float64 // idle power, and default limit
	minLimitWatts                    float64 // lowest limit
	idleSM, maxSM                    float64
	maxMemory                        float64
	idleVideo, maxVideo              float64
	idleCelsius, idleMemoryCelsius   float64
	shutdownCelsius, slowdownCelsius float64
	maxCelsius, maxMemoryCelsius     float64
	pcieGeneration                   float64
	nvlinks                          int
	remapBanks                       float64 // memory banks with spare rows
	nvlinkBytes, pcieBytes           float64 // per second at full load, of a link and of the slot
}

// generations are a set of GPU generations, and a state.
type generations uint8

const (
	turing generations = 1 << iota
	ampere
	hopper
	blackwell
	wholeGPU // only while MIG mode is off

	toAmpere   = turing | ampere
	fromHopper = hopper | blackwell
	fromAmpere = ampere | fromHopper
	all        = turing | fromAmpere
)

const (
	gib = 1 << 30
	mib = 1 << 20
)

// keptBAR1 is the part of the window that a MIG-enabled GPU keeps besides its
// memory.
const keptBAR1 = 513 * mib

// The models have the values of NVML on real GPUs. H100 and H200 are compared
// with captures, GB200 is from documents and public reports.
var (
	// H100 is a GPU of an HGX board with eight.
	H100 = &Model{
		name: "NVIDIA H100 80GB HBM3", vbios: "96.00.89.00.01", capability: "9.0",
		generation: hopper,
		memory:     81559 * mib, reserved: 479 * mib, bar1: 128 * gib,
		idleWatts: 70, maxLimitWatts: 700, minLimitWatts: 200,
		idleSM: 345e6, maxSM: 1980e6, maxMemory: 2619e6, idleVideo: 765e6, maxVideo: 1545e6,
		idleCelsius: 32, idleMemoryCelsius: 38, maxCelsius: 87, maxMemoryCelsius: 95, slowdownCelsius: 89,
		shutdownCelsius: 95,
		pcieGeneration:  5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 26.562e9, remapBanks: 2560,
	}
	// H200 is an H100 with more memory.
	H200 = &Model{
		name: "NVIDIA H200", vbios: "96.00.A5.00.03", capability: "9.0",
		generation: hopper,
		memory:     143771 * mib, reserved: 614 * mib, bar1: 256 * gib,
		idleWatts: 77, maxLimitWatts: 700, minLimitWatts: 200,
		idleSM: 345e6, maxSM: 1980e6, maxMemory: 3201e6, idleVideo: 765e6, maxVideo: 1545e6,
		idleCelsius: 28, idleMemoryCelsius: 32, maxCelsius: 87, maxMemoryCelsius: 95, slowdownCelsius: 89,
		shutdownCelsius: 95,
		pcieGeneration:  5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 26.562e9, remapBanks: 3072,
	}
	// A100 is a GPU of an HGX board with eight. NVML has no profiling counters
	// for this model.
	A100 = &Model{
		name: "NVIDIA A100-SXM4-80GB", vbios: "92.00.45.00.03", capability: "8.0",
		generation: ampere,
		memory:     80 * gib, reserved: 656 * mib, bar1: 128 * gib,
		idleWatts: 56, maxLimitWatts: 400, minLimitWatts: 100,
		idleSM: 210e6, maxSM: 1410e6, maxMemory: 1593e6, idleVideo: 585e6, maxVideo: 1290e6,
		idleCelsius: 29, idleMemoryCelsius: 36, maxCelsius: 85, maxMemoryCelsius: 95, slowdownCelsius: 89,
		shutdownCelsius: 92,
		pcieGeneration:  4, pcieBytes: 12e9, nvlinks: 12, nvlinkBytes: 25.781e9, remapBanks: 640,
	}
	// GB200 is a GPU of an NVL72 tray with four, beside an NVIDIA CPU.
	GB200 = &Model{
		name: "NVIDIA GB200", vbios: "97.00.82.00.2F", capability: "10.0",
		clusterUUID: "5eed0000-4000-8000-0000-00000000c10d", cliqueID: "1",
		generation: blackwell,
		memory:     185 * gib, reserved: 747 * mib, bar1: 256 * gib,
		idleWatts: 142, maxLimitWatts: 1200, minLimitWatts: 200,
		idleSM: 120e6, maxSM: 2062e6, maxMemory: 3996e6, idleVideo: 660e6, maxVideo: 1665e6,
		idleCelsius: 28, idleMemoryCelsius: 32, maxCelsius: 88, maxMemoryCelsius: 95, slowdownCelsius: 90,
		shutdownCelsius: 96,
		pcieGeneration:  5, pcieBytes: 24e9, nvlinks: 18, nvlinkBytes: 53.125e9, remapBanks: 4608,
	}
	// T4 has no NVLinks, MIG or profiling counters. The real board has no fans;
	// the simulated one represents boards with fans.
	T4 = &Model{
		name: "Tesla T4", vbios: "90.04.96.00.9F", capability: "7.5",
		generation: turing,
		memory:     15 * gib, reserved: 448 * mib, bar1: 256 * mib,
		idleWatts: 9, maxLimitWatts: 70, minLimitWatts: 60,
		idleSM: 300e6, maxSM: 1590e6, maxMemory: 5001e6, idleVideo: 540e6, maxVideo: 1470e6,
		idleCelsius: 34, maxCelsius: 85, slowdownCelsius: 93, shutdownCelsius: 96,
		pcieGeneration: 3,
	}
)

// Models returns a model of each generation.
func Models() []*Model { return []*Model{H100, A100, GB200, T4} }
