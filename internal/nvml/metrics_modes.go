package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	computeModeHelp = "Who may use the GPU at the same time."
	eccHelp         = "Whether ECC is on now, and whether it will be after the next reset."
	migHelp         = "Whether MIG mode is on now, and whether it will be after the next reset."
	featureHelp     = "Whether the GPU, with this driver, has a feature on which whole families depend; absent where that could not be told."
)

var computeModes = []uint32{0, 1, 2, 3}

var modeRows = slices.Concat([]row{
	fact("nvidia_gpu_persistence_mode_enabled", "Whether the driver keeps the GPU initialised while nobody uses it.").asked(persistence, inTruth),
}, stateSet("nvidia_gpu_compute_mode", computeModeHelp, "mode", []string{"default", "exclusive_thread", "prohibited", "exclusive_process"}, computeModes,
	func(r row) row { return r.asked(computeMode, inNumber) }), []row{
	fact("nvidia_gpu_ecc_enabled", eccHelp, "when", "now").in(nvml.FI_DEV_ECC_CURRENT, inTruth).slowly().on(withECC),
	fact("nvidia_gpu_ecc_enabled", eccHelp, "when", "after_reset").in(nvml.FI_DEV_ECC_PENDING, inTruth).slowly().on(withECC),
	fact("nvidia_gpu_mig_enabled", migHelp, "when", "now").asked(migNow, inTruth).on("GPUs with MIG"),
	fact("nvidia_gpu_mig_enabled", migHelp, "when", "after_reset").asked(migPending, inTruth).on("GPUs with MIG"),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "c2c").asked(hasC2C, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "ecc").asked(hasECC, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "fabric").asked(hasFabric, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "gpm").asked(hasGPM, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "mig").asked(hasMIG, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "nvlink").asked(hasNVLink, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "page_retirement").asked(hasRetirement, inTruth),
	fact("nvidia_gpu_feature_supported", featureHelp, "feature", "row_remapping").asked(hasRemapping, inTruth),
})
