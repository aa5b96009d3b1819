package device

import "context"

// Path is how far apart two GPUs are over PCIe and the processors' own links,
// nearest first, in the steps of NVML's nvmlGpuTopologyLevel_t.
type Path uint8

// The names in brackets are those of nvidia-smi topo -m.
const (
	PathUnknown          Path = iota
	PathSameBoard             // two GPUs of one board [PSB]
	PathSingleSwitch          // one PCIe switch [PIX]
	PathMultipleSwitches      // several PCIe switches, no host bridge [PXB]
	PathHostBridge            // one PCIe host bridge [PHB]
	PathNUMANode              // several host bridges of one NUMA node [NODE]
	PathSystem                // from one NUMA node to another [SYS]
)

var pathNames = [...]string{"unknown", "same_board", "single_switch", "multiple_switches", "host_bridge", "numa_node", "system"}

// String is a word; what is no Path is unknown.
func (p Path) String() string {
	if int(p) >= len(pathNames) {
		p = PathUnknown
	}
	return pathNames[p]
}

// Link is how A is connected to B, as A sees it.
type Link struct {
	A, B GPU
	// NVLinks is the number of NVLinks that are up from A to B. Through NVSwitches
	// each GPU reaches every other over all its links, and that number stands here.
	NVLinks int
	Path    Path
}

// LinkReader is what a Backend implements when it can tell how its GPUs are
// connected.
type LinkReader interface {
	// Links lists pairs of GPUs in any order. A pair may come once or in both
	// directions, and these may differ: a lane can be down on one side only. Pairs
	// that are missing are unknown. May take for ever, as any call of a Backend.
	Links(ctx context.Context) ([]Link, error)
}
