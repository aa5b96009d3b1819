package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Each of these families can be summed up: errors of a GPU are counted in total and by
// where they were, and since the driver was loaded and over the GPU's life, which are
// four families and not two more labels.
const (
	volatileHelp  = "ECC errors since the driver was loaded or the GPU was reset."
	aggregateHelp = "ECC errors in the GPU's life."
	volatileAt    = "ECC errors since the driver was loaded or the GPU was reset, by the memory that they were in."
	aggregateAt   = "ECC errors in the GPU's life, by the memory that they were in."
	unitHelp      = "Uncorrected ECC errors of SRAM in the GPU's life, by the unit that they were in."
	remappedHelp  = "Rows of the GPU's memory that were replaced by spare ones."
	inactiveHelp  = "Rows that were replaced by spare ones, and which the GPU has taken back into use."
	banksHelp     = "Banks of memory by how many of their spare rows are left."
	retiredHelp   = "Pages of the GPU's memory that are not used any more."
	repairHelp    = "Whether a repair waits for the next reset."
	recoveryHelp  = "What the driver says the GPU needs before it can be used again."
	upToTuring    = "up to Turing"
	fromAmpere    = "Ampere and newer"
	withECC       = "GPUs with ECC"
)

// The recovery actions are nvmlDeviceGpuRecoveryAction_t. A value that NVML does not define
// asks for nothing that could be named, and is no value.
var (
	inRecoveryAction = unit{times: 1, per: 1, most: float64(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT)}
	recoveryNames    = []string{"none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot"}
	recoveryValues   = []uint32{0, 1, 2, 3, 4, 5, 6, 7}
)

