package dcgm

import (
	"slices"
	"strconv"
	"sync"
)

const (
	mebi = 1.0 / (1 << 20)
	// dcgmMegabytes is DCGM's unit of NVLink: KiB divided by 1000.
	dcgmMegabytes = 1.0 / 1024 / 1000
	nano          = 1e9
)

// Reasons of missing fields.
const (
	notRead  = "podgauge does not read it"
	joinInfo = "a number in DCGM; the text is a label of nvidia_gpu_info: "
)

// missingPrefixes are the reasons for names that are not in Fields.
var missingPrefixes = []struct{ prefix, reason string }{
	{"DCGM_EXP_CLOCK_EVENTS_", "counts samples in a window; use increase of nvidia_gpu_throttle_seconds_total"},
	{"DCGM_EXP_XID_ERRORS_", "counts in a window; use increase of nvidia_gpu_xid_errors_total"},
	{"DCGM_EXP_GPU_HEALTH_STATUS", "DCGM's health watches; use nvidia_gpu_health_state"},
	{"DCGM_EXP_", "family of dcgm-exporter itself"},
	{"DCGM_FI_PROF_", notRead},
	{"DCGM_FI_DEV_NVSWITCH_", "field of an NVSwitch"},
	{"DCGM_FI_DEV_CPU_AFFINITY_", notRead},
	{"DCGM_FI_DEV_CPU_", "field of a CPU"},
	{"DCGM_FI_DEV_CONNECTX_", "field of a network adapter"},
	{"DCGM_FI_DEV_VGPU_", "field of a vGPU"},
	{"DCGM_FI_DEV_DIAG_", "result of DCGM's diagnostics"},
	{"DCGM_FI_DEV_FABRIC_", notRead},
	{"DCGM_FI_DEV_NVLINK_CRC_", "of a single link; use nvidia_gpu_nvlink_errors_total"},
	{"DCGM_FI_DEV_PWR_SMOOTHING_", notRead},
	{"DCGM_FI_DEV_NVLINK_COUNT_FEC_HISTORY_", notRead},
	{"DCGM_FI_IMEX_", "state of the IMEX daemon"},
}

// Fields returns the fields of DCGM for a GPU, ordered by number. Fields of the default counters file come in that
// file's types and helps; helps and types of 4.9 follow the field's meaning. The table takes 0.3 MB, so it is made at
// the first use.
var Fields = sync.OnceValue(func() []Field {
	return slices.Concat(properties(), sensors(), activity(), memory(), faults(), links(), profiles())
})

func properties() []Field {
	return []Field{
		label(1, "DCGM_FI_DRIVER_VERSION", "DCGM_FI_SYSTEM_DRIVER_VERSION", "driver_version").
			byDefault("Driver Version", ""),
		missing(2, "DCGM_FI_NVML_VERSION", "DCGM_FI_SYSTEM_NVML_VERSION", notRead),
		missing(5, "DCGM_FI_CUDA_DRIVER_VERSION", "DCGM_FI_CUDA_DRIVER_VERSION", joinInfo+"cuda_version"),
		label(50, "DCGM_FI_DEV_NAME", "DCGM_FI_DEV_GPU_NAME", "model"),
		missing(51, "DCGM_FI_DEV_BRAND", "DCGM_FI_DEV_GPU_BRAND", notRead),
		label(52, "DCGM_FI_DEV_NVML_INDEX", "DCGM_FI_DEV_NVML_INDEX", "gpu"),
		label(53, "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_BOARD_SERIAL", "serial"),
		label(54, "DCGM_FI_DEV_UUID", "DCGM_FI_DEV_GPU_UUID", "uuid"),
		label(55, "DCGM_FI_DEV_MINOR_NUMBER", "DCGM_FI_DEV_GPU_MINOR_NUMBER", "minor"),
		missing(56, "DCGM_FI_DEV_OEM_INFOROM_VER", "DCGM_FI_DEV_INFOROM_OEM_VERSION", notRead),
		label(57, "DCGM_FI_DEV_PCI_BUSID", "DCGM_FI_DEV_PCI_BUS_ID", "pci_bus_id"),
		missing(63, "DCGM_FI_DEV_CUDA_COMPUTE_CAPABILITY", "DCGM_FI_CUDA_GPU_COMPUTE_CAPABILITY",
			joinInfo+"compute_capability"),
		enum(65, "DCGM_FI_DEV_COMPUTE_MODE", "nvidia_gpu_compute_mode", "mode", map[string]float64{
			"default": 0, "exclusive_thread": 1, "prohibited": 2, "exclusive_process": 3,
		}).renamed("DCGM_FI_DEV_GPU_COMPUTE_MODE"),
		gauge(66, "DCGM_FI_DEV_PERSISTENCE_MODE", 1, "nvidia_gpu_persistence_mode_enabled").
			renamed("DCGM_FI_DEV_GPU_PERSISTENCE_MODE"),
		gauge(67, "DCGM_FI_DEV_MIG_MODE", 1, `nvidia_gpu_mig_enabled{when="now"}`),
		missing(74, "DCGM_FI_DEV_CC_MODE", "DCGM_FI_DEV_CC_MODE", joinInfo+"confidential_computing"),
		missing(80, "DCGM_FI_DEV_ECC_INFOROM_VER", "DCGM_FI_DEV_INFOROM_ECC_VERSION", notRead),
		missing(81, "DCGM_FI_DEV_POWER_INFOROM_VER", "DCGM_FI_DEV_INFOROM_POWER_VERSION", notRead),
		missing(82, "DCGM_FI_DEV_INFOROM_IMAGE_VER", "DCGM_FI_DEV_INFOROM_IMAGE_VERSION", notRead),
		missing(83, "DCGM_FI_DEV_INFOROM_CONFIG_CHECK", "DCGM_FI_DEV_INFOROM_CHECKSUM", notRead),
		missing(84, "DCGM_FI_DEV_INFOROM_CONFIG_VALID", "DCGM_FI_DEV_INFOROM_VALID", notRead),
		label(85, "DCGM_FI_DEV_VBIOS_VERSION", "DCGM_FI_DEV_VBIOS_VERSION", "vbios_version"),
		gauge(90, "DCGM_FI_DEV_BAR1_TOTAL", mebi, "nvidia_gpu_bar1_memory_total_bytes").
			rebased(1600, "DCGM_FI_DEV_BAR1_CAPACITY_BYTES", 1),
		gauge(92, "DCGM_FI_DEV_BAR1_USED", mebi, "nvidia_gpu_bar1_memory_used_bytes").
			rebased(1601, "DCGM_FI_DEV_BAR1_USED_BYTES", 1),
		gauge(93, "DCGM_FI_DEV_BAR1_FREE", mebi, "nvidia_gpu_bar1_memory_total_bytes").
			less("nvidia_gpu_bar1_memory_used_bytes").rebased(1602, "DCGM_FI_DEV_BAR1_FREE_BYTES", 1),
		gauge(94, "DCGM_FI_DEV_GPM_SUPPORT", 1, `nvidia_gpu_feature_supported{feature="gpm"}`),
	}
}

