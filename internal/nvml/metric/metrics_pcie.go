package metric

import "github.com/NVIDIA/go-nvml/pkg/nvml"

const (
	pcieErrorsHelp = "Errors on the PCIe link, as the GPU counts them; also how often the link had to recover, and packets that were refused."
	// maxPCIeRate is more bytes than cross a PCIe link of 16 lanes in a second, of the
	// seventh generation.
	maxPCIeRate = 256e9
	// Where they were first seen.
	hopperAndSomeOlder = "Hopper and newer; older ones with newer drivers have some"
)

var pcieRows = []Row{
	ownerCounterRow("nvidia_gpu_pcie_transmit_bytes_total",
		"What the GPU sent over PCIe while this container, or nobody, held it; from 0 at podgauge's first reading.").
		fromField(nvml.FI_DEV_PCIE_COUNT_TX_BYTES, inByteCount).counterUpTo(maxPCIeRate),
	ownerCounterRow("nvidia_gpu_pcie_receive_bytes_total",
		"What the GPU received over PCIe while this container, or nobody, held it; from 0 at podgauge's first reading.").
		fromField(nvml.FI_DEV_PCIE_COUNT_RX_BYTES, inByteCount).counterUpTo(maxPCIeRate),
	faultCounterRow("nvidia_gpu_pcie_replays_total", "PCIe packets that had to be sent again.").fromField(nvml.FI_DEV_PCIE_REPLAY_COUNTER, inCount).slowPace(),
	faultCounterRow("nvidia_gpu_pcie_replay_rollovers_total", "How often the link was trained anew, since a PCIe packet was sent again and again.").
		fromField(nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, inCount).slowPace(),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "l0_to_recovery").fromField(nvml.FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "correctable").fromField(nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "nak_received").fromField(nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "receiver").fromField(nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "bad_tlp").fromField(nvml.FI_DEV_PCIE_COUNT_BAD_TLP, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "nak_sent").fromField(nvml.FI_DEV_PCIE_COUNT_NAKS_SENT, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "bad_dllp").fromField(nvml.FI_DEV_PCIE_COUNT_BAD_DLLP, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "non_fatal").fromField(nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "fatal").fromField(nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "unsupported_request").fromField(nvml.FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "lcrc").fromField(nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR, inCount).slowPace().onHardware(hopperAndSomeOlder),
	faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp, "type", "lane").fromField(nvml.FI_DEV_PCIE_COUNT_LANE_ERROR, inCount).slowPace().onHardware(hopperAndSomeOlder),
	stateRow("nvidia_gpu_pcie_link_generation", "Generation of PCIe that the link runs at now; idle GPUs lower it.").fromCall(pcieGeneration, inCount),
	stateRow("nvidia_gpu_pcie_link_width", "Lanes that the PCIe link has now.").fromCall(pcieWidth, inCount),
	stateRow("nvidia_gpu_pcie_link_generation_max", "Generation of PCIe that the GPU and its slot can run at.").fromCall(maxPCIeGeneration, inCount),
	stateRow("nvidia_gpu_pcie_link_width_max", "Lanes that the GPU and its slot have.").fromCall(maxPCIeWidth, inCount),
}
