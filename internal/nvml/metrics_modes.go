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

var modeRows = slices.Concat([]metricDef{
	stateRow("nvidia_gpu_persistence_mode_enabled", "Whether the driver keeps the GPU initialised while nobody uses it.").fromCall(persistenceMode, inBool),
}, enumRowsWithOther("nvidia_gpu_compute_mode", computeModeHelp, "mode", []string{"default", "exclusive_thread", "prohibited", "exclusive_process"}, computeModes,
	func(r metricDef) metricDef { return r.fromCall(computeMode, inCount) }), []metricDef{
	stateRow("nvidia_gpu_ecc_enabled", eccHelp, "when", "now").fromField(nvml.FI_DEV_ECC_CURRENT, inBool).slowPace().onHardware(withECC),
	stateRow("nvidia_gpu_ecc_enabled", eccHelp, "when", "after_reset").fromField(nvml.FI_DEV_ECC_PENDING, inBool).slowPace().onHardware(withECC),
	stateRow("nvidia_gpu_mig_enabled", migHelp, "when", "now").fromCall(migEnabled, inBool).onHardware("GPUs with MIG"),
	stateRow("nvidia_gpu_mig_enabled", migHelp, "when", "after_reset").fromCall(migPending, inBool).onHardware("GPUs with MIG"),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "c2c").fromCall(hasC2C, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "ecc").fromCall(hasECC, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "fabric").fromCall(hasFabric, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "gpm").fromCall(hasGPM, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "mig").fromCall(hasMIG, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "nvlink").fromCall(hasNVLink, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "page_retirement").fromCall(hasRetirement, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "row_remapping").fromCall(hasRemapping, inBool),
})
