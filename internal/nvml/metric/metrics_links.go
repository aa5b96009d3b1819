package metric

import (
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	linkErrorsHelp   = "NVLink errors of this type, over all links; types depend on the NVLink generation."
	c2cErrorsHelp    = "C2C (GPU-to-CPU) link errors of this type, over all links."
	recoveriesHelp   = "NVLink recoveries by result, over all links."
	fabricStateHelp  = "1 for the current state of joining the NVSwitch fabric; CUDA needs completed."
	fabricFaultHelp  = "1 if the driver reports this NVSwitch fabric fault."
	voltaToHopper    = "Volta to Hopper"
	blackwell        = "Blackwell and newer"
	withNVLink       = "with NVLink"
	withNVSwitch     = "Hopper and newer with NVSwitches"
	maxNVLinkRate    = 4e12 // bytes in a second over all links of a GPU: more than there are
	maxLinkErrorRate = 1e6  // errors, likewise: above any working link
)

var linkRows = slices.Concat([]Row{
	ownerCounterRow("nvidia_gpu_nvlink_transmit_bytes_total", "Data sent over all NVLinks, by owner, in bytes.").
		fromScope(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks, inKibibytes).
		sumNVLinks(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, inByteCount).counterUpTo(maxNVLinkRate).
		onHardware(withNVLink).inDefault(),
	ownerCounterRow("nvidia_gpu_nvlink_receive_bytes_total",
		"Data received over all NVLinks, by owner, in bytes.").
		fromScope(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks, inKibibytes).
		sumNVLinks(nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, inByteCount).counterUpTo(maxNVLinkRate).
		onHardware(withNVLink).inDefault(),
	stateRow("nvidia_gpu_nvlink_links", "Number of NVLinks of the GPU.").
		fromField(nvml.FI_DEV_NVLINK_LINK_COUNT, inCount).slowPace().onHardware(withNVLink).inDefault(),
	stateRow("nvidia_gpu_nvlink_links_up",
		"Number of NVLinks that are active or asleep; links with disabled traffic are down.").
		sumNVLinks(nvml.FI_DEV_NVLINK_GET_STATE, inLinkState).slowPace().onHardware(withNVLink).inDefault(),
	stateRow("nvidia_gpu_nvlink_speed_bytes_per_second", "Speed of each active NVLink, in bytes per second.").
		fromField(nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON, inMegabytes).slowPace().onHardware(withNVLink).inDefault(),
}, linkErrorRows(), familyRows(faultCounterRow("nvidia_gpu_nvlink_recoveries_total", recoveriesHelp).
	counterUpTo(maxLinkErrorRate).slowPace().onHardware(blackwell), "result", Row.sumNVLinks, inCount,
	labeledField{"success", nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS},
	labeledField{"failure", nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS},
), []Row{
	faultCounterRow("nvidia_gpu_nvlink_symbol_errors_total",
		"NVLink symbol errors over all links; most are corrected.").
		sumNVLinks(nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
			inCount).counterUpTo(maxLinkErrorRate).slowPace().onHardware(blackwell),
	faultCounterRow("nvidia_gpu_nvlink_effective_errors_total", "NVLink errors left after correction, over all links.").
		sumNVLinks(nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
			inCount).counterUpTo(maxLinkErrorRate).slowPace().onHardware(blackwell),
},
	enumRows(stateRow("nvidia_gpu_fabric_state", fabricStateHelp).
		fromCall(fabricState, inCount).onHardware(withNVSwitch).inDefault().always("completed"),
		"state", []string{"not_started", "in_progress", "completed"}, nvml.GPU_FABRIC_STATE_NOT_STARTED, true),
	[]Row{
		stateRow("nvidia_gpu_fabric_healthy",
			"1 if the GPU has joined the NVSwitch fabric without faults; absent until the GPU has joined.").
			fromCall(fabricHealthy, inBool).onHardware(withNVSwitch).inDefault(),
	}, familyRows(stateRow("nvidia_gpu_fabric_fault", fabricFaultHelp).
		onHardware(withNVSwitch), "fault", Row.fromCall, inBool,
		labeledValue{"degraded_bandwidth", fabricDegradedBandwidth},
		labeledValue{"route_recovery", fabricRouteRecovery},
		labeledValue{"route_unhealthy", fabricRouteUnhealthy},
		labeledValue{"access_timeout_recovery", fabricAccessTimeout},
		labeledValue{"incorrect_configuration", fabricMisconfigured},
	), []Row{
		stateRow("nvidia_gpu_c2c_links", "Number of C2C (GPU-to-CPU) links.").
			fromField(nvml.FI_DEV_C2C_LINK_COUNT, inCount).slowPace().onHardware(grace),
		stateRow("nvidia_gpu_c2c_links_up", "Number of active C2C links.").
			sumC2CLinks(nvml.FI_DEV_C2C_LINK_GET_STATUS, inBool).slowPace().onHardware(grace),
		stateRow("nvidia_gpu_c2c_bandwidth_max_bytes_per_second",
			"Total bandwidth of the active C2C links, in bytes per second.").
			sumC2CLinks(nvml.FI_DEV_C2C_LINK_GET_MAX_BW, inMegabytes).slowPace().onHardware(grace),
	}, familyRows(faultCounterRow("nvidia_gpu_c2c_errors_total", c2cErrorsHelp).
		counterUpTo(maxLinkErrorRate).slowPace().onHardware(grace), "type", Row.sumC2CLinks, inCount,
		labeledField{"crc", nvml.FI_DEV_C2C_LINK_ERROR_INTR},
		labeledField{"replay", nvml.FI_DEV_C2C_LINK_ERROR_REPLAY},
		labeledField{"replay_back_to_back", nvml.FI_DEV_C2C_LINK_ERROR_REPLAY_B2B},
	))

