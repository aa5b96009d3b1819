package sim

// work is what a GPU does, each as a fraction of full load.
type work struct {
	kernels         float64 // time with a running kernel: the utilization
	multiprocessors float64 // that have a resident warp
	math            float64 // pipes and memory bandwidth
	power           float64
	traffic         float64 // PCIe and NVLink
}

// works are the kinds of work by name.
var works = map[string]work{
	"training": {kernels: 1, multiprocessors: 1, math: 1, power: 0.9, traffic: 1},
	// The kernel of a collective operation polls for a GPU that does not come, as
	// in a hang: 100 W of 700 W in NVIDIA-NeMo/Speech#9291.
	"waiting":      {kernels: 1, multiprocessors: 0.2, math: 0, power: 0.05, traffic: 0},
	"data-loading": {kernels: 0.2, multiprocessors: 0.2, math: 0.1, power: 0.15, traffic: 0.1},
	"checkpoint":   {power: 0.05, traffic: 0.05},
	"evaluation":   {kernels: 1, multiprocessors: 0.6, math: 0.3, power: 0.45, traffic: 0.02},
	"inference":    {kernels: 1, multiprocessors: 0.7, math: 0.2, power: 0.2, traffic: 0},
}
