package metric

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

var modeRows = slices.Concat([]Row{
	stateRow("nvidia_gpu_persistence_mode_enabled", "Whether the driver keeps the GPU initialised while nobody uses it.").fromCall(persistenceMode, inBool),
}, enumRowsWithOther("nvidia_gpu_compute_mode", computeModeHelp, "mode", []string{"default", "exclusive_thread", "prohibited", "exclusive_process"}, computeModes,
	func(r Row) Row { return r.fromCall(computeMode, inCount) }), []Row{
	stateRow("nvidia_gpu_ecc_enabled", eccHelp, "when", "now").fromField(nvml.FI_DEV_ECC_CURRENT, inBool).slowPace().onHardware(withECC),
	stateRow("nvidia_gpu_ecc_enabled", eccHelp, "when", "after_reset").fromField(nvml.FI_DEV_ECC_PENDING, inBool).slowPace().onHardware(withECC),
	stateRow("nvidia_gpu_mig_enabled", migHelp, "when", "now").fromCall(MigEnabled, inBool).onHardware("GPUs with MIG"),
	stateRow("nvidia_gpu_mig_enabled", migHelp, "when", "after_reset").fromCall(MigPending, inBool).onHardware("GPUs with MIG"),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "c2c").fromCall(HasC2C, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "ecc").fromCall(HasECC, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "fabric").fromCall(HasFabric, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "gpm").fromCall(HasGPM, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "mig").fromCall(HasMIG, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "nvlink").fromCall(HasNVLink, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "page_retirement").fromCall(HasRetirement, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "row_remapping").fromCall(HasRemapping, inBool),
})