var faultRows = slices.Concat([]row{
	fault("nvidia_gpu_ecc_volatile_errors_total", volatileHelp, "severity", "corrected").in(nvml.FI_DEV_ECC_SBE_VOL_TOTAL, inNumber).slowly().on(withECC),
	fault("nvidia_gpu_ecc_volatile_errors_total", volatileHelp, "severity", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, inNumber).slowly().on(withECC),
	fault("nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", "corrected").in(nvml.FI_DEV_ECC_SBE_AGG_TOTAL, inNumber).slowly().on(withECC),
	fault("nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, inNumber).slowly().on(withECC),

	volatileIn("dram", "corrected").in(nvml.FI_DEV_ECC_SBE_VOL_DEV, inNumber).on(withECC),
	volatileIn("dram", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_DEV, inNumber).on(withECC),
	volatileIn("sram", "corrected").asked(sramCorrected, inNumber).on(fromAmpere),
	volatileIn("sram", "uncorrected").asked(sramUncorrected, inNumber).on(fromAmpere),
	volatileIn("l1", "corrected").in(nvml.FI_DEV_ECC_SBE_VOL_L1, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("l1", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_L1, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("l2", "corrected").in(nvml.FI_DEV_ECC_SBE_VOL_L2, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("l2", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_L2, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("register_file", "corrected").in(nvml.FI_DEV_ECC_SBE_VOL_REG, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("register_file", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_REG, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("texture", "corrected").in(nvml.FI_DEV_ECC_SBE_VOL_TEX, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("texture", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_TEX, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	volatileIn("cbu", "uncorrected").in(nvml.FI_DEV_ECC_DBE_VOL_CBU, inNumber).unlessFilled(sramCorrected).on(upToTuring),

	aggregateIn("dram", "corrected").in(nvml.FI_DEV_ECC_SBE_AGG_DEV, inNumber).on(withECC),
	aggregateIn("dram", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_DEV, inNumber).on(withECC),
	aggregateIn("sram", "corrected").asked(sramEverCorrected, inNumber).on(fromAmpere),
	aggregateIn("sram", "uncorrected").asked(sramEverUncorrected, inNumber).on(fromAmpere),
	aggregateIn("l1", "corrected").in(nvml.FI_DEV_ECC_SBE_AGG_L1, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("l1", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_L1, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("l2", "corrected").in(nvml.FI_DEV_ECC_SBE_AGG_L2, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("l2", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_L2, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("register_file", "corrected").in(nvml.FI_DEV_ECC_SBE_AGG_REG, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("register_file", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_REG, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("texture", "corrected").in(nvml.FI_DEV_ECC_SBE_AGG_TEX, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("texture", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_TEX, inNumber).unlessFilled(sramCorrected).on(upToTuring),
	aggregateIn("cbu", "uncorrected").in(nvml.FI_DEV_ECC_DBE_AGG_CBU, inNumber).unlessFilled(sramCorrected).on(upToTuring),

	fault("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "l2").asked(sramInL2, inNumber).on(fromAmpere),
	fault("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "sm").asked(sramInSM, inNumber).on(fromAmpere),
	fault("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "pcie").asked(sramInPCIe, inNumber).on(fromAmpere),
	fault("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "microcontroller").asked(sramInMCU, inNumber).on(fromAmpere),
	fault("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "other").asked(sramElsewhere, inNumber).on(fromAmpere),
	fact("nvidia_gpu_ecc_sram_threshold_exceeded", "Whether SRAM has had so many uncorrected errors that the GPU is to be replaced.").
		asked(sramThreshold, inTruth).on(fromAmpere),

	fact("nvidia_gpu_remapped_rows", remappedHelp, "cause", "correctable").in(nvml.FI_DEV_REMAPPED_COR, inNumber).slowly().on(fromAmpere),
	fact("nvidia_gpu_remapped_rows", remappedHelp, "cause", "uncorrectable").in(nvml.FI_DEV_REMAPPED_UNC, inNumber).slowly().on(fromAmpere),
	fact("nvidia_gpu_remapped_rows_inactive", inactiveHelp, "cause", "correctable").in(nvml.FI_DEV_REMAPPED_ROWS_COR_INACTIVE, inNumber).slowly().on(blackwell),
	fact("nvidia_gpu_remapped_rows_inactive", inactiveHelp, "cause", "uncorrectable").in(nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, inNumber).slowly().on(blackwell),
	fact("nvidia_gpu_row_remap_pending", "Whether rows wait for the next reset to be replaced by spare ones.").in(nvml.FI_DEV_REMAPPED_PENDING, inTruth).slowly().on(fromAmpere),
	fact("nvidia_gpu_row_remap_failure", "Whether a row could not be replaced, so that the GPU is to be replaced.").in(nvml.FI_DEV_REMAPPED_FAILURE, inTruth).slowly().on(fromAmpere),
	fact("nvidia_gpu_row_remap_banks", banksHelp, "availability", "max").asked(banksMax, inNumber).on(fromAmpere),
	fact("nvidia_gpu_row_remap_banks", banksHelp, "availability", "high").asked(banksHigh, inNumber).on(fromAmpere),
	fact("nvidia_gpu_row_remap_banks", banksHelp, "availability", "partial").asked(banksPartial, inNumber).on(fromAmpere),
	fact("nvidia_gpu_row_remap_banks", banksHelp, "availability", "low").asked(banksLow, inNumber).on(fromAmpere),
	fact("nvidia_gpu_row_remap_banks", banksHelp, "availability", "none").asked(banksNone, inNumber).on(fromAmpere),

	fact("nvidia_gpu_retired_pages", retiredHelp, "cause", "single_bit").in(nvml.FI_DEV_RETIRED_SBE, inNumber).slowly().on(upToTuring),
	fact("nvidia_gpu_retired_pages", retiredHelp, "cause", "double_bit").in(nvml.FI_DEV_RETIRED_DBE, inNumber).slowly().on(upToTuring),
	fact("nvidia_gpu_retired_pages_pending", "Whether pages wait for the next boot to be retired.").in(nvml.FI_DEV_RETIRED_PENDING, inTruth).slowly().on(upToTuring),

	fact("nvidia_gpu_repair_pending", repairHelp, "unit", "channel").asked(repairChannel, inTruth).on(hopper),
	fact("nvidia_gpu_repair_pending", repairHelp, "unit", "tpc").asked(repairTPC, inTruth).on(hopper),
	fact("nvidia_gpu_unrepairable_memory", "Whether the GPU's memory has errors that cannot be repaired.").asked(unrepairable, inTruth).on("Blackwell and newer, with driver 590"),
}, knownStates("nvidia_gpu_recovery_action", recoveryHelp, "action", recoveryNames, recoveryValues,
	func(r row) row {
		return r.in(recoveryField, inRecoveryAction).slowly().on("any, with driver 565 and newer")
	}))

func volatileIn(location, severity string) row {
	r := fault("nvidia_gpu_ecc_volatile_location_errors_total", volatileAt, "location", location, "severity", severity)
	return r.slowly()
}

func aggregateIn(location, severity string) row {
	r := fault("nvidia_gpu_ecc_aggregate_location_errors_total", aggregateAt, "location", location, "severity", severity)
	return r.slowly()
}
