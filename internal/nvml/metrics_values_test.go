package nvml

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/nvml/metric"
)

// busyGPU is a GPU that has all there is, each value another one. Fields that the
// stand-in has no other word for are 1000 and their number.
var busyGPU = []string{
	"gpu 0 memory_total 85899345920", "gpu 0 memory_reserved 620756992", "gpu 0 memory_used 1073741824",
	"gpu 0 bar1_total 137438953472", "gpu 0 bar1_used 2097152",
	"gpu 0 utilization 29", "gpu 0 memory_utilization 7", "gpu 0 encoder_utilization 11", "gpu 0 decoder_utilization 12",
	"gpu 0 jpeg_utilization 13", "gpu 0 ofa_utilization 14",
	"gpu 0 metric 1 21", "gpu 0 metric 2 22", "gpu 0 metric 3 23", "gpu 0 metric 4 24", "gpu 0 metric 5 25", "gpu 0 metric 6 26",
	"gpu 0 metric 7 27", "gpu 0 metric 9 28", "gpu 0 metric 10 30", "gpu 0 metric 11 31", "gpu 0 metric 12 32", "gpu 0 metric 13 33",
	"gpu 0 temperature 61", "gpu 0 memory_temperature 73", "gpu 0 temperature_margin 26",
	"gpu 0 margin_shutdown -8", "gpu 0 margin_slowdown -2", "gpu 0 margin_max 1", "gpu 0 margin_memory_max 3",
	"gpu 0 temperature_shutdown 92", "gpu 0 temperature_slowdown 89", "gpu 0 temperature_max 83", "gpu 0 temperature_memory_max 95",
	"gpu 0 field 186/0 412345 u32", "gpu 0 field 185/0 401000 u32", "gpu 0 field 186/1 612345 u32", "gpu 0 energy 123456789",
	"gpu 0 field 190/0 700000 u32", "gpu 0 field 192/0 650000 u32", "gpu 0 field 189/0 690000 u32", "gpu 0 field 187/0 200000 u32", "gpu 0 field 188/0 710000 u32",
	"gpu 0 sm_clock 1980", "gpu 0 mem_clock 2619", "gpu 0 graphics_clock 1981", "gpu 0 video_clock 1545",
	"gpu 0 sm_clock_max 2001", "gpu 0 mem_clock_max 2620", "gpu 0 graphics_clock_max 2002", "gpu 0 video_clock_max 1546",
	"gpu 0 pstate 2", "gpu 0 throttle 0x424", "gpu 0 throttle_supported 0x7ff",
	"gpu 0 field 74-79 3000000000", "gpu 0 field 75 4000000000", "gpu 0 field 76 5000000000", "gpu 0 field 77 6000000000",
	"gpu 0 field 78 7000000000", "gpu 0 field 79 8000000000", "gpu 0 field 269 9000000000", "gpu 0 field 270 10000000000", "gpu 0 field 271 11000000000",
	"gpu 0 pcie_tx 5000", "gpu 0 pcie_rx 6000", "gpu 0 pcie_replay 3", "gpu 0 field 95 1095 u32",
	"gpu 0 field 169 1169 u32", "gpu 0 field 173 1173 u32", "gpu 0 field 174 1174 u32", "gpu 0 field 175 1175 u32", "gpu 0 field 176 1176 u32",
	"gpu 0 field 177 1177 u32", "gpu 0 field 178 1178 u32", "gpu 0 field 179 1179 u32", "gpu 0 field 180 1180 u32", "gpu 0 field 181 1181 u32",
	"gpu 0 field 182 1182 u32", "gpu 0 field 183 1183 u32",
	"gpu 0 pcie_generation 4", "gpu 0 pcie_width 8", "gpu 0 pcie_generation_max 5", "gpu 0 pcie_width_max 16",
	"gpu 0 link 0-9 switch", "gpu 0 link 10-17 none", "gpu 0 link 9 off", "gpu 0 nvlink_speed 26562", // nine of ten are up
	"gpu 0 field 138/link 100", "gpu 0 field 139/link 200",
	"gpu 0 field 38 1038", "gpu 0 field 45 1045", "gpu 0 field 160 1160", "gpu 0 field 52 1052", "gpu 0 field 59 1059", "gpu 0 field 163/link 1163",
	"gpu 0 field 206/link 1206", "gpu 0 field 207/link 1207", "gpu 0 field 208/link 1208", "gpu 0 field 209/link 1209", "gpu 0 field 210/link 1210",
	"gpu 0 field 211/link 1211", "gpu 0 field 212/link 1212", "gpu 0 field 213/link 1213", "gpu 0 field 214/link 1214",
	"gpu 0 field 221/link 1221", "gpu 0 field 219/link 1219",
	"gpu 0 field 170 2 u32", "gpu 0 field 171 1 u32", "gpu 0 field 172 44712 u32", "gpu 0 field 231 1231", "gpu 0 field 232 1232", "gpu 0 field 233 1233",
	"gpu 0 field 3 4", "gpu 0 field 4 5", "gpu 0 field 5 6", "gpu 0 field 6 7",
	"gpu 0 field 11 1011", "gpu 0 field 12 1012", "gpu 0 field 22 1022", "gpu 0 field 23 1023",
	"gpu 0 sram_volatile_corrected 41", "gpu 0 sram_volatile_parity 42", "gpu 0 sram_volatile_secded 1",
	"gpu 0 sram_aggregate_corrected 44", "gpu 0 sram_aggregate_parity 45", "gpu 0 sram_aggregate_secded 1",
	"gpu 0 sram_l2 51", "gpu 0 sram_sm 52", "gpu 0 sram_pcie 53", "gpu 0 sram_mcu 54", "gpu 0 sram_other 55", "gpu 0 sram_threshold 1",
	"gpu 0 remapped_corrected 61", "gpu 0 remapped_uncorrected 62", "gpu 0 remapped_corrected_inactive 63", "gpu 0 remapped_uncorrected_inactive 64",
	"gpu 0 remapped_pending 1", "gpu 0 remapped_failure 1",
	"gpu 0 remap_banks_max 71", "gpu 0 remap_banks_high 72", "gpu 0 remap_banks_partial 73", "gpu 0 remap_banks_low 74", "gpu 0 remap_banks_none 75",
	"gpu 0 field 29 81", "gpu 0 field 30 82", "gpu 0 field 31 1",
	"gpu 0 repair_channel 1", "gpu 0 repair_tpc 1", "gpu 0 unrepairable 1", "gpu 0 recovery_action 4",
	"gpu 0 fabric_state 3", "gpu 0 fabric_health 0x1165", "gpu 0 fabric_summary 2",
	"gpu 0 persistence_mode 1", "gpu 0 compute_mode 3", "gpu 0 field 1 1", "gpu 0 field 2 1",
}

