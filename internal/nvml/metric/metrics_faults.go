package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Errors are counted in total and by location, since the driver was loaded and
// in the GPU's life. These are four families, not two more labels, to allow
// sums over each family.
const (
	volatileHelp          = "ECC errors since the last driver load or GPU reset."
	aggregateHelp         = "ECC errors over the lifetime of the GPU."
	volatileLocationHelp  = "ECC errors since the last driver load or GPU reset, by location."
	aggregateLocationHelp = "ECC errors over the lifetime of the GPU, by location."
	unitHelp              = "Uncorrected SRAM ECC errors over the lifetime of the GPU, by unit."
	remappedHelp          = "Number of memory rows replaced by spare rows."
	inactiveHelp          = "Number of replaced memory rows that are in use again."
	retiredHelp           = "Number of retired pages of GPU memory."
	repairHelp            = "1 if a repair of this unit is pending until the next reset."
	recoveryHelp          = "1 for the recovery action that the driver requires before further use of the GPU."
	turingAndOlder        = "up to Turing"
	ampereAndNewer        = "Ampere and newer"
	withECC               = "with ECC"
)

// RecoveryField is the recovery action required by the driver.
const RecoveryField = nvml.FI_DEV_GET_GPU_RECOVERY_ACTION

// recoveryActions are the states of nvmlDeviceGpuRecoveryAction_t, from 0 on.
var recoveryActions = []string{
	"none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset",
	"recover_imex_domain", "bus_reset", "system_reboot",
}

var banksRow = stateRow("nvidia_gpu_row_remap_banks", "Number of memory banks by remaining spare rows.").
	onHardware(ampereAndNewer)

