package exporter

// DCGMField is a field of DCGM as a family of dcgm-exporter. Existing
// dashboards, alerts and autoscalers work with these during a migration.
type DCGMField struct {
	Number  int // DCGM_FI_* in dcgm_fields.h
	Name    string
	kind    dcgmKind
	scale   float64 // from podgauge's unit to dcgm-exporter's
	help    string
	Sources []string // names of rows, as device.Metric.RowName; the family is their sum
}

func field(number int, name string, kind dcgmKind, scale float64, help string, sources ...string) DCGMField {
	return DCGMField{number, name, kind, scale, help, sources}
}

// dcgmKind is the type of a family, and how it gets its value.
type dcgmKind uint8

const (
	ownGauge   dcgmKind = iota
	gpuGauge            // with the GPU's value on each MIG device
	gpuCounter          // likewise
	gpuRate             // the sum's increase per second, likewise
	xidGauge            // from the device's status
)

const (
	kibi = 1.0 / (1 << 10)
	mebi = 1.0 / (1 << 20)
)

const dcgmXidFamily = "DCGM_FI_DEV_XID_ERRORS"

// DCGMFields are the fields of dcgm-exporter's default-counters.csv available
// from NVML, with types and helps of that file
// (https://github.com/NVIDIA/dcgm-exporter, etc/, 4.8).
// DCGM_FI_DEV_VGPU_LICENSE_STATUS is left out: it exists in virtual machines
// only.
var DCGMFields = [...]DCGMField{
	field(230, dcgmXidFamily, xidGauge, 0, "Value of the last XID error encountered."),
	field(100, "DCGM_FI_DEV_SM_CLOCK", gpuGauge, 1e-6, "SM clock frequency (in MHz).", "nvidia_gpu_clock_hertz{sm}"),
	field(101, "DCGM_FI_DEV_MEM_CLOCK", gpuGauge, 1e-6,
		"Memory clock frequency (in MHz).", "nvidia_gpu_clock_hertz{memory}"),
	field(140, "DCGM_FI_DEV_MEMORY_TEMP", gpuGauge, 1,
		"Memory temperature (in C).", "nvidia_gpu_temperature_celsius{memory}"),
	field(150, "DCGM_FI_DEV_GPU_TEMP", gpuGauge, 1, "GPU temperature (in C).", "nvidia_gpu_temperature_celsius{gpu}"),
	field(155, "DCGM_FI_DEV_POWER_USAGE", gpuGauge, 1, "Power draw (in W).", "nvidia_gpu_power_watts"),
	field(156, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", gpuCounter, 1000,
		"Total energy consumption since boot (in mJ).", "nvidia_gpu_energy_joules_total"),
	field(202, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", gpuCounter, 1,
		"Total number of PCIe retries.", "nvidia_gpu_pcie_replays_total"),
	field(203, "DCGM_FI_DEV_GPU_UTIL", ownGauge, 100, "GPU utilization (in %).", "nvidia_gpu_utilization_ratio"),
	field(204, "DCGM_FI_DEV_MEM_COPY_UTIL", ownGauge, 100,
		"Memory utilization (in %).", "nvidia_gpu_memory_controller_utilization_ratio"),
	field(206, "DCGM_FI_DEV_ENC_UTIL", ownGauge, 100,
		"Encoder utilization (in %).", "nvidia_gpu_encoder_utilization_ratio"),
	field(207, "DCGM_FI_DEV_DEC_UTIL", ownGauge, 100,
		"Decoder utilization (in %).", "nvidia_gpu_decoder_utilization_ratio"),
	field(251, "DCGM_FI_DEV_FB_FREE", ownGauge, mebi,
		"Framebuffer memory free (in MiB).", "nvidia_gpu_memory_free_bytes"),
	field(252, "DCGM_FI_DEV_FB_USED", ownGauge, mebi,
		"Framebuffer memory used (in MiB).", "nvidia_gpu_memory_used_bytes"),
	field(253, "DCGM_FI_DEV_FB_RESERVED", ownGauge, mebi,
		"Framebuffer memory reserved (in MiB).", "nvidia_gpu_memory_reserved_bytes"),
	field(449, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", gpuCounter, kibi,
		"Total number of NVLink bandwidth counters for all lanes.",
		"nvidia_gpu_nvlink_transmit_bytes_total", "nvidia_gpu_nvlink_receive_bytes_total"),
	field(393, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", gpuCounter, 1,
		"Number of remapped rows for uncorrectable errors", "nvidia_gpu_remapped_rows{uncorrectable}"),
	field(394, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", gpuCounter, 1,
		"Number of remapped rows for correctable errors", "nvidia_gpu_remapped_rows{correctable}"),
	field(395, "DCGM_FI_DEV_ROW_REMAP_FAILURE", gpuGauge, 1,
		"Whether remapping of rows has failed", "nvidia_gpu_row_remap_failure"),
	field(1001, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", ownGauge, 1,
		"Ratio of time the graphics engine is active.", "nvidia_gpu_graphics_engine_active_ratio"),
	field(1004, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", ownGauge, 1,
		"Ratio of cycles the tensor (HMMA) pipe is active.", "nvidia_gpu_pipe_active_ratio{tensor}"),
	field(1005, "DCGM_FI_PROF_DRAM_ACTIVE", ownGauge, 1,
		"Ratio of cycles the device memory interface is active sending or receiving data.",
		"nvidia_gpu_dram_bandwidth_utilization_ratio"),
	field(1009, "DCGM_FI_PROF_PCIE_TX_BYTES", gpuRate, 1,
		"The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads "+
			"- in bytes per second.",
		"nvidia_gpu_pcie_transmit_bytes_total"),
	field(1010, "DCGM_FI_PROF_PCIE_RX_BYTES", gpuRate, 1,
		"The rate of data received over the PCIe bus - including both protocol headers and data payloads - "+
			"in bytes per second.",
		"nvidia_gpu_pcie_receive_bytes_total"),
}

func (f *DCGMField) family() Family {
	switch f.kind {
	case gpuCounter:
		return counter(full, f.Name, f.help)
	case xidGauge:
		return gauge(full, f.Name, f.help, "err_code", "err_msg")
	default:
		return gauge(full, f.Name, f.help)
	}
}
