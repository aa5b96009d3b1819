package nvml

import (
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	linkErrorsHelp   = "Errors on the GPU's NVLinks, all links together; which types there are depends on their generation."
	c2cErrorsHelp    = "Errors on the GPU's links to its CPU, all together."
	recoveriesHelp   = "How often an NVLink that was up had to recover, all links together."
	fabricStateHelp  = "How far the GPU is with joining the fabric of NVSwitches; CUDA starts only when that is completed."
	fabricFaultHelp  = "What ails the GPU's place in the fabric; only what the driver can tell."
	upToHopper       = "Volta to Hopper"
	blackwell        = "Blackwell and newer"
	withNVLink       = "GPUs with NVLink"
	withNVSwitch     = "Hopper and newer, with NVSwitches"
	mostNVLinks      = 4e12 // bytes in a second over all links of a GPU: more than there are
	mostLinkTroubles = 1e6  // errors, likewise: with more of them nothing gets through
)

var fabricStates = []uint32{nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS, nvml.GPU_FABRIC_STATE_COMPLETED}

var linkRows = slices.Concat([]row{
	use("nvidia_gpu_nvlink_transmit_bytes_total",
		"Data that the GPU sent over its NVLinks while this container, or nobody, held it; from 0 at podgauge's first reading.").
		inScope(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, all, inKibibytes).
		overLinks(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, inTraffic).metering(mostNVLinks).on(withNVLink),
	use("nvidia_gpu_nvlink_receive_bytes_total",
		"Data that the GPU received over its NVLinks while this container, or nobody, held it; from 0 at podgauge's first reading.").
		inScope(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, all, inKibibytes).
		overLinks(nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, inTraffic).metering(mostNVLinks).on(withNVLink),
	fact("nvidia_gpu_nvlink_links", "NVLinks that the GPU has.").in(nvml.FI_DEV_NVLINK_LINK_COUNT, inNumber).slowly().on(withNVLink),
	fact("nvidia_gpu_nvlink_links_up", "NVLinks of the GPU that are active or asleep. A link whose traffic is disabled is down.").
		overLinks(nvml.FI_DEV_NVLINK_GET_STATE, inLinkState).slowly().on(withNVLink),
	fact("nvidia_gpu_nvlink_speed_bytes_per_second", "Speed of each NVLink that is up.").
		in(nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON, inMegabytes).slowly().on(withNVLink),
	linkErrors("crc_flit").in(nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, inNumber).on(upToHopper),
	linkErrors("crc_data").in(nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, inNumber).on(upToHopper),
	linkErrors("ecc_data").in(nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, inNumber).on("Ampere and Hopper"),
	linkErrors("replay").in(nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, inNumber).
		overLinks(nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, inNumber).on(upToHopper),
	linkErrors("recovery").in(nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, inNumber).
		overLinks(nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, inNumber).on(upToHopper),
	linkErrors("crc").overLinks(nvml.FI_DEV_NVLINK_ERROR_DL_CRC, inNumber).on("Hopper"),
	linkErrors("malformed_packet").overLinks(nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, inNumber).on(blackwell),
	linkErrors("buffer_overrun").overLinks(nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, inNumber).on(blackwell),
	linkErrors("receive").overLinks(nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, inNumber).on(blackwell),
	linkErrors("receive_remote").overLinks(nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, inNumber).on(blackwell),
	linkErrors("receive_general").overLinks(nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, inNumber).on(blackwell),
	linkErrors("local_link_integrity").overLinks(nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, inNumber).on(blackwell),
	linkErrors("transmit_discard").overLinks(nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, inNumber).on(blackwell),
	fault("nvidia_gpu_nvlink_recoveries_total", recoveriesHelp, "result", "success").
		overLinks(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, inNumber).metering(mostLinkTroubles).slowly().on(blackwell),
	fault("nvidia_gpu_nvlink_recoveries_total", recoveriesHelp, "result", "failure").
		overLinks(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, inNumber).metering(mostLinkTroubles).slowly().on(blackwell),
	fault("nvidia_gpu_nvlink_symbol_errors_total", "Symbols that were received wrongly on NVLinks, all links together; most are corrected.").
		overLinks(nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, inNumber).metering(mostLinkTroubles).slowly().on(blackwell),
	fault("nvidia_gpu_nvlink_effective_errors_total", "Errors on NVLinks that were left after correction, all links together.").
		overLinks(nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, inNumber).metering(mostLinkTroubles).slowly().on(blackwell),
},
	stateSet("nvidia_gpu_fabric_state", fabricStateHelp, "state", []string{"not_started", "in_progress", "completed"}, fabricStates,
		func(r row) row { return r.asked(fabricState, inNumber).on(withNVSwitch) }),
	[]row{
		fact("nvidia_gpu_fabric_healthy", "Whether the GPU has joined the fabric and the driver finds nothing wrong with that; absent until it has joined.").
			asked(fabricHealthy, inTruth).on(withNVSwitch),
		fact("nvidia_gpu_fabric_fault", fabricFaultHelp, "fault", "degraded_bandwidth").asked(fabricDegraded, inTruth).on(withNVSwitch),
		fact("nvidia_gpu_fabric_fault", fabricFaultHelp, "fault", "route_recovery").asked(fabricRecovery, inTruth).on(withNVSwitch),
		fact("nvidia_gpu_fabric_fault", fabricFaultHelp, "fault", "route_unhealthy").asked(fabricUnhealthy, inTruth).on(withNVSwitch),
		fact("nvidia_gpu_fabric_fault", fabricFaultHelp, "fault", "access_timeout_recovery").asked(fabricTimeout, inTruth).on(withNVSwitch),
		fact("nvidia_gpu_fabric_fault", fabricFaultHelp, "fault", "incorrect_configuration").asked(fabricMisled, inTruth).on(withNVSwitch),
		fact("nvidia_gpu_c2c_links", "Links that the GPU has to its CPU.").in(nvml.FI_DEV_C2C_LINK_COUNT, inNumber).slowly().on(grace),
		fact("nvidia_gpu_c2c_links_up", "Links of the GPU to its CPU that are up.").overC2C(nvml.FI_DEV_C2C_LINK_GET_STATUS, inTruth).slowly().on(grace),
		fact("nvidia_gpu_c2c_bandwidth_max_bytes_per_second", "What the links to the CPU that are up can carry together.").
			overC2C(nvml.FI_DEV_C2C_LINK_GET_MAX_BW, inMegabytes).slowly().on(grace),
		fault("nvidia_gpu_c2c_errors_total", c2cErrorsHelp, "type", "crc").overC2C(nvml.FI_DEV_C2C_LINK_ERROR_INTR, inNumber).metering(mostLinkTroubles).slowly().on(grace),
		fault("nvidia_gpu_c2c_errors_total", c2cErrorsHelp, "type", "replay").overC2C(nvml.FI_DEV_C2C_LINK_ERROR_REPLAY, inNumber).metering(mostLinkTroubles).slowly().on(grace),
		fault("nvidia_gpu_c2c_errors_total", c2cErrorsHelp, "type", "replay_back_to_back").overC2C(nvml.FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, inNumber).metering(mostLinkTroubles).slowly().on(grace),
	})

