package device

// Path is the PCIe distance of two GPUs, nearest first, in the steps of NVML's
// nvmlGpuTopologyLevel_t.
type Path uint8

// The names in brackets are those of nvidia-smi topo -m.
const (
	PathUnknown          Path = iota
	PathSameBoard             // two GPUs of one board [PSB]
	PathSingleSwitch          // one PCIe switch [PIX]
	PathMultipleSwitches      // several PCIe switches, no host bridge [PXB]
	PathHostBridge            // one PCIe host bridge [PHB]
	PathNUMANode              // several host bridges of one NUMA node [NODE]
	PathSystem                // between NUMA nodes [SYS]
)

// Link is the connection from A to B, as A reports it.
type Link struct {
	A, B GPU
	// NVLinks is the number of active NVLinks from A to B. Behind NVSwitches a
	// GPU reaches every peer over all of its NVLinks, so the number is the same
	// for all peers.
	NVLinks int
	Path    Path
}
