package metric

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

const (
	pcieErrorsHelp = "PCIe link errors of this type."
	// maxPCIeRate is more bytes than cross a PCIe link of 16 lanes in a second,
	// of the seventh generation.
	maxPCIeRate = 256e9
)

var pcieRows = slices.Concat([]Row{
	ownerCounterRow("nvidia_gpu_pcie_transmit_bytes_total", "Data sent over PCIe, by owner, in bytes.").
		fromField(nvml.FI_DEV_PCIE_COUNT_TX_BYTES, inByteCount).counterUpTo(maxPCIeRate).inDefault(),
	ownerCounterRow("nvidia_gpu_pcie_receive_bytes_total", "Data received over PCIe, by owner, in bytes.").
		fromField(nvml.FI_DEV_PCIE_COUNT_RX_BYTES, inByteCount).counterUpTo(maxPCIeRate).inDefault(),
	faultCounterRow("nvidia_gpu_pcie_replays_total", "PCIe packet replays.").
		fromField(nvml.FI_DEV_PCIE_REPLAY_COUNTER, inCount).slowPace().inDefault(),
	faultCounterRow("nvidia_gpu_pcie_replay_rollovers_total",
		"PCIe link retrainings after repeated replays of a packet.").
		fromField(nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, inCount).slowPace(),
}, familyRows(faultCounterRow("nvidia_gpu_pcie_errors_total", pcieErrorsHelp).
	slowPace().onHardware("Hopper and newer; some types on older GPUs").inDefault(), "type", Row.fromField, inCount,
	labeledField{"l0_to_recovery", nvml.FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER},
	labeledField{"correctable", nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS},
	labeledField{"nak_received", nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED},
	labeledField{"receiver", nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR},
	labeledField{"bad_tlp", nvml.FI_DEV_PCIE_COUNT_BAD_TLP},
	labeledField{"nak_sent", nvml.FI_DEV_PCIE_COUNT_NAKS_SENT},
	labeledField{"bad_dllp", nvml.FI_DEV_PCIE_COUNT_BAD_DLLP},
	labeledField{"non_fatal", nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR},
	labeledField{"fatal", nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR},
	labeledField{"unsupported_request", nvml.FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ},
	labeledField{"lcrc", nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR},
	labeledField{"lane", nvml.FI_DEV_PCIE_COUNT_LANE_ERROR},
), []Row{
	stateRow("nvidia_gpu_pcie_link_generation", "Current PCIe generation of the link; lower while the GPU is idle.").
		fromFunction("nvmlDeviceGetCurrPcieLinkGeneration", device.PaceSlow, inCount,
			getter(nvml.Device.GetCurrPcieLinkGeneration)).inDefault(),
	stateRow("nvidia_gpu_pcie_link_width", "Current number of lanes of the PCIe link.").
		fromFunction("nvmlDeviceGetCurrPcieLinkWidth", device.PaceSlow, inCount,
			getter(nvml.Device.GetCurrPcieLinkWidth)).
		inDefault(),
	stateRow("nvidia_gpu_pcie_link_generation_max", "Maximum PCIe generation that GPU and slot support.").
		fromFunction("nvmlDeviceGetMaxPcieLinkGeneration", device.PaceStatic, inCount,
			getter(nvml.Device.GetMaxPcieLinkGeneration)).inDefault(),
	stateRow("nvidia_gpu_pcie_link_width_max", "Maximum number of PCIe lanes that GPU and slot support.").
		fromFunction("nvmlDeviceGetMaxPcieLinkWidth", device.PaceStatic, inCount,
			getter(nvml.Device.GetMaxPcieLinkWidth)).
		inDefault(),
})
