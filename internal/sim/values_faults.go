package sim

import "time"

// faults are what a GPU has counted and remedied, which on these is nothing, and the
// modes that it is in.
var faults = []made{
	{"nvidia_gpu_pcie_replays_total", "", 0, always(0)},
	{"nvidia_gpu_pcie_replay_rollovers_total", "", 0, always(0)},
	{"nvidia_gpu_pcie_errors_total", "", pcieErrors, always(0)},
	{"nvidia_gpu_ecc_volatile_errors_total", "", 0, always(0)},
	{"nvidia_gpu_ecc_aggregate_errors_total", "", 0, always(0)},
	{"nvidia_gpu_ecc_volatile_location_errors_total", `location="dram"`, 0, always(0)},
	{"nvidia_gpu_ecc_volatile_location_errors_total", `location="sram"`, sram, always(0)},
	{"nvidia_gpu_ecc_volatile_location_errors_total", "", oldECC, always(0)},
	{"nvidia_gpu_ecc_aggregate_location_errors_total", `location="dram"`, 0, always(0)},
	{"nvidia_gpu_ecc_aggregate_location_errors_total", `location="sram"`, sram, always(0)},
	{"nvidia_gpu_ecc_aggregate_location_errors_total", "", oldECC, always(0)},
	{"nvidia_gpu_ecc_sram_aggregate_unit_errors_total", "", sram, always(0)},
	{"nvidia_gpu_ecc_sram_threshold_exceeded", "", sram, always(0)},
	{"nvidia_gpu_remapped_rows", "", remap, always(0)},
	{"nvidia_gpu_remapped_rows_inactive", "", remap | inactive, always(0)},
	{"nvidia_gpu_row_remap_pending", "", remap, always(0)},
	{"nvidia_gpu_row_remap_failure", "", remap, always(0)},
	{"nvidia_gpu_row_remap_banks", `availability="max"`, remap, of(func(m *Model) float64 { return m.banks })},
	{"nvidia_gpu_row_remap_banks", "", remap, always(0)},
	{"nvidia_gpu_retired_pages", "", retire, always(0)},
	{"nvidia_gpu_retired_pages_pending", "", retire, always(0)},
	{"nvidia_gpu_repair_pending", "", repair, always(0)},
	{"nvidia_gpu_unrepairable_memory", "", unrepairable, always(0)},
	{"nvidia_gpu_recovery_action", `action="none"`, 0, always(1)},
	{"nvidia_gpu_recovery_action", "", 0, always(0)},

	{"nvidia_gpu_persistence_mode_enabled", "", 0, always(1)},
	{"nvidia_gpu_compute_mode", `mode="default"`, 0, always(1)},
	{"nvidia_gpu_compute_mode", "", 0, always(0)},
	{"nvidia_gpu_ecc_enabled", "", 0, always(1)},
	{"nvidia_gpu_mig_enabled", "", mig, func(g *gpu, _ time.Time) float64 { return truth(g.MIG) }},
	{"nvidia_gpu_feature_supported", `feature="ecc"`, 0, always(1)},
	{"nvidia_gpu_feature_supported", `feature="c2c"`, 0, supports(c2c)},
	{"nvidia_gpu_feature_supported", `feature="fabric"`, 0, supports(fabric)},
	{"nvidia_gpu_feature_supported", `feature="gpm"`, 0, supports(gpm)},
	{"nvidia_gpu_feature_supported", `feature="mig"`, 0, supports(mig)},
	{"nvidia_gpu_feature_supported", `feature="nvlink"`, 0, supports(nvlink)},
	{"nvidia_gpu_feature_supported", `feature="page_retirement"`, 0, supports(retire)},
	{"nvidia_gpu_feature_supported", `feature="row_remapping"`, 0, supports(remap)},
}

func supports(f feature) func(*gpu, time.Time) float64 {
	return of(func(m *Model) float64 { return truth(m.has&f == f) })
}
