package sim

import "time"

// links are of NVLinks, one by one and together, of the fabric behind them and of the
// link to the CPU.
var links = []made{
	{"nvidia_gpu_nvlink_transmit_bytes_total", "", nvlink, allLinks},
	{"nvidia_gpu_nvlink_receive_bytes_total", "", nvlink, allLinks},
	{"nvidia_gpu_nvlink_link_transmit_bytes_total", "", nvlink, oneLink},
	{"nvidia_gpu_nvlink_link_receive_bytes_total", "", nvlink, oneLink},
	{"nvidia_gpu_nvlink_links", "", nvlink, of(func(m *Model) float64 { return float64(m.nvlinks) })},
	{"nvidia_gpu_nvlink_links_up", "", nvlink, of(func(m *Model) float64 { return float64(m.nvlinks) })},
	{"nvidia_gpu_nvlink_up", "", nvlink, always(1)},
	{"nvidia_gpu_nvlink_speed_bytes_per_second", "", nvlink, of(func(m *Model) float64 { return m.nvlinkBytes })},
	{"nvidia_gpu_nvlink_errors_total", `type="crc_flit"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="crc_data"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="replay"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="recovery"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="ecc_data"`, nvlinkAmpere, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="crc"`, nvlinkHopper, always(0)},
	{"nvidia_gpu_nvlink_link_errors_total", `type="replay"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_link_errors_total", `type="recovery"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_link_errors_total", `type="crc"`, nvlinkToHopper, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="malformed_packet"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="buffer_overrun"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="receive"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="receive_remote"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="receive_general"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="local_link_integrity"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_errors_total", `type="transmit_discard"`, nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_link_errors_total", "", nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_recoveries_total", "", nvlinkBlackwell, always(0)},
	{"nvidia_gpu_nvlink_symbol_errors_total", "", nvlinkBlackwell, worked(func(*Model) float64 { return 0.1 })},
	{"nvidia_gpu_nvlink_effective_errors_total", "", nvlinkBlackwell, always(0)},

	{"nvidia_gpu_fabric_state", `state="completed"`, fabric, always(1)},
	{"nvidia_gpu_fabric_state", "", fabric, always(0)},
	{"nvidia_gpu_fabric_healthy", "", fabric, always(1)},
	{"nvidia_gpu_fabric_fault", "", fabric, always(0)},

	{"nvidia_gpu_c2c_links", "", c2c, always(2)},
	{"nvidia_gpu_c2c_links_up", "", c2c, always(2)},
	{"nvidia_gpu_c2c_bandwidth_max_bytes_per_second", "", c2c, always(2 * 447.12e9)},
	{"nvidia_gpu_c2c_errors_total", "", c2c, always(0)},
}

// A link carries a third of what it could when the GPU is busy.
func oneLink(g *gpu, now time.Time) float64 { return g.model.nvlinkBytes / 3 * g.workedSeconds(now) }

func allLinks(g *gpu, now time.Time) float64 { return float64(g.model.nvlinks) * oneLink(g, now) }