func linkErrors(kind string) row {
	return fault("nvidia_gpu_nvlink_errors_total", linkErrorsHelp, "type", kind).metering(mostLinkTroubles).slowly()
}

// eachLinkErrors are the types that are counted for each link.
var eachLinkErrors = [...]struct {
	kind, hardware string
	field          uint32
}{
	{"replay", "Hopper", nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY},
	{"recovery", "Hopper", nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY},
	{"crc", "Hopper", nvml.FI_DEV_NVLINK_ERROR_DL_CRC},
	{"malformed_packet", blackwell, nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS},
	{"buffer_overrun", blackwell, nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS},
	{"receive", blackwell, nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS},
	{"receive_remote", blackwell, nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS},
	{"receive_general", blackwell, nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS},
	{"local_link_integrity", blackwell, nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS},
	{"transmit_discard", blackwell, nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS},
}

// eachLinkRows are families of single links, which have names of their own, so that the
// sums of neither count anything twice.
func eachLinkRows() []row {
	var transmit, receive, errors, up []row
	for link := range uint32(mostLinks) {
		n := strconv.Itoa(int(link))
		sent := use("nvidia_gpu_nvlink_link_transmit_bytes_total", "Data that the GPU sent over the link; otherwise as nvidia_gpu_nvlink_transmit_bytes_total.", "link", n)
		got := use("nvidia_gpu_nvlink_link_receive_bytes_total", "Data that the GPU received over the link; otherwise as nvidia_gpu_nvlink_receive_bytes_total.", "link", n)
		transmit = append(transmit, sent.inLink(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, link, inTraffic).
			inLink(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link, inKibibytes).metering(mostNVLinks).on(withNVLink))
		receive = append(receive, got.inLink(nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, link, inTraffic).
			inLink(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, link, inKibibytes).metering(mostNVLinks).on(withNVLink))
		for _, e := range eachLinkErrors {
			errors = append(errors, fault("nvidia_gpu_nvlink_link_errors_total", "Errors on the NVLink; which types there are depends on its generation.", "link", n, "type", e.kind).
				inLink(e.field, link, inNumber).slowly().on(e.hardware))
		}
		up = append(up, fact("nvidia_gpu_nvlink_up", "1 if the NVLink is active or asleep, 0 if it is inactive or its traffic is disabled.", "link", n).
			inLink(nvml.FI_DEV_NVLINK_GET_STATE, link, inLinkState).slowly().on(withNVLink))
	}
	return slices.Concat(transmit, receive, errors, up)
}