// linkErrors are the types of NVLink errors. Older GPUs count them over all
// links, newer ones by link: 0 is no such counter.
var linkErrors = [...]struct {
	kind, hardware, perLinkHardware string
	total, perLink                  uint32 // fields
}{
	{"crc_flit", voltaToHopper, "", nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0},
	{"crc_data", voltaToHopper, "", nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0},
	{"ecc_data", "Ampere and Hopper", "", nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, 0},
	{
		"replay", voltaToHopper, "Hopper", nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY,
	},
	{
		"recovery", voltaToHopper, "Hopper", nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY,
	},
	{"crc", "Hopper", "Hopper", 0, nvml.FI_DEV_NVLINK_ERROR_DL_CRC},
	{"malformed_packet", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS},
	{"buffer_overrun", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS},
	{"receive", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS},
	{"receive_remote", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS},
	{"receive_general", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS},
	{"local_link_integrity", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS},
	{"transmit_discard", blackwell, blackwell, 0, nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS},
}

// linkErrorRows returns the errors over all links.
func linkErrorRows() (rows []Row) {
	for _, e := range linkErrors {
		r := faultCounterRow("nvidia_gpu_nvlink_errors_total", linkErrorsHelp, "type", e.kind).
			counterUpTo(maxLinkErrorRate).slowPace().inDefault().onHardware(e.hardware)
		if e.total != 0 {
			r = r.fromField(e.total, inCount)
		}
		if e.perLink != 0 {
			r = r.sumNVLinks(e.perLink, inCount)
		}
		rows = append(rows, r)
	}
	return rows
}

// perLinkRows are families of single links, with separate names against double
// counting in sums.
func perLinkRows() []Row {
	var transmit, receive, errors, up []Row
	for link := range uint32(MaxNVLinks) {
		n := strconv.Itoa(int(link))
		sent := ownerCounterRow("nvidia_gpu_nvlink_link_transmit_bytes_total",
			"Data sent over this NVLink, by owner, in bytes.", "link", n)
		got := ownerCounterRow("nvidia_gpu_nvlink_link_receive_bytes_total",
			"Data received over this NVLink, by owner, in bytes.", "link", n)
		transmit = append(transmit, sent.fromLink(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, link, inByteCount).
			fromLink(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, link,
				inKibibytes).counterUpTo(maxNVLinkRate).onHardware(withNVLink))
		receive = append(receive, got.fromLink(nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, link, inByteCount).
			fromLink(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, link,
				inKibibytes).counterUpTo(maxNVLinkRate).onHardware(withNVLink))
		for _, e := range linkErrors {
			if e.perLink != 0 {
				errors = append(errors, faultCounterRow("nvidia_gpu_nvlink_link_errors_total",
					"Errors of this type on this NVLink; types depend on the NVLink generation.",
					"link", n, "type", e.kind).
					fromLink(e.perLink, link, inCount).slowPace().onHardware(e.perLinkHardware))
			}
		}
		up = append(up, stateRow("nvidia_gpu_nvlink_up",
			"1 if the NVLink is active or asleep; 0 if inactive or with disabled traffic.", "link", n).
			fromLink(nvml.FI_DEV_NVLINK_GET_STATE, link, inLinkState).slowPace().onHardware(withNVLink))
	}
	return slices.Concat(transmit, receive, errors, up)
}