var faultRows = slices.Concat(
	familyRows(faultCounterRow("nvidia_gpu_ecc_volatile_errors_total", volatileHelp).
		slowPace().onHardware(withECC).inDefault(), "severity", Row.fromField, inCount,
		labeledField{"corrected", nvml.FI_DEV_ECC_SBE_VOL_TOTAL},
		labeledField{"uncorrected", nvml.FI_DEV_ECC_DBE_VOL_TOTAL}),
	[]Row{
		aggregateErrorRow("corrected").fromField(nvml.FI_DEV_ECC_SBE_AGG_TOTAL, inCount),
		aggregateErrorRow("uncorrected").fromField(nvml.FI_DEV_ECC_DBE_AGG_TOTAL, inCount).inMinimal(),
	},
	locationRows(faultCounterRow("nvidia_gpu_ecc_volatile_location_errors_total", volatileLocationHelp),
		sramVolatileCorrected, sramVolatileUncorrected, []locationFields{
			{"dram", nvml.FI_DEV_ECC_SBE_VOL_DEV, nvml.FI_DEV_ECC_DBE_VOL_DEV},
			{"l1", nvml.FI_DEV_ECC_SBE_VOL_L1, nvml.FI_DEV_ECC_DBE_VOL_L1},
			{"l2", nvml.FI_DEV_ECC_SBE_VOL_L2, nvml.FI_DEV_ECC_DBE_VOL_L2},
			{"register_file", nvml.FI_DEV_ECC_SBE_VOL_REG, nvml.FI_DEV_ECC_DBE_VOL_REG},
			{"texture", nvml.FI_DEV_ECC_SBE_VOL_TEX, nvml.FI_DEV_ECC_DBE_VOL_TEX},
			{"cbu", 0, nvml.FI_DEV_ECC_DBE_VOL_CBU},
		}),
	locationRows(faultCounterRow("nvidia_gpu_ecc_aggregate_location_errors_total", aggregateLocationHelp),
		sramAggregateCorrected, sramAggregateUncorrected, []locationFields{
			{"dram", nvml.FI_DEV_ECC_SBE_AGG_DEV, nvml.FI_DEV_ECC_DBE_AGG_DEV},
			{"l1", nvml.FI_DEV_ECC_SBE_AGG_L1, nvml.FI_DEV_ECC_DBE_AGG_L1},
			{"l2", nvml.FI_DEV_ECC_SBE_AGG_L2, nvml.FI_DEV_ECC_DBE_AGG_L2},
			{"register_file", nvml.FI_DEV_ECC_SBE_AGG_REG, nvml.FI_DEV_ECC_DBE_AGG_REG},
			{"texture", nvml.FI_DEV_ECC_SBE_AGG_TEX, nvml.FI_DEV_ECC_DBE_AGG_TEX},
			{"cbu", 0, nvml.FI_DEV_ECC_DBE_AGG_CBU},
		}),
	familyRows(faultCounterRow("nvidia_gpu_ecc_sram_aggregate_unit_errors_total", unitHelp).
		onHardware(ampereAndNewer), "unit", Row.fromCall, inCount,
		labeledValue{"l2", sramInL2}, labeledValue{"sm", sramInSM}, labeledValue{"pcie", sramInPCIe},
		labeledValue{"microcontroller", sramInMCU}, labeledValue{"other", sramInOther}),
	[]Row{
		stateRow("nvidia_gpu_ecc_sram_threshold_exceeded",
			"1 if uncorrected SRAM errors exceed the threshold for GPU replacement.").
			fromCall(SRAMThresholdExceeded, inBool).onHardware(ampereAndNewer).inMinimal(),
	},
	familyRows(stateRow("nvidia_gpu_remapped_rows", remappedHelp).
		slowPace().onHardware(ampereAndNewer).inDefault(), "cause", Row.fromField, inCount,
		labeledField{"correctable", nvml.FI_DEV_REMAPPED_COR},
		labeledField{"uncorrectable", nvml.FI_DEV_REMAPPED_UNC}),
	familyRows(stateRow("nvidia_gpu_remapped_rows_inactive", inactiveHelp).slowPace().
		onHardware("Ada and newer, driver 595"), "cause", Row.fromField, inCount,
		labeledField{"correctable", nvml.FI_DEV_REMAPPED_ROWS_COR_INACTIVE},
		labeledField{"uncorrectable", nvml.FI_DEV_REMAPPED_ROWS_UNC_INACTIVE}),
	[]Row{
		stateRow("nvidia_gpu_row_remap_pending", "1 if row remappings are pending until the next reset.").
			fromField(nvml.FI_DEV_REMAPPED_PENDING, inBool).slowPace().onHardware(ampereAndNewer).inMinimal(),
		stateRow("nvidia_gpu_row_remap_failure", "1 if remapping a memory row failed: replace the GPU.").
			fromField(nvml.FI_DEV_REMAPPED_FAILURE, inBool).slowPace().onHardware(ampereAndNewer).inMinimal(),
	},
	familyRows(banksRow, "availability", Row.fromCall, inCount,
		labeledValue{"max", banksMax}, labeledValue{"high", banksHigh}, labeledValue{"partial", banksPartial}),
	familyRows(banksRow.inDefault(), "availability", Row.fromCall, inCount,
		labeledValue{"low", banksLow}, labeledValue{"none", banksNone}),
	familyRows(stateRow("nvidia_gpu_retired_pages", retiredHelp).slowPace().
		onHardware(turingAndOlder), "cause", Row.fromField, inCount,
		labeledField{"single_bit", nvml.FI_DEV_RETIRED_SBE}, labeledField{"double_bit", nvml.FI_DEV_RETIRED_DBE}),
	[]Row{
		stateRow("nvidia_gpu_retired_pages_pending", "1 if page retirements are pending until the next boot.").
			fromField(nvml.FI_DEV_RETIRED_PENDING, inBool).slowPace().onHardware(turingAndOlder),
	},
	familyRows(stateRow("nvidia_gpu_repair_pending", repairHelp).
		onHardware("Ada and newer").inMinimal(), "unit", Row.fromCall, inBool,
		labeledValue{"channel", channelRepairPending}, labeledValue{"tpc", tpcRepairPending}),
	[]Row{
		stateRow("nvidia_gpu_unrepairable_memory", "1 if the GPU's memory has unrepairable errors.").
			fromCall(UnrepairableMemory, inBool).onHardware("Hopper and newer, driver 590").inMinimal(),
	},
	enumRows(stateRow("nvidia_gpu_recovery_action", recoveryHelp).fromField(RecoveryField, inRecoveryAction).
		slowPace().onHardware("driver 565 and newer").inMinimal(),
		"action", recoveryActions, 0, false),
)

func aggregateErrorRow(severity string) Row {
	return faultCounterRow("nvidia_gpu_ecc_aggregate_errors_total", aggregateHelp, "severity", severity).
		slowPace().onHardware(withECC)
}

// locationFields are the fields with the errors of a memory; 0: none.
type locationFields struct {
	location               string
	corrected, uncorrected uint32
}

// locationRows returns the rows of a family by location. GPUs up to Turing have
// fields for parts of SRAM; newer GPUs have a total, which hides the parts.
func locationRows(family Row, sramCorrected, sramUncorrected ValueID, fields []locationFields) (rows []Row) {
	family = family.slowPace()
	for _, f := range fields {
		r := family.withLabel("location", f.location)
		if f.location == "dram" {
			r = r.onHardware(withECC)
		} else {
			r = r.unlessPresent(sramCorrected).onHardware(turingAndOlder)
		}
		if f.corrected != 0 {
			rows = append(rows, r.withLabel("severity", "corrected").fromField(f.corrected, inCount))
		}
		rows = append(rows, r.withLabel("severity", "uncorrected").fromField(f.uncorrected, inCount))
		if f.location == "dram" {
			sram := family.withLabel("location", "sram").onHardware(ampereAndNewer)
			rows = append(rows, sram.withLabel("severity", "corrected").
				fromCall(sramCorrected, inCount), sram.withLabel("severity", "uncorrected").fromCall(sramUncorrected,
				inCount))
		}
	}
	return rows
}