// oldMemoryScenario is what GPUs before Ampere have instead of an SRAM status.
var oldMemoryScenario = []string{
	"gpu 0 sram_threshold none", "gpu 0 field 7-10 1007", "gpu 0 field 8 1008", "gpu 0 field 9 1009", "gpu 0 field 10 1010",
	"gpu 0 field 13 1013", "gpu 0 field 14 1014", "gpu 0 field 15 1015", "gpu 0 field 16 1016", "gpu 0 field 17 1017",
	"gpu 0 field 18 1018", "gpu 0 field 19 1019", "gpu 0 field 20 1020", "gpu 0 field 21 1021",
	"gpu 0 field 24 1024", "gpu 0 field 25 1025", "gpu 0 field 26 1026", "gpu 0 field 27 1027", "gpu 0 field 28 1028",
}

// busyValues is what each row shows of it: a row without one here or in oldDriverValues fails
// the test.
var busyValues = map[string]float64{
	"nvidia_gpu_bar1_memory_total_bytes":                                                     137438953472,
	"nvidia_gpu_bar1_memory_used_bytes":                                                      2097152,
	"nvidia_gpu_c2c_bandwidth_max_bytes_per_second":                                          8.9424e+10,
	`nvidia_gpu_c2c_errors_total{type="crc"}`:                                                2462,
	`nvidia_gpu_c2c_errors_total{type="replay"}`:                                             2464,
	`nvidia_gpu_c2c_errors_total{type="replay_back_to_back"}`:                                2466,
	"nvidia_gpu_c2c_links":                                                                   2,
	"nvidia_gpu_c2c_links_up":                                                                2,
	`nvidia_gpu_clock_hertz{clock="graphics"}`:                                               1981e6,
	`nvidia_gpu_clock_hertz{clock="memory"}`:                                                 2619e6,
	`nvidia_gpu_clock_hertz{clock="sm"}`:                                                     1980e6,
	`nvidia_gpu_clock_hertz{clock="video"}`:                                                  1545e6,
	`nvidia_gpu_clock_max_hertz{clock="graphics"}`:                                           2002e6,
	`nvidia_gpu_clock_max_hertz{clock="memory"}`:                                             2620e6,
	`nvidia_gpu_clock_max_hertz{clock="sm"}`:                                                 2001e6,
	`nvidia_gpu_clock_max_hertz{clock="video"}`:                                              1546e6,
	`nvidia_gpu_compute_mode{mode="default"}`:                                                0,
	`nvidia_gpu_compute_mode{mode="exclusive_process"}`:                                      1,
	`nvidia_gpu_compute_mode{mode="exclusive_thread"}`:                                       0,
	`nvidia_gpu_compute_mode{mode="other"}`:                                                  0,
	`nvidia_gpu_compute_mode{mode="prohibited"}`:                                             0,
	"nvidia_gpu_decoder_utilization_ratio":                                                   0.12,
	"nvidia_gpu_dram_bandwidth_utilization_ratio":                                            0.3,
	`nvidia_gpu_ecc_aggregate_errors_total{severity="corrected"}`:                            6,
	`nvidia_gpu_ecc_aggregate_errors_total{severity="uncorrected"}`:                          7,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="dram",severity="corrected"}`:   1022,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="dram",severity="uncorrected"}`: 1023,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="sram",severity="corrected"}`:   44,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="sram",severity="uncorrected"}`: 46,
	`nvidia_gpu_ecc_enabled{when="after_reset"}`:                                             1,
	`nvidia_gpu_ecc_enabled{when="now"}`:                                                     1,
	`nvidia_gpu_ecc_sram_aggregate_unit_errors_total{unit="l2"}`:                             51,
	`nvidia_gpu_ecc_sram_aggregate_unit_errors_total{unit="microcontroller"}`:                54,
	`nvidia_gpu_ecc_sram_aggregate_unit_errors_total{unit="other"}`:                          55,
	`nvidia_gpu_ecc_sram_aggregate_unit_errors_total{unit="pcie"}`:                           53,
	`nvidia_gpu_ecc_sram_aggregate_unit_errors_total{unit="sm"}`:                             52,
	"nvidia_gpu_ecc_sram_threshold_exceeded":                                                 1,
	`nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`:                             4,
	`nvidia_gpu_ecc_volatile_errors_total{severity="uncorrected"}`:                           5,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="dram",severity="corrected"}`:    1011,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="dram",severity="uncorrected"}`:  1012,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="sram",severity="corrected"}`:    41,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="sram",severity="uncorrected"}`:  43,
	"nvidia_gpu_encoder_utilization_ratio":                                                   0.11,
	"nvidia_gpu_energy_joules_total":                                                         123456.789,
	`nvidia_gpu_fabric_fault{fault="access_timeout_recovery"}`:                               1,
	`nvidia_gpu_fabric_fault{fault="degraded_bandwidth"}`:                                    1,
	`nvidia_gpu_fabric_fault{fault="incorrect_configuration"}`:                               0,
	`nvidia_gpu_fabric_fault{fault="route_recovery"}`:                                        1,
	`nvidia_gpu_fabric_fault{fault="route_unhealthy"}`:                                       0,
	"nvidia_gpu_fabric_healthy":                                                              0,
	`nvidia_gpu_fabric_state{state="completed"}`:                                             1,
	`nvidia_gpu_fabric_state{state="in_progress"}`:                                           0,
	`nvidia_gpu_fabric_state{state="not_started"}`:                                           0,
	`nvidia_gpu_fabric_state{state="other"}`:                                                 0,
	`nvidia_gpu_feature_supported{feature="c2c"}`:                                            1,
	`nvidia_gpu_feature_supported{feature="ecc"}`:                                            1,
	`nvidia_gpu_feature_supported{feature="fabric"}`:                                         1,
	`nvidia_gpu_feature_supported{feature="gpm"}`:                                            1,
	`nvidia_gpu_feature_supported{feature="mig"}`:                                            1,
	`nvidia_gpu_feature_supported{feature="nvlink"}`:                                         1,
	`nvidia_gpu_feature_supported{feature="page_retirement"}`:                                1,
	`nvidia_gpu_feature_supported{feature="row_remapping"}`:                                  1,
	"nvidia_gpu_graphics_engine_active_ratio":                                                0.21,
	"nvidia_gpu_jpeg_utilization_ratio":                                                      0.13,
	"nvidia_gpu_memory_controller_utilization_ratio":                                         0.07,
	"nvidia_gpu_memory_free_bytes":                                                           84204847104,
	"nvidia_gpu_memory_reserved_bytes":                                                       620756992,
	"nvidia_gpu_memory_total_bytes":                                                          85899345920,
	"nvidia_gpu_memory_used_bytes":                                                           1073741824,
	`nvidia_gpu_mig_enabled{when="after_reset"}`:                                             0,
	`nvidia_gpu_mig_enabled{when="now"}`:                                                     0,
	"nvidia_gpu_module_power_watts":                                                          612.345,
	"nvidia_gpu_nvlink_effective_errors_total":                                               10971,
	`nvidia_gpu_nvlink_errors_total{type="buffer_overrun"}`:                                  10863,
	`nvidia_gpu_nvlink_errors_total{type="crc"}`:                                             10467,
	`nvidia_gpu_nvlink_errors_total{type="crc_data"}`:                                        1045,
	`nvidia_gpu_nvlink_errors_total{type="crc_flit"}`:                                        1038,
	`nvidia_gpu_nvlink_errors_total{type="ecc_data"}`:                                        1160,
	`nvidia_gpu_nvlink_errors_total{type="local_link_integrity"}`:                            10899,
	`nvidia_gpu_nvlink_errors_total{type="malformed_packet"}`:                                10854,
	`nvidia_gpu_nvlink_errors_total{type="receive"}`:                                         10872,
	`nvidia_gpu_nvlink_errors_total{type="receive_general"}`:                                 10890,
	`nvidia_gpu_nvlink_errors_total{type="receive_remote"}`:                                  10881,
	`nvidia_gpu_nvlink_errors_total{type="recovery"}`:                                        1059,
	`nvidia_gpu_nvlink_errors_total{type="replay"}`:                                          1052,
	`nvidia_gpu_nvlink_errors_total{type="transmit_discard"}`:                                10908,
	"nvidia_gpu_nvlink_links":                                                                10,
	"nvidia_gpu_nvlink_links_up":                                                             9,
	"nvidia_gpu_nvlink_receive_bytes_total":                                                  1843200,
	`nvidia_gpu_nvlink_recoveries_total{result="failure"}`:                                   10926,
	`nvidia_gpu_nvlink_recoveries_total{result="success"}`:                                   10917,
	"nvidia_gpu_nvlink_speed_bytes_per_second":                                               2.6562e+10,
	"nvidia_gpu_nvlink_symbol_errors_total":                                                  10989,
	"nvidia_gpu_nvlink_transmit_bytes_total":                                                 921600,
	"nvidia_gpu_ofa_utilization_ratio":                                                       0.14,
	`nvidia_gpu_pcie_errors_total{type="bad_dllp"}`:                                          1178,
	`nvidia_gpu_pcie_errors_total{type="bad_tlp"}`:                                           1176,
	`nvidia_gpu_pcie_errors_total{type="correctable"}`:                                       1173,
	`nvidia_gpu_pcie_errors_total{type="fatal"}`:                                             1180,
	`nvidia_gpu_pcie_errors_total{type="l0_to_recovery"}`:                                    1169,
	`nvidia_gpu_pcie_errors_total{type="lane"}`:                                              1183,
	`nvidia_gpu_pcie_errors_total{type="lcrc"}`:                                              1182,
	`nvidia_gpu_pcie_errors_total{type="nak_received"}`:                                      1174,
	`nvidia_gpu_pcie_errors_total{type="nak_sent"}`:                                          1177,
	`nvidia_gpu_pcie_errors_total{type="non_fatal"}`:                                         1179,
	`nvidia_gpu_pcie_errors_total{type="receiver"}`:                                          1175,
	`nvidia_gpu_pcie_errors_total{type="unsupported_request"}`:                               1181,
	"nvidia_gpu_pcie_link_generation":                                                        4,
	"nvidia_gpu_pcie_link_generation_max":                                                    5,
	"nvidia_gpu_pcie_link_width":                                                             8,
	"nvidia_gpu_pcie_link_width_max":                                                         16,
	"nvidia_gpu_pcie_receive_bytes_total":                                                    6000,
	"nvidia_gpu_pcie_replay_rollovers_total":                                                 1095,
	"nvidia_gpu_pcie_replays_total":                                                          3,
	"nvidia_gpu_pcie_transmit_bytes_total":                                                   5000,
	"nvidia_gpu_performance_state":                                                           2,
	"nvidia_gpu_persistence_mode_enabled":                                                    1,
	`nvidia_gpu_pipe_active_ratio{pipe="dfma"}`:                                              0.26,
	`nvidia_gpu_pipe_active_ratio{pipe="fp16"}`:                                              0.33,
	`nvidia_gpu_pipe_active_ratio{pipe="fp32"}`:                                              0.32,
	`nvidia_gpu_pipe_active_ratio{pipe="fp64"}`:                                              0.31,
	`nvidia_gpu_pipe_active_ratio{pipe="hmma"}`:                                              0.27,
	`nvidia_gpu_pipe_active_ratio{pipe="imma"}`:                                              0.28,
	`nvidia_gpu_pipe_active_ratio{pipe="int"}`:                                               0.24,
	`nvidia_gpu_pipe_active_ratio{pipe="tensor"}`:                                            0.25,
	"nvidia_gpu_power_average_watts":                                                         401,
	`nvidia_gpu_power_limit_watts{type="default"}`:                                           690,
	`nvidia_gpu_power_limit_watts{type="enforced"}`:                                          700,
	`nvidia_gpu_power_limit_watts{type="max"}`:                                               710,
	`nvidia_gpu_power_limit_watts{type="min"}`:                                               200,
	`nvidia_gpu_power_limit_watts{type="requested"}`:                                         650,
	"nvidia_gpu_power_watts":                                                                 412.345,
	`nvidia_gpu_recovery_action{action="bus_reset"}`:                                         0,
	`nvidia_gpu_recovery_action{action="drain_and_reset"}`:                                   1,
	`nvidia_gpu_recovery_action{action="drain_p2p"}`:                                         0,
	`nvidia_gpu_recovery_action{action="gpu_reset"}`:                                         0,
	`nvidia_gpu_recovery_action{action="node_reboot"}`:                                       0,
	`nvidia_gpu_recovery_action{action="none"}`:                                              0,
	`nvidia_gpu_recovery_action{action="recover_imex_domain"}`:                               0,
	`nvidia_gpu_recovery_action{action="system_reboot"}`:                                     0,
	`nvidia_gpu_remapped_rows_inactive{cause="correctable"}`:                                 63,
	`nvidia_gpu_remapped_rows_inactive{cause="uncorrectable"}`:                               64,
	`nvidia_gpu_remapped_rows{cause="correctable"}`:                                          61,
	`nvidia_gpu_remapped_rows{cause="uncorrectable"}`:                                        62,
	`nvidia_gpu_repair_pending{unit="channel"}`:                                              1,
	`nvidia_gpu_repair_pending{unit="tpc"}`:                                                  1,
	"nvidia_gpu_retired_pages_pending":                                                       1,
	`nvidia_gpu_retired_pages{cause="double_bit"}`:                                           82,
	`nvidia_gpu_retired_pages{cause="single_bit"}`:                                           81,
	`nvidia_gpu_row_remap_banks{availability="high"}`:                                        72,
	`nvidia_gpu_row_remap_banks{availability="low"}`:                                         74,
	`nvidia_gpu_row_remap_banks{availability="max"}`:                                         71,
	`nvidia_gpu_row_remap_banks{availability="none"}`:                                        75,
	`nvidia_gpu_row_remap_banks{availability="partial"}`:                                     73,
	"nvidia_gpu_row_remap_failure":                                                           1,
	"nvidia_gpu_row_remap_pending":                                                           1,
	"nvidia_gpu_sm_active_ratio":                                                             0.22,
	"nvidia_gpu_sm_occupancy_ratio":                                                          0.23,
	`nvidia_gpu_temperature_celsius{sensor="gpu"}`:                                           61,
	`nvidia_gpu_temperature_celsius{sensor="memory"}`:                                        73,
	`nvidia_gpu_temperature_limit_celsius{type="gpu_max"}`:                                   83,
	`nvidia_gpu_temperature_limit_celsius{type="memory_max"}`:                                95,
	`nvidia_gpu_temperature_limit_celsius{type="shutdown"}`:                                  92,
	`nvidia_gpu_temperature_limit_celsius{type="slowdown"}`:                                  89,
	"nvidia_gpu_temperature_margin_celsius":                                                  26,
	`nvidia_gpu_temperature_margin_limit_celsius{type="gpu_max"}`:                            1,
	`nvidia_gpu_temperature_margin_limit_celsius{type="memory_max"}`:                         3,
	`nvidia_gpu_temperature_margin_limit_celsius{type="shutdown"}`:                           -8,
	`nvidia_gpu_temperature_margin_limit_celsius{type="slowdown"}`:                           -2,
	`nvidia_gpu_throttle_active{reason="applications_clocks"}`:                               0,
	`nvidia_gpu_throttle_active{reason="board_limit"}`:                                       0,
	`nvidia_gpu_throttle_active{reason="display_clock"}`:                                     0,
	`nvidia_gpu_throttle_active{reason="hw_power_brake"}`:                                    0,
	`nvidia_gpu_throttle_active{reason="hw_slowdown"}`:                                       0,
	`nvidia_gpu_throttle_active{reason="hw_thermal"}`:                                        0,
	`nvidia_gpu_throttle_active{reason="reliability"}`:                                       1,
	`nvidia_gpu_throttle_active{reason="sw_power_cap"}`:                                      1,
	`nvidia_gpu_throttle_active{reason="sw_thermal"}`:                                        1,
	`nvidia_gpu_throttle_active{reason="sync_boost"}`:                                        0,
	`nvidia_gpu_throttle_seconds_total{reason="board_limit"}`:                                6,
	`nvidia_gpu_throttle_seconds_total{reason="hw_power_brake"}`:                             11,
	`nvidia_gpu_throttle_seconds_total{reason="hw_thermal"}`:                                 10,
	`nvidia_gpu_throttle_seconds_total{reason="low_utilization"}`:                            7,
	`nvidia_gpu_throttle_seconds_total{reason="reliability"}`:                                8,
	`nvidia_gpu_throttle_seconds_total{reason="sw_power_cap"}`:                               3,
	`nvidia_gpu_throttle_seconds_total{reason="sw_thermal"}`:                                 9,
	`nvidia_gpu_throttle_seconds_total{reason="sync_boost"}`:                                 5,
	`nvidia_gpu_throttle_seconds_total{reason="thermal"}`:                                    4,
	"nvidia_gpu_unrepairable_memory":                                                         1,
	"nvidia_gpu_utilization_ratio":                                                           0.29,
}

