package metric

import (
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Each of these families can be summed up: errors of a GPU are counted in total and by
// where they were, and since the driver was loaded and over the GPU's life, which are
// four families and not two more labels.
const (
	volatileHelp          = "ECC errors since the driver was loaded or the GPU was reset."
	aggregateHelp         = "ECC errors in the GPU's life."
	volatileLocationHelp  = "ECC errors since the driver was loaded or the GPU was reset, by the memory that they were in."
	aggregateLocationHelp = "ECC errors in the GPU's life, by the memory that they were in."
	unitHelp              = "Uncorrected ECC errors of SRAM in the GPU's life, by the unit that they were in."
	remappedHelp          = "Rows of the GPU's memory that were replaced by spare ones."
	inactiveHelp          = "Rows that were replaced by spare ones, and which the GPU has taken back into use."
	banksHelp             = "Banks of memory by how many of their spare rows are left."
	retiredHelp           = "Pages of the GPU's memory that are not used any more."
	repairHelp            = "Whether a repair waits for the next reset."
	recoveryHelp          = "What the driver says the GPU needs before it can be used again."
	turingAndOlder        = "up to Turing"
	ampereAndNewer        = "Ampere and newer"
	withECC               = "GPUs with ECC"
)

// The recovery actions are nvmlDeviceGpuRecoveryAction_t. A value that NVML does not define
// asks for nothing that could be named, and is no value.
var (
	inRecoveryAction = Conversion{Multiplier: 1, Divisor: 1, max: float64(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT)}
	recoveryNames    = []string{"none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot"}
	recoveryValues   = []uint32{0, 1, 2, 3, 4, 5, 6, 7}
)

var faultRows = slices.Concat([]Row{
	faultCounterRow("nvidia_gpu_ecc_volatile_errors_total", volatileHelp, "severity", "corrected").fromField(nvml.FI_DEV_ECC_SBE_VOL_TOTAL, inCount).slowPace().onHardware(withECC),
	faultCounterRow("nvidia_gpu_ecc_volatile_errors_total", volatileHelp, "severity", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, inCount).slowPace().onHardware(withECC),
	faultCounterRow("nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", "corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_TOTAL, inCount).slowPace().onHardware(withECC),
	faultCounterRow("nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, inCount).slowPace().onHardware(withECC),

	volatileLocationRow("dram", "corrected").fromField(nvml.FI_DEV_ECC_SBE_VOL_DEV, inCount).onHardware(withECC),
	volatileLocationRow("dram", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_DEV, inCount).onHardware(withECC),
	volatileLocationRow("sram", "corrected").fromCall(sramVolatileCorrected, inCount).onHardware(ampereAndNewer),
	volatileLocationRow("sram", "uncorrected").fromCall(sramVolatileUncorrected, inCount).onHardware(ampereAndNewer),
	volatileLocationRow("l1", "corrected").fromField(nvml.FI_DEV_ECC_SBE_VOL_L1, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("l1", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_L1, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("l2", "corrected").fromField(nvml.FI_DEV_ECC_SBE_VOL_L2, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("l2", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_L2, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("register_file", "corrected").fromField(nvml.FI_DEV_ECC_SBE_VOL_REG, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("register_file", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_REG, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("texture", "corrected").fromField(nvml.FI_DEV_ECC_SBE_VOL_TEX, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("texture", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_TEX, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	volatileLocationRow("cbu", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_VOL_CBU, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),

	aggregateLocationRow("dram", "corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_DEV, inCount).onHardware(withECC),
	aggregateLocationRow("dram", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_DEV, inCount).onHardware(withECC),
	aggregateLocationRow("sram", "corrected").fromCall(sramAggregateCorrected, inCount).onHardware(ampereAndNewer),
	aggregateLocationRow("sram", "uncorrected").fromCall(sramAggregateUncorrected, inCount).onHardware(ampereAndNewer),
	aggregateLocationRow("l1", "corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_L1, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("l1", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_L1, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("l2", "corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_L2, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("l2", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_L2, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("register_file", "corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_REG, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("register_file", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_REG, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("texture", "corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_TEX, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("texture", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_TEX, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),
	aggregateLocationRow("cbu", "uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_CBU, inCount).unlessPresent(sramVolatileCorrected).onHardware(turingAndOlder),

	faultCounterRow("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "l2").fromCall(sramInL2, inCount).onHardware(ampereAndNewer),
	faultCounterRow("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "sm").fromCall(sramInSM, inCount).onHardware(ampereAndNewer),
	faultCounterRow("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "pcie").fromCall(sramInPCIe, inCount).onHardware(ampereAndNewer),
	faultCounterRow("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "microcontroller").fromCall(sramInMCU, inCount).onHardware(ampereAndNewer),
	faultCounterRow("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp, "unit", "other").fromCall(sramInOther, inCount).onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_ecc_sram_threshold_exceeded", "Whether SRAM has had so many uncorrected errors that the GPU is to be replaced.").
		fromCall(SRAMThresholdExceeded, inBool).onHardware(ampereAndNewer),

	stateRow("nvidia_gpu_remapped_rows", remappedHelp, "cause", "correctable").fromField(nvml.FI_DEV_REMAPPED_COR, inCount).slowPace().onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_remapped_rows", remappedHelp, "cause", "uncorrectable").fromField(nvml.FI_DEV_REMAPPED_UNC, inCount).slowPace().onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_remapped_rows_inactive", inactiveHelp, "cause", "correctable").fromField(nvml.FI_DEV_REMAPPED_ROWS_COR_INACTIVE, inCount).slowPace().onHardware(blackwell),
	stateRow("nvidia_gpu_remapped_rows_inactive", inactiveHelp, "cause", "uncorrectable").fromField(nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE, inCount).slowPace().onHardware(blackwell),
	stateRow("nvidia_gpu_row_remap_pending", "Whether rows wait for the next reset to be replaced by spare ones.").fromField(nvml.FI_DEV_REMAPPED_PENDING, inBool).slowPace().onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_row_remap_failure", "Whether a row could not be replaced, so that the GPU is to be replaced.").fromField(nvml.FI_DEV_REMAPPED_FAILURE, inBool).slowPace().onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_row_remap_banks", banksHelp, "availability", "max").fromCall(banksMax, inCount).onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_row_remap_banks", banksHelp, "availability", "high").fromCall(banksHigh, inCount).onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_row_remap_banks", banksHelp, "availability", "partial").fromCall(banksPartial, inCount).onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_row_remap_banks", banksHelp, "availability", "low").fromCall(banksLow, inCount).onHardware(ampereAndNewer),
	stateRow("nvidia_gpu_row_remap_banks", banksHelp, "availability", "none").fromCall(banksNone, inCount).onHardware(ampereAndNewer),

	stateRow("nvidia_gpu_retired_pages", retiredHelp, "cause", "single_bit").fromField(nvml.FI_DEV_RETIRED_SBE, inCount).slowPace().onHardware(turingAndOlder),
	stateRow("nvidia_gpu_retired_pages", retiredHelp, "cause", "double_bit").fromField(nvml.FI_DEV_RETIRED_DBE, inCount).slowPace().onHardware(turingAndOlder),
	stateRow("nvidia_gpu_retired_pages_pending", "Whether pages wait for the next boot to be retired.").fromField(nvml.FI_DEV_RETIRED_PENDING, inBool).slowPace().onHardware(turingAndOlder),

	stateRow("nvidia_gpu_repair_pending", repairHelp, "unit", "channel").fromCall(channelRepairPending, inBool).onHardware(hopper),
	stateRow("nvidia_gpu_repair_pending", repairHelp, "unit", "tpc").fromCall(tpcRepairPending, inBool).onHardware(hopper),
	stateRow("nvidia_gpu_unrepairable_memory", "Whether the GPU's memory has errors that cannot be repaired.").fromCall(UnrepairableMemory, inBool).onHardware("Blackwell and newer, with driver 590"),
}, enumRows("nvidia_gpu_recovery_action", recoveryHelp, "action", recoveryNames, recoveryValues,
	func(r Row) Row {
		return r.fromField(RecoveryField, inRecoveryAction).slowPace().onHardware("any, with driver 565 and newer")
	}))

func volatileLocationRow(location, severity string) Row {
	r := faultCounterRow("nvidia_gpu_ecc_volatile_location_errors_total", volatileLocationHelp, "location", location, "severity", severity)
	return r.slowPace()
}

func aggregateLocationRow(location, severity string) Row {
	r := faultCounterRow("nvidia_gpu_ecc_aggregate_location_errors_total", aggregateLocationHelp, "location", location, "severity", severity)
	return r.slowPace()
}

// RecoveryField is the driver's word on what the GPU needs.
const RecoveryField = nvml.FI_DEV_GET_GPU_RECOVERY_ACTION

// IsRecoveryAction reports whether NVML defines a value of the field.
func IsRecoveryAction(value float64) bool {
	_, ok := inRecoveryAction.Convert(value)
	return ok && value == math.Trunc(value)
}
