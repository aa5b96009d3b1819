package sim

import "time"

// faultRules are what a GPU has counted and remedied, which on these is nothing, and the
// modes that it is in.
var faultRules = []valueRule{
	{"nvidia_gpu_pcie_replays_total", "", 0, constant(0)},
	{"nvidia_gpu_pcie_replay_rollovers_total", "", 0, constant(0)},
	{"nvidia_gpu_pcie_errors_total", "", featurePCIeErrors, constant(0)},
	{"nvidia_gpu_ecc_volatile_errors_total", "", 0, constant(0)},
	{"nvidia_gpu_ecc_aggregate_errors_total", "", 0, constant(0)},
	{"nvidia_gpu_ecc_volatile_location_errors_total", `location="dram"`, 0, constant(0)},
	{"nvidia_gpu_ecc_volatile_location_errors_total", `location="sram"`, featureSRAMErrors, constant(0)},
	{"nvidia_gpu_ecc_volatile_location_errors_total", "", featureLegacyECC, constant(0)},
	{"nvidia_gpu_ecc_aggregate_location_errors_total", `location="dram"`, 0, constant(0)},
	{"nvidia_gpu_ecc_aggregate_location_errors_total", `location="sram"`, featureSRAMErrors, constant(0)},
	{"nvidia_gpu_ecc_aggregate_location_errors_total", "", featureLegacyECC, constant(0)},
	{"nvidia_gpu_ecc_sram_aggregate_unit_errors_total", "", featureSRAMErrors, constant(0)},
	{"nvidia_gpu_ecc_sram_threshold_exceeded", "", featureSRAMErrors, constant(0)},
	{"nvidia_gpu_remapped_rows", "", featureRowRemapping, constant(0)},
	{"nvidia_gpu_remapped_rows_inactive", "", featureRowRemapping | featureInactiveRemaps, constant(0)},
	{"nvidia_gpu_row_remap_pending", "", featureRowRemapping, constant(0)},
	{"nvidia_gpu_row_remap_failure", "", featureRowRemapping, constant(0)},
	{"nvidia_gpu_row_remap_banks", `availability="max"`, featureRowRemapping, fromModel(func(m *Model) float64 { return m.remapBanks })},
	{"nvidia_gpu_row_remap_banks", "", featureRowRemapping, constant(0)},
	{"nvidia_gpu_retired_pages", "", featurePageRetirement, constant(0)},
	{"nvidia_gpu_retired_pages_pending", "", featurePageRetirement, constant(0)},
	{"nvidia_gpu_repair_pending", "", featureRepair, constant(0)},
	{"nvidia_gpu_unrepairable_memory", "", featureUnrepairable, constant(0)},
	{"nvidia_gpu_recovery_action", `action="none"`, 0, constant(1)},
	{"nvidia_gpu_recovery_action", "", 0, constant(0)},

	{"nvidia_gpu_persistence_mode_enabled", "", 0, constant(1)},
	{"nvidia_gpu_compute_mode", `mode="default"`, 0, constant(1)},
	{"nvidia_gpu_compute_mode", "", 0, constant(0)},
	{"nvidia_gpu_ecc_enabled", "", 0, constant(1)},
	{"nvidia_gpu_mig_enabled", "", featureMIG, func(g *simGPU, _ time.Time) float64 { return boolValue(g.MIGEnabled) }},
	{"nvidia_gpu_feature_supported", `feature="ecc"`, 0, constant(1)},
	{"nvidia_gpu_feature_supported", `feature="c2c"`, 0, supportsFeature(featureC2C)},
	{"nvidia_gpu_feature_supported", `feature="fabric"`, 0, supportsFeature(featureFabric)},
	{"nvidia_gpu_feature_supported", `feature="gpm"`, 0, supportsFeature(featureGPM)},
	{"nvidia_gpu_feature_supported", `feature="mig"`, 0, supportsFeature(featureMIG)},
	{"nvidia_gpu_feature_supported", `feature="nvlink"`, 0, supportsFeature(featureNVLink)},
	{"nvidia_gpu_feature_supported", `feature="page_retirement"`, 0, supportsFeature(featurePageRetirement)},
	{"nvidia_gpu_feature_supported", `feature="row_remapping"`, 0, supportsFeature(featureRowRemapping)},
}

func supportsFeature(f modelFeature) func(*simGPU, time.Time) float64 {
	return fromModel(func(m *Model) float64 { return boolValue(m.features&f == f) })
}