// oldDriverValues are what oldMemoryScenario adds.
var oldDriverValues = map[string]float64{
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="cbu",severity="uncorrected"}`:           1028,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="l1",severity="corrected"}`:              1018,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="l1",severity="uncorrected"}`:            1019,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="l2",severity="corrected"}`:              1020,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="l2",severity="uncorrected"}`:            1021,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="register_file",severity="corrected"}`:   1024,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="register_file",severity="uncorrected"}`: 1025,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="texture",severity="corrected"}`:         1026,
	`nvidia_gpu_ecc_aggregate_location_errors_total{location="texture",severity="uncorrected"}`:       1027,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="cbu",severity="uncorrected"}`:            1017,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="l1",severity="corrected"}`:               1007,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="l1",severity="uncorrected"}`:             1008,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="l2",severity="corrected"}`:               1009,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="l2",severity="uncorrected"}`:             1010,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="register_file",severity="corrected"}`:    1013,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="register_file",severity="uncorrected"}`:  1014,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="texture",severity="corrected"}`:          1015,
	`nvidia_gpu_ecc_volatile_location_errors_total{location="texture",severity="uncorrected"}`:        1016,
}

// ageSamples has all GPM samples of a GPU be older by a while, so that the next reading is not
// too close to them.
func (s *backendFixture) ageSamples(i int, by time.Duration) {
	g := s.gpu(i)
	older := func(sampler *gpmSampler) {
		if !sampler.takenAt.IsZero() {
			sampler.takenAt = sampler.takenAt.Add(-by)
		}
	}
	older(&g.gpm.gpuSampler)
	for _, in := range g.instances {
		older(&in.sampler)
	}
}

