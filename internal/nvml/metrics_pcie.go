package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

const (
	pcieErrorsHelp = "Errors on the PCIe link, as the GPU counts them; also how often the link had to recover, and packets that were refused."
	// mostPCIe is more bytes than cross a PCIe link of 16 lanes in a second, of the
	// seventh generation.
	mostPCIe = 256e9
	// Where they were first seen.
	hopperEra = "Hopper and newer; older ones with newer drivers have some"
)

var pcieRows = []row{
	use("nvidia_gpu_pcie_transmit_bytes_total",
		"What the GPU sent over PCIe while this container, or nobody, held it; from 0 at podgauge's first reading.").
		in(nvml.FI_DEV_PCIE_COUNT_TX_BYTES, inTraffic).metering(mostPCIe),
	use("nvidia_gpu_pcie_receive_bytes_total",
		"What the GPU received over PCIe while this container, or nobody, held it; from 0 at podgauge's first reading.").
		in(nvml.FI_DEV_PCIE_COUNT_RX_BYTES, inTraffic).metering(mostPCIe),
	fault("nvidia_gpu_pcie_replays_total", "PCIe packets that had to be sent again.").in(nvml.FI_DEV_PCIE_REPLAY_COUNTER, inNumber).slowly(),
	fault("nvidia_gpu_pcie_replay_rollovers_total", "How often the link was trained anew, since a PCIe packet was sent again and again.").
		in(nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, inNumber).slowly(),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "l0_to_recovery").in(nvml.FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "correctable").in(nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "nak_received").in(nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "receiver").in(nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "bad_tlp").in(nvml.FI_DEV_PCIE_COUNT_BAD_TLP, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "nak_sent").in(nvml.FI_DEV_PCIE_COUNT_NAKS_SENT, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "bad_dllp").in(nvml.FI_DEV_PCIE_COUNT_BAD_DLLP, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "non_fatal").in(nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "fatal").in(nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "unsupported_request").in(nvml.FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "lcrc").in(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, inNumber).slowly().on(hopperEra),
	fault("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "lane").in(nvml.FI_DEV_PCIE_COUNT_LANE_ERROR, inNumber).slowly().on(hopperEra),
	fact("nvidia_gpu_pcie_link_generation", "Generation of PCIe that the link runs at now; idle GPUs lower it.").asked(pcieGeneration, inNumber),
	fact("nvidia_gpu_pcie_link_width", "Lanes that the PCIe link has now.").asked(pcieWidth, inNumber),
	fact("nvidia_gpu_pcie_link_generation_max", "Generation of PCIe that the GPU and its slot can run at.").asked(pcieGenerationMost, inNumber),
	fact("nvidia_gpu_pcie_link_width_max", "Lanes that the GPU and its slot have.").asked(pcieWidthMost, inNumber),
}