func sensors() []Field {
	return []Field{
		gauge(100, "DCGM_FI_DEV_SM_CLOCK", 1e-6, `nvidia_gpu_clock_hertz{clock="sm"}`).
			rebased(1603, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1).alias("dcgm_sm_clock").
			byDefault("SM clock frequency (in MHz).", "SM clock frequency (in Hz)."),
		gauge(101, "DCGM_FI_DEV_MEM_CLOCK", 1e-6, `nvidia_gpu_clock_hertz{clock="memory"}`).
			rebased(1604, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 1).alias("dcgm_memory_clock").
			byDefault("Memory clock frequency (in MHz).", "Memory clock frequency (in Hz)."),
		gauge(102, "DCGM_FI_DEV_VIDEO_CLOCK", 1e-6, `nvidia_gpu_clock_hertz{clock="video"}`).
			rebased(1605, "DCGM_FI_DEV_VIDEO_CLOCK_HERTZ", 1),
		missing(110, "DCGM_FI_DEV_APP_SM_CLOCK", "", notRead).rebased(1606, "DCGM_FI_DEV_SM_APP_CLOCK_HERTZ", 0),
		missing(111, "DCGM_FI_DEV_APP_MEM_CLOCK", "", notRead).rebased(1607, "DCGM_FI_DEV_MEMORY_APP_CLOCK_HERTZ", 0),
		enum(112, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "nvidia_gpu_throttle_active", "reason", map[string]float64{
			"applications_clocks": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10, "sw_thermal": 0x20,
			"hw_thermal": 0x40, "hw_power_brake": 0x80, "display_clock": 0x100, "board_limit": 0x200,
			"reliability": 0x400,
		}).alias("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS").noted("without bit 0x1, of an idle GPU"),
		gauge(113, "DCGM_FI_DEV_MAX_SM_CLOCK", 1e-6, `nvidia_gpu_clock_max_hertz{clock="sm"}`).
			rebased(1608, "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", 1),
		gauge(114, "DCGM_FI_DEV_MAX_MEM_CLOCK", 1e-6, `nvidia_gpu_clock_max_hertz{clock="memory"}`).
			rebased(1609, "DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ", 1),
		gauge(115, "DCGM_FI_DEV_MAX_VIDEO_CLOCK", 1e-6, `nvidia_gpu_clock_max_hertz{clock="video"}`).
			rebased(1610, "DCGM_FI_DEV_VIDEO_MAX_CLOCK_HERTZ", 1),
		gauge(140, "DCGM_FI_DEV_MEMORY_TEMP", 1, `nvidia_gpu_temperature_celsius{sensor="memory"}`).
			renamed("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS").alias("dcgm_memory_temp").
			byDefault("Memory temperature (in C).", ""),
		gauge(150, "DCGM_FI_DEV_GPU_TEMP", 1, `nvidia_gpu_temperature_celsius{sensor="gpu"}`).
			renamed("DCGM_FI_DEV_GPU_TEMP_CELSIUS").alias("dcgm_gpu_temp").
			byDefault("GPU temperature (in C).", ""),
		gauge(151, "DCGM_FI_DEV_MEM_MAX_OP_TEMP", 1, `nvidia_gpu_temperature_limit_celsius{type="memory_max"}`).
			renamed("DCGM_FI_DEV_MEMORY_MAX_OP_TEMP_CELSIUS"),
		gauge(152, "DCGM_FI_DEV_GPU_MAX_OP_TEMP", 1, `nvidia_gpu_temperature_limit_celsius{type="gpu_max"}`).
			renamed("DCGM_FI_DEV_GPU_MAX_OP_TEMP_CELSIUS"),
		gauge(153, "DCGM_FI_DEV_GPU_TEMP_LIMIT", 1, "nvidia_gpu_temperature_margin_celsius").
			renamed("DCGM_FI_DEV_GPU_TEMP_MARGIN_CELSIUS"),
		gauge(155, "DCGM_FI_DEV_POWER_USAGE", 1, "nvidia_gpu_power_watts").
			renamed("DCGM_FI_DEV_BOARD_POWER_WATTS").alias("dcgm_power_usage").byDefault("Power draw (in W).", "").
			noted("instantaneous; DCGM has the mean of 1 s on Ampere and newer, except A100"),
		counter(156, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1000, "nvidia_gpu_energy_joules_total").
			rebased(1611, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1).alias("dcgm_total_energy_consumption").
			byDefault("Total energy consumption since boot (in mJ).", "Total energy consumption since boot (in J)."),
		gauge(157, "DCGM_FI_DEV_POWER_USAGE_INSTANT", 1, "nvidia_gpu_power_watts").
			renamed("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS"),
		gauge(158, "DCGM_FI_DEV_SLOWDOWN_TEMP", 1, `nvidia_gpu_temperature_limit_celsius{type="slowdown"}`).
			renamed("DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS"),
		gauge(159, "DCGM_FI_DEV_SHUTDOWN_TEMP", 1, `nvidia_gpu_temperature_limit_celsius{type="shutdown"}`).
			renamed("DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS"),
		gauge(160, "DCGM_FI_DEV_POWER_MGMT_LIMIT", 1, `nvidia_gpu_power_limit_watts{type="requested"}`).
			renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"),
		gauge(161, "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", 1, `nvidia_gpu_power_limit_watts{type="min"}`).
			renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS"),
		gauge(162, "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", 1, `nvidia_gpu_power_limit_watts{type="max"}`).
			renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS"),
		gauge(163, "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", 1, `nvidia_gpu_power_limit_watts{type="default"}`).
			renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS"),
		gauge(164, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 1, `nvidia_gpu_power_limit_watts{type="enforced"}`).
			renamed("DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"),
	}
}