// closeWindow has a check find that the window between two GPM samples is over.
func (s *backendFixture) closeWindow(i int) {
	s.Helper()
	s.ageSamples(i, gpmWindow)
	_, _ = s.Check(s.id(i)) // what it finds is of no matter here
}

// settledValues reads when there is something between two samples.
func (s *backendFixture) settledValues(i int) map[string]float64 {
	s.Helper()
	s.values(i)
	s.closeWindow(i)
	s.closeWindow(i)
	return rounded(s.values(i))
}

// rounded is without what a mean over a short time is wrong by.
func rounded(values map[string]float64) map[string]float64 {
	for name, v := range values {
		if strings.HasSuffix(name, "_ratio") || strings.HasPrefix(name, "nvidia_gpu_pipe") {
			values[name] = math.Round(v*1e6) / 1e6
		}
	}
	return values
}

func TestRows(t *testing.T) {
	s := newListedFixture(t, append(busyGPU, "gpus 1")...)
	got := s.settledValues(0)
	for name, want := range busyValues {
		if value, read := got[name]; !read || value != want {
			t.Errorf("%s is %v, %v, want %v", name, value, read, want)
		}
	}
	if len(got) != len(busyValues) {
		t.Errorf("%d values, want %d", len(got), len(busyValues))
	}
	old := newListedFixture(t, slices.Concat(busyGPU, oldMemoryScenario, []string{"gpus 1"})...).settledValues(0)
	for name, want := range oldDriverValues {
		if value, read := old[name]; !read || value != want {
			t.Errorf("%s is %v, %v, want %v", name, value, read, want)
		}
	}
	for name := range old { // which of both it is depends on the generation
		if _, known := oldDriverValues[name]; !known && old[name] != busyValues[name] {
			t.Errorf("%s is %v, want %v", name, old[name], busyValues[name])
		}
		if strings.Contains(name, "sram") {
			t.Errorf("there is %s", name)
		}
	}
	for _, m := range metric.Metrics() {
		_, known := busyValues[seriesName(m)]
		if _, old := oldDriverValues[seriesName(m)]; !known && !old {
			t.Errorf("no case for %s", seriesName(m))
		}
	}
}
