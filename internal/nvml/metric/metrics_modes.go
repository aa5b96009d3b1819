package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml/lib"
)

const (
	eccHelp     = "1 if ECC is enabled, now or after the next reset."
	migHelp     = "1 if MIG mode is enabled, now or after the next reset."
	featureHelp = "1 if GPU and driver support this feature; absent if unknown."
)

// computeModes are the states of nvmlComputeMode_t, from 0 on.
var computeModes = []string{"default", "exclusive_thread", "prohibited", "exclusive_process"}

var modeRows = slices.Concat([]Row{
	stateRow("nvidia_gpu_persistence_mode_enabled", "1 if persistence mode keeps an unused GPU initialized.").
		fromFunction("nvmlDeviceGetPersistenceMode", device.PaceSlow, inBool, getter(nvml.Device.GetPersistenceMode)),
}, enumRows(stateRow("nvidia_gpu_compute_mode", "1 for the current compute mode.").
	fromFunction("nvmlDeviceGetComputeMode", device.PaceSlow, inCount,
		getter(nvml.Device.GetComputeMode)), "mode", computeModes, 0, true), []Row{
	stateRow("nvidia_gpu_ecc_enabled", eccHelp, "when", "now").fromField(nvml.FI_DEV_ECC_CURRENT, inBool).slowPace().
		onHardware(withECC),
	stateRow("nvidia_gpu_ecc_enabled", eccHelp, "when", "after_reset").fromField(nvml.FI_DEV_ECC_PENDING, inBool).
		slowPace().onHardware(withECC),
	stateRow("nvidia_gpu_mig_enabled", migHelp, "when", "now").
		fromState(MIGEnabled, device.PaceSlow, "nvmlDeviceGetMigMode", "nvmlDeviceGetMigMode").
		onHardware("with MIG").inDefault(),
	stateRow("nvidia_gpu_mig_enabled", migHelp, "when", "after_reset").
		fromState(MIGPending, device.PaceSlow, "nvmlDeviceGetMigMode", "nvmlDeviceGetMigMode").onHardware("with MIG"),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "c2c").fromFeature(nvml.FI_DEV_C2C_LINK_COUNT, 1),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "ecc").fromFeature(nvml.FI_DEV_ECC_CURRENT, 0),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "fabric").fromCall(HasFabric, inBool),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "gpm").
		fromState(HasGPM, device.PaceStatic, "nvmlGpmQueryDeviceSupport", lib.GPMFunctions...),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "mig").
		fromState(HasMIG, device.PaceSlow, "nvmlDeviceGetMigMode", "nvmlDeviceGetMigMode"),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "nvlink").
		fromFeature(nvml.FI_DEV_NVLINK_LINK_COUNT, 1),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "page_retirement").
		fromFeature(nvml.FI_DEV_RETIRED_DBE, 0),
	stateRow("nvidia_gpu_feature_supported", featureHelp, "feature", "row_remapping").
		fromFeature(nvml.FI_DEV_REMAPPED_UNC, 0),
})
