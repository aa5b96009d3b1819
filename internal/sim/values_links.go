package sim

import "time"

// linkRules have NVLinks, the NVSwitch fabric and the link to the CPU.
var linkRules = []valueRule{
	{"nvidia_gpu_nvlink_transmit_bytes_total", "", featureNVLink, totalLinkBytes},
	{"nvidia_gpu_nvlink_receive_bytes_total", "", featureNVLink, totalLinkBytes},
	{"nvidia_gpu_nvlink_link_transmit_bytes_total", "", featureNVLink, singleLinkBytes},
	{"nvidia_gpu_nvlink_link_receive_bytes_total", "", featureNVLink, singleLinkBytes},
	{"nvidia_gpu_nvlink_links", "", featureNVLink, fromModel(func(m *Model) float64 { return float64(m.nvlinks) })},
	{"nvidia_gpu_nvlink_links_up", "", featureNVLink, fromModel(func(m *Model) float64 { return float64(m.nvlinks) })},
	{"nvidia_gpu_nvlink_up", "", featureNVLink, constant(1)},
	{"nvidia_gpu_nvlink_speed_bytes_per_second", "", featureNVLink, fromModel(func(m *Model) float64 { return m.nvlinkBytes })},
	{"nvidia_gpu_nvlink_errors_total", `type="crc_flit|crc_data|replay|recovery"`, featureNVLinkErrorsToHopper, constant(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="ecc_data"`, featureNVLinkErrorsAmpere, constant(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="crc"`, featureNVLinkErrorsHopper, constant(0)},
	{"nvidia_gpu_nvlink_link_errors_total", `type="replay|recovery|crc"`, featureNVLinkErrorsToHopper, constant(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="malformed_packet|buffer_overrun|receive|receive_remote|receive_general|local_link_integrity|transmit_discard"`, featureNVLinkErrorsBlackwell, constant(0)},
	{"nvidia_gpu_nvlink_link_errors_total", "", featureNVLinkErrorsBlackwell, constant(0)},
	{"nvidia_gpu_nvlink_recoveries_total", "", featureNVLinkErrorsBlackwell, constant(0)},
	{"nvidia_gpu_nvlink_symbol_errors_total", "", featureNVLinkErrorsBlackwell, perLoadSecond(func(*Model) float64 { return 0.1 })},
	{"nvidia_gpu_nvlink_effective_errors_total", "", featureNVLinkErrorsBlackwell, constant(0)},

	{"nvidia_gpu_fabric_state", `state="completed"`, featureFabric, constant(1)},
	{"nvidia_gpu_fabric_state", "", featureFabric, constant(0)},
	{"nvidia_gpu_fabric_healthy", "", featureFabric, constant(1)},
	{"nvidia_gpu_fabric_fault", "", featureFabric, constant(0)},

	{"nvidia_gpu_c2c_links", "", featureC2C, constant(2)},
	{"nvidia_gpu_c2c_links_up", "", featureC2C, constant(2)},
	{"nvidia_gpu_c2c_bandwidth_max_bytes_per_second", "", featureC2C, constant(2 * 447.12e9)},
	{"nvidia_gpu_c2c_errors_total", "", featureC2C, constant(0)},
}

// singleLinkBytes assumes a third of the bandwidth at full load.
func singleLinkBytes(g *simGPU, now time.Time) float64 {
	return g.model.nvlinkBytes / 3 * g.totalLoadSeconds(now)
}

func totalLinkBytes(g *simGPU, now time.Time) float64 {
	return float64(g.model.nvlinks) * singleLinkBytes(g, now)
}