func activity() []Field {
	return []Field{
		missing(170, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "DCGM_FI_DEV_FABRIC_MANAGER_STATUS",
			"DCGM's own states; use nvidia_gpu_fabric_state"),
		missing(175, "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY",
			"DCGM's own states; use nvidia_gpu_fabric_healthy"),
		gauge(190, "DCGM_FI_DEV_PSTATE", 1, "nvidia_gpu_performance_state").renamed("DCGM_FI_DEV_GPU_PSTATE"),
		gauge(191, "DCGM_FI_DEV_FAN_SPEED", 100, `nvidia_gpu_fan_speed_ratio{fan="0"}`).
			rebased(1612, "DCGM_FI_DEV_FAN_SPEED_RATIO", 1),
		missing(200, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", "DCGM_FI_DEV_PCIE_TX_THROUGHPUT",
			"not supported by DCGM either: use DCGM_FI_PROF_PCIE_TX_BYTES").alias("dcgm_pcie_tx_throughput"),
		missing(201, "DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT",
			"not supported by DCGM either: use DCGM_FI_PROF_PCIE_RX_BYTES").alias("dcgm_pcie_rx_throughput"),
		counter(202, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 1, "nvidia_gpu_pcie_replays_total").
			renamed("DCGM_FI_DEV_PCIE_REPLAY_TOTAL").alias("dcgm_pcie_replay_counter").
			byDefault("Total number of PCIe retries.", ""),
		gauge(203, "DCGM_FI_DEV_GPU_UTIL", 100, "nvidia_gpu_utilization_ratio").own().
			rebased(1613, "DCGM_FI_DEV_GPU_UTIL_RATIO", 1).alias("dcgm_gpu_utilization").
			byDefault("GPU utilization (in %).", "GPU utilization (0 to 1)."),
		gauge(204, "DCGM_FI_DEV_MEM_COPY_UTIL", 100, "nvidia_gpu_memory_controller_utilization_ratio").own().
			rebased(1614, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 1).alias("dcgm_mem_copy_utilization").
			byDefault("Memory utilization (in %).", "Memory utilization (0 to 1)."),
		gauge(206, "DCGM_FI_DEV_ENC_UTIL", 100, "nvidia_gpu_encoder_utilization_ratio").own().
			rebased(1615, "DCGM_FI_DEV_ENC_UTIL_RATIO", 1).alias("dcgm_enc_utilization").
			byDefault("Encoder utilization (in %).", "Encoder utilization (0 to 1)."),
		gauge(207, "DCGM_FI_DEV_DEC_UTIL", 100, "nvidia_gpu_decoder_utilization_ratio").own().
			rebased(1616, "DCGM_FI_DEV_DEC_UTIL_RATIO", 1).alias("dcgm_dec_utilization").
			byDefault("Decoder utilization (in %).", "Decoder utilization (0 to 1)."),
		xid(230, "DCGM_FI_DEV_XID_ERRORS").renamed("DCGM_FI_DEV_XID_ERROR").alias("dcgm_xid_errors").
			byDefault("Value of the last XID error encountered.", ""),
		gauge(235, "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", 1, "nvidia_gpu_pcie_link_generation_max"),
		gauge(236, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", 1, "nvidia_gpu_pcie_link_width_max"),
		gauge(237, "DCGM_FI_DEV_PCIE_LINK_GEN", 1, "nvidia_gpu_pcie_link_generation"),
		gauge(238, "DCGM_FI_DEV_PCIE_LINK_WIDTH", 1, "nvidia_gpu_pcie_link_width"),
		counter(240, "DCGM_FI_DEV_POWER_VIOLATION", nano, throttled("sw_power_cap")).
			rebased(1617, "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", 1).alias("dcgm_power_violation"),
		counter(241, "DCGM_FI_DEV_THERMAL_VIOLATION", nano, throttled("thermal")).
			rebased(1618, "", 1).alias("dcgm_thermal_violation"),
		counter(242, "DCGM_FI_DEV_SYNC_BOOST_VIOLATION", nano, throttled("sync_boost")).
			rebased(0, "", 1).alias("dcgm_sync_boost_violation"),
		counter(243, "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", nano, throttled("board_limit")).
			rebased(0, "", 1).alias("dcgm_board_limit_violation"),
		counter(244, "DCGM_FI_DEV_LOW_UTIL_VIOLATION", nano, throttled("low_utilization")).
			rebased(0, "", 1).alias("dcgm_low_util_violation"),
		counter(245, "DCGM_FI_DEV_RELIABILITY_VIOLATION", nano, throttled("reliability")).
			rebased(0, "", 1).alias("dcgm_reliability_violation"),
		missing(246, "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION", "", notRead),
		missing(247, "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", "", notRead),
	}
}

func memory() []Field {
	return []Field{
		gauge(250, "DCGM_FI_DEV_FB_TOTAL", mebi, "nvidia_gpu_memory_total_bytes").own().
			rebased(1625, "DCGM_FI_DEV_FB_CAPACITY_BYTES", 1).byDefault("", "Framebuffer memory capacity (in bytes)."),
		gauge(251, "DCGM_FI_DEV_FB_FREE", mebi, "nvidia_gpu_memory_free_bytes").own().
			rebased(1626, "DCGM_FI_DEV_FB_FREE_BYTES", 1).alias("dcgm_fb_free").
			byDefault("Framebuffer memory free (in MiB).", "Framebuffer memory free (in bytes)."),
		gauge(252, "DCGM_FI_DEV_FB_USED", mebi, "nvidia_gpu_memory_used_bytes").own().
			rebased(1627, "DCGM_FI_DEV_FB_USED_BYTES", 1).alias("dcgm_fb_used").
			byDefault("Framebuffer memory used (in MiB).", "Framebuffer memory used (in bytes)."),
		gauge(253, "DCGM_FI_DEV_FB_RESERVED", mebi, "nvidia_gpu_memory_reserved_bytes").own().
			rebased(1628, "DCGM_FI_DEV_FB_RESERVED_BYTES", 1).
			byDefault("Framebuffer memory reserved (in MiB).", "Framebuffer memory reserved (in bytes)."),
		gauge(254, "DCGM_FI_DEV_FB_USED_PERCENT", 1, "nvidia_gpu_memory_used_bytes").own().
			per(Source{"nvidia_gpu_memory_total_bytes", 1}, Source{"nvidia_gpu_memory_reserved_bytes", -1}).
			renamed("DCGM_FI_DEV_FB_USED_RATIO"),
	}
}

func faults() []Field {
	return []Field{
		gauge(300, "DCGM_FI_DEV_ECC_CURRENT", 1, `nvidia_gpu_ecc_enabled{when="now"}`).renamed("DCGM_FI_DEV_ECC_MODE"),
		gauge(301, "DCGM_FI_DEV_ECC_PENDING", 1, `nvidia_gpu_ecc_enabled{when="after_reset"}`),
		counter(310, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 1, `nvidia_gpu_ecc_volatile_errors_total{severity="corrected"}`).
			alias("dcgm_ecc_sbe_volatile_total"),
		counter(311, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1,
			`nvidia_gpu_ecc_volatile_errors_total{severity="uncorrected"}`).
			alias("dcgm_ecc_dbe_volatile_total"),
		counter(312, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", 1, `nvidia_gpu_ecc_aggregate_errors_total{severity="corrected"}`).
			alias("dcgm_ecc_sbe_aggregate_total"),
		counter(313, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", 1,
			`nvidia_gpu_ecc_aggregate_errors_total{severity="uncorrected"}`).
			alias("dcgm_ecc_dbe_aggregate_total"),
		volatile(314, "SBE", "L1", "l1"), volatile(315, "DBE", "L1", "l1"),
		volatile(316, "SBE", "L2", "l2"), volatile(317, "DBE", "L2", "l2"),
		volatile(318, "SBE", "DEV", "dram"), volatile(319, "DBE", "DEV", "dram"),
		volatile(320, "SBE", "REG", "register_file"), volatile(321, "DBE", "REG", "register_file"),
		volatile(322, "SBE", "TEX", "texture"), volatile(323, "DBE", "TEX", "texture"),
		aggregate(324, "SBE", "L1", "l1"), aggregate(325, "DBE", "L1", "l1"),
		aggregate(326, "SBE", "L2", "l2"), aggregate(327, "DBE", "L2", "l2"),
		aggregate(328, "SBE", "DEV", "dram"), aggregate(329, "DBE", "DEV", "dram"),
		aggregate(330, "SBE", "REG", "register_file"), aggregate(331, "DBE", "REG", "register_file"),
		aggregate(332, "SBE", "TEX", "texture"), aggregate(333, "DBE", "TEX", "texture"),
		volatile(337, "DBE", "CBU", "cbu"), aggregate(341, "DBE", "CBU", "cbu"),
		volatile(342, "SBE", "SRM", "sram"), volatile(343, "DBE", "SRM", "sram"),
		aggregate(344, "SBE", "SRM", "sram"), aggregate(345, "DBE", "SRM", "sram"),
		gauge(346, "DCGM_FI_DEV_THRESHOLD_SRM", 1, "nvidia_gpu_ecc_sram_threshold_exceeded").
			renamed("DCGM_FI_DEV_SRAM_EXCEEDED"),
		remapBanks(385, "MAX", "max"), remapBanks(386, "HIGH", "high"), remapBanks(387, "PARTIAL", "partial"),
		remapBanks(388, "LOW", "low"), remapBanks(389, "NONE", "none"),
		counter(390, "DCGM_FI_DEV_RETIRED_SBE", 1, `nvidia_gpu_retired_pages{cause="single_bit"}`).
			renamed("DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL").alias("dcgm_retired_pages_sbe"),
		counter(391, "DCGM_FI_DEV_RETIRED_DBE", 1, `nvidia_gpu_retired_pages{cause="double_bit"}`).
			renamed("DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL").alias("dcgm_retired_pages_dbe"),
		counter(392, "DCGM_FI_DEV_RETIRED_PENDING", 1, "nvidia_gpu_retired_pages_pending").
			renamed("DCGM_FI_DEV_PAGE_RETIRED_PENDING").alias("dcgm_retired_pages_pending"),
		counter(393, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 1, `nvidia_gpu_remapped_rows{cause="uncorrectable"}`).
			renamed("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL").
			byDefault("Number of remapped rows for uncorrectable errors", ""),
		counter(394, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 1, `nvidia_gpu_remapped_rows{cause="correctable"}`).
			renamed("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL").
			byDefault("Number of remapped rows for correctable errors", ""),
		gauge(395, "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, "nvidia_gpu_row_remap_failure").
			renamed("DCGM_FI_DEV_ROW_REMAP_FAILED").byDefault("Whether remapping of rows has failed", ""),
		gauge(396, "DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "nvidia_gpu_row_remap_pending"),
		counter(1420, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", nano, throttled("sw_power_cap")),
		counter(1421, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", nano, throttled("sync_boost")),
		counter(1422, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", nano, throttled("sw_thermal")),
		counter(1423, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", nano, throttled("hw_thermal")),
		counter(1424, "DCGM_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", nano, throttled("hw_power_brake")),
		counter(1501, "DCGM_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS", 1,
			`nvidia_gpu_pcie_errors_total{type="correctable"}`).
			renamed("DCGM_FI_DEV_PCIE_CORRECTABLE_ERROR_TOTAL"),
		gauge(1507, "DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", 1, "nvidia_gpu_unrepairable_memory").
			renamed("DCGM_FI_DEV_MEMORY_UNREPAIRABLE"),
		enum(1523, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "nvidia_gpu_recovery_action", "action", map[string]float64{
			"none": 0, "gpu_reset": 1, "node_reboot": 2, "drain_p2p": 3, "drain_and_reset": 4, "recover_imex_domain": 5,
			"bus_reset": 6, "system_reboot": 7,
		}).renamed("DCGM_FI_DEV_GPU_RECOVERY_ACTION"),
	}
}

func xid(number int, name string) Field {
	f := gauge(number, name, 1, "nvidia_gpu_xid_errors_total", "nvidia_gpu_xid_last_timestamp_seconds").
		noted("0 when the Xid is over; DCGM keeps the code until a restart")
	f.Xid = true
	return f
}

func throttled(reason string) string {
	return `nvidia_gpu_throttle_seconds_total{reason="` + reason + `"}`
}

func volatile(number int, severity, place, location string) Field {
	return located(number, severity+"_VOL_"+place, "volatile", location)
}

func aggregate(number int, severity, place, location string) Field {
	return located(number, severity+"_AGG_"+place, "aggregate", location)
}

func located(number int, name, period, location string) Field {
	severity := "corrected"
	if name[0] == 'D' {
		severity = "uncorrected"
	}
	return counter(number, "DCGM_FI_DEV_ECC_"+name, 1, "nvidia_gpu_ecc_"+period+`_location_errors_total{location="`+
		location+`",severity="`+severity+`"}`)
}

func remapBanks(number int, name, availability string) Field {
	return gauge(number, "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_"+name, 1,
		`nvidia_gpu_row_remap_banks{availability="`+availability+`"}`).
		renamed("DCGM_FI_DEV_BANK_REMAP_AVAIL_" + name)
}

const (
	transmitted = "nvidia_gpu_nvlink_transmit_bytes_total"
	received    = "nvidia_gpu_nvlink_receive_bytes_total"
	onlyHopper  = "Hopper only"
	payload     = "without headers up to Hopper; DCGM counts them"
)

func links() []Field {
	return slices.Concat([]Field{
		gauge(285, "DCGM_FI_DEV_C2C_LINK_COUNT", 1, "nvidia_gpu_c2c_links").renamed("DCGM_FI_DEV_C2C_LINK_QUANTITY"),
		missing(286, "DCGM_FI_DEV_C2C_LINK_STATUS", "DCGM_FI_DEV_C2C_LINK_STATUS",
			"of one link; use nvidia_gpu_c2c_links_up"),
		gauge(287, "DCGM_FI_DEV_C2C_MAX_BANDWIDTH", 1e-6, "nvidia_gpu_c2c_bandwidth_max_bytes_per_second").
			per(Source{"nvidia_gpu_c2c_links_up", 1}).
			rebased(1629, "DCGM_FI_DEV_C2C_MAX_BANDWIDTH_BYTES_PER_SECOND", 1).noted("mean of the active links"),
		linkErrors(409, "CRC_FLIT", "crc_flit").alias("dcgm_nvlink_flit_crc_error_count_total"),
		linkErrors(419, "CRC_DATA", "crc_data").alias("dcgm_nvlink_data_crc_error_count_total"),
		linkErrors(429, "REPLAY", "replay").alias("dcgm_nvlink_replay_error_count_total"),
		linkErrors(439, "RECOVERY", "recovery").alias("dcgm_nvlink_recovery_error_count_total"),
		counter(449, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", dcgmMegabytes, transmitted, received).rate().
			rebased(1648, "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", 1).
			alias("dcgm_nvlink_bandwidth_total", "DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL").
			byDefault("Total number of NVLink bandwidth counters for all lanes.",
				"NVLink throughput over all links (in bytes per second)."),
		missing(450, "DCGM_FI_DEV_GPU_NVLINK_ERRORS", "DCGM_FI_DEV_NVLINK_ERROR", "event of DCGM"),
		gauge(843, "DCGM_FI_DEV_NVLINK_TX_BANDWIDTH_TOTAL", dcgmMegabytes, transmitted).rate().
			renamed("DCGM_FI_DEV_NVLINK_TX_THROUGHPUT_TOTAL"),
		gauge(897, "DCGM_FI_DEV_NVLINK_RX_BANDWIDTH_TOTAL", dcgmMegabytes, received).rate().
			renamed("DCGM_FI_DEV_NVLINK_RX_THROUGHPUT_TOTAL"),
		missing(1200, "DCGM_FI_DEV_NVLINK_COUNT_TX_PACKETS", "DCGM_FI_DEV_NVLINK_TX_PACKET_TOTAL", notRead),
		counter(1201, "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES", 1, transmitted).renamed("DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL"),
		missing(1202, "DCGM_FI_DEV_NVLINK_COUNT_RX_PACKETS", "DCGM_FI_DEV_NVLINK_RX_PACKET_TOTAL", notRead),
		counter(1203, "DCGM_FI_DEV_NVLINK_COUNT_RX_BYTES", 1, received).renamed("DCGM_FI_DEV_NVLINK_RX_BYTES_TOTAL"),
		counter(1204, "DCGM_FI_DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", 1, linkError("malformed_packet")).
			renamed("DCGM_FI_DEV_NVLINK_RX_PACKET_MALFORMED_TOTAL"),
		counter(1205, "DCGM_FI_DEV_NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", 1, linkError("buffer_overrun")).
			renamed("DCGM_FI_DEV_NVLINK_RX_PACKET_DROPPED_TOTAL"),
		counter(1206, "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS", 1, linkError("receive")).
			renamed("DCGM_FI_DEV_NVLINK_RX_ERROR_TOTAL"),
		counter(1207, "DCGM_FI_DEV_NVLINK_COUNT_RX_REMOTE_ERRORS", 1, linkError("receive_remote")).
			renamed("DCGM_FI_DEV_NVLINK_RX_REMOTE_ERROR_TOTAL"),
		counter(1208, "DCGM_FI_DEV_NVLINK_COUNT_RX_GENERAL_ERRORS", 1, linkError("receive_general")).
			renamed("DCGM_FI_DEV_NVLINK_RX_GENERAL_ERROR_TOTAL"),
		counter(1209, "DCGM_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", 1, linkError("local_link_integrity")).
			renamed("DCGM_FI_DEV_NVLINK_INTEGRITY_ERROR_TOTAL"),
		counter(1210, "DCGM_FI_DEV_NVLINK_COUNT_TX_DISCARDS", 1, linkError("transmit_discard")),
		counter(1211, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", 1, recoveries("success")).
			renamed("DCGM_FI_DEV_NVLINK_RECOVERY_SUCCESSFUL_TOTAL"),
		counter(1212, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", 1, recoveries("failure")).
			renamed("DCGM_FI_DEV_NVLINK_RECOVERY_FAILED_TOTAL"),
		counter(1213, "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS", 1, recoveries("success"), recoveries("failure")).
			renamed("DCGM_FI_DEV_NVLINK_RECOVERY_EVENT_TOTAL"),
		counter(1214, "DCGM_FI_DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", 1, "nvidia_gpu_nvlink_symbol_errors_total").
			renamed("DCGM_FI_DEV_NVLINK_RX_SYMBOL_ERROR_TOTAL"),
		missing(1215, "DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER", "DCGM_FI_DEV_NVLINK_SYMBOL_BER_RAW", notRead),
		missing(1216, "DCGM_FI_DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", "DCGM_FI_DEV_NVLINK_SYMBOL_BER_RATIO", notRead),
		missing(1217, "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER", "DCGM_FI_DEV_NVLINK_EFFECTIVE_BER_RAW", notRead),
		missing(1218, "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT",
			"DCGM_FI_DEV_NVLINK_EFFECTIVE_BER_RATIO", notRead),
		counter(1219, "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", 1, "nvidia_gpu_nvlink_effective_errors_total").
			renamed("DCGM_FI_DEV_NVLINK_EFFECTIVE_ERROR_TOTAL"),
		counter(1220, "DCGM_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL", 1, linkError("ecc_data")).
			renamed("DCGM_FI_DEV_NVLINK_ECC_ERROR_TOTAL"),
		counter(1400, "DCGM_FI_DEV_C2C_LINK_ERROR_INTR", 1, `nvidia_gpu_c2c_errors_total{type="crc"}`),
		counter(1401, "DCGM_FI_DEV_C2C_LINK_ERROR_REPLAY", 1, `nvidia_gpu_c2c_errors_total{type="replay"}`),
		counter(1402, "DCGM_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B", 1,
			`nvidia_gpu_c2c_errors_total{type="replay_back_to_back"}`),
	}, linkFields())
}

func linkErrors(number int, name, kind string) Field {
	return counter(number, "DCGM_FI_DEV_NVLINK_"+name+"_ERROR_COUNT_TOTAL", 1, linkError(kind)).
		renamed("DCGM_FI_DEV_NVLINK_" + name + "_ERROR_TOTAL")
}

func linkError(kind string) string { return `nvidia_gpu_nvlink_errors_total{type="` + kind + `"}` }

func recoveries(result string) string {
	return `nvidia_gpu_nvlink_recoveries_total{result="` + result + `"}`
}

// dcgmLinks is the number of links with fields of their own.
const dcgmLinks = 18

// linkFields are the fields of single links. Their numbers were assigned in three steps, with the links of new GPUs.
func linkFields() (fields []Field) {
	number := func(link int, of ...int) int { // of links 0, 6, 12 and 15
		step := min(link/6, 2) + link/15
		return of[step] + link - []int{0, 6, 12, 15}[step]
	}
	for link := range dcgmLinks {
		n := strconv.Itoa(link)
		of := `{link="` + n + `"`
		sent := "nvidia_gpu_nvlink_link_transmit_bytes_total" + of + "}"
		got := "nvidia_gpu_nvlink_link_receive_bytes_total" + of + "}"
		errors := "nvidia_gpu_nvlink_link_errors_total" + of + `,type="`
		fields = append(fields,
			counter(number(link, 420, 463, 426, 487), "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L"+n, 1,
				errors+`replay"}`).renamed("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_L"+n+"_TOTAL").noted(onlyHopper),
			counter(number(link, 430, 469, 436, 491), "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L"+n, 1,
				errors+`recovery"}`).renamed("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_L"+n+"_TOTAL").noted(onlyHopper),
			gauge(number(link, 440, 475, 446, 494), "DCGM_FI_DEV_NVLINK_BANDWIDTH_L"+n, dcgmMegabytes, sent, got).
				rate().rebased(1630+link, "DCGM_FI_DEV_NVLINK_THROUGHPUT_L"+n+"_BYTES_PER_SECOND", 1).
				alias("DCGM_FI_DEV_NVLINK_THROUGHPUT_L"+n),
			gauge(825+link, "DCGM_FI_DEV_NVLINK_TX_BANDWIDTH_L"+n, dcgmMegabytes, sent).rate().
				renamed("DCGM_FI_DEV_NVLINK_TX_THROUGHPUT_L"+n),
			gauge(879+link, "DCGM_FI_DEV_NVLINK_RX_BANDWIDTH_L"+n, dcgmMegabytes, got).rate().
				renamed("DCGM_FI_DEV_NVLINK_RX_THROUGHPUT_L"+n),
			gauge(1040+2*link, "DCGM_FI_PROF_NVLINK_L"+n+"_TX_BYTES", 1, sent).rate().noted(payload),
			gauge(1041+2*link, "DCGM_FI_PROF_NVLINK_L"+n+"_RX_BYTES", 1, got).rate().noted(payload))
	}
	return fields
}

func profiles() []Field {
	return []Field{
		gauge(1001, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1, "nvidia_gpu_graphics_engine_active_ratio").own().
			renamed("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO").alias("dcgm_fi_prof_gr_engine_active").
			byDefault("Ratio of time the graphics engine is active.", ""),
		gauge(1002, "DCGM_FI_PROF_SM_ACTIVE", 1, "nvidia_gpu_sm_active_ratio").own().
			renamed("DCGM_FI_PROF_SM_UTIL_RATIO").alias("dcgm_fi_prof_sm_active"),
		gauge(1003, "DCGM_FI_PROF_SM_OCCUPANCY", 1, "nvidia_gpu_sm_occupancy_ratio").own().
			renamed("DCGM_FI_PROF_SM_OCCUPANCY_RATIO").alias("dcgm_fi_prof_sm_occupancy"),
		pipe(1004, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO", "tensor").
			alias("dcgm_fi_prof_pipe_tensor_active").byDefault("Ratio of cycles the tensor (HMMA) pipe is active.", ""),
		gauge(1005, "DCGM_FI_PROF_DRAM_ACTIVE", 1, "nvidia_gpu_dram_bandwidth_utilization_ratio").own().
			renamed("DCGM_FI_PROF_DRAM_UTIL_RATIO").alias("dcgm_fi_prof_dram_active").
			byDefault("Ratio of cycles the device memory interface is active sending or receiving data.", ""),
		pipe(1006, "DCGM_FI_PROF_PIPE_FP64_ACTIVE", "DCGM_FI_PROF_FP64_UTIL_RATIO", "fp64"),
		pipe(1007, "DCGM_FI_PROF_PIPE_FP32_ACTIVE", "DCGM_FI_PROF_FP32_UTIL_RATIO", "fp32"),
		pipe(1008, "DCGM_FI_PROF_PIPE_FP16_ACTIVE", "DCGM_FI_PROF_FP16_UTIL_RATIO", "fp16"),
		gauge(1009, "DCGM_FI_PROF_PCIE_TX_BYTES", 1, "nvidia_gpu_pcie_transmit_bytes_total").rate().
			alias("dcgm_fi_prof_pcie_tx_bytes").
			byDefault("The rate of data transmitted over the PCIe bus - including both protocol headers and data "+
				"payloads - in bytes per second.", ""),
		gauge(1010, "DCGM_FI_PROF_PCIE_RX_BYTES", 1, "nvidia_gpu_pcie_receive_bytes_total").rate().
			alias("dcgm_fi_prof_pcie_rx_bytes").
			byDefault("The rate of data received over the PCIe bus - including both protocol headers and data "+
				"payloads - in bytes per second.", ""),
		gauge(1011, "DCGM_FI_PROF_NVLINK_TX_BYTES", 1, transmitted).rate().noted(payload),
		gauge(1012, "DCGM_FI_PROF_NVLINK_RX_BYTES", 1, received).rate().noted(payload),
		pipe(1013, "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", "DCGM_FI_PROF_IMMA_UTIL_RATIO", "imma"),
		pipe(1014, "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", "DCGM_FI_PROF_HMMA_UTIL_RATIO", "hmma"),
		pipe(1015, "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", "DCGM_FI_PROF_DFMA_UTIL_RATIO", "dfma"),
		pipe(1016, "DCGM_FI_PROF_PIPE_INT_ACTIVE", "DCGM_FI_PROF_INT_UTIL_RATIO", "int"),
		counter(1091, "DCGM_FI_PROF_PCIE_TX_BYTES_TOTAL", 1, "nvidia_gpu_pcie_transmit_bytes_total"),
		counter(1092, "DCGM_FI_PROF_PCIE_RX_BYTES_TOTAL", 1, "nvidia_gpu_pcie_receive_bytes_total"),
	}
}

func pipe(number int, name, name49, unit string) Field {
	return gauge(number, name, 1, `nvidia_gpu_pipe_active_ratio{pipe="`+unit+`"}`).own().renamed(name49)
}
