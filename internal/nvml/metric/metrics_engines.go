package metric

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/podgauge/podgauge/internal/device"
)

// Shared parts of help texts.
const (
	videoHelp = "; absent in MIG mode."
	pipeHelp  = "Fraction of cycles with this pipe active, averaged over all SMs and 10 s."
)

var engineRows = []Row{
	gaugeRow("nvidia_gpu_utilization_ratio", "Fraction of time with a running kernel; absent in MIG mode.").
		fromCall(gpuUtilization, inPercent).inMinimal(),
	gaugeRow("nvidia_gpu_memory_controller_utilization_ratio",
		"Fraction of time with memory reads or writes; absent in MIG mode.").
		fromCall(memoryUtilization, inPercent),
	gaugeRow("nvidia_gpu_encoder_utilization_ratio", "Utilization of the video encoders"+videoHelp).
		fromFunction("nvmlDeviceGetEncoderUtilization", device.PaceFast, inPercent,
			utilization(nvml.Device.GetEncoderUtilization)),
	gaugeRow("nvidia_gpu_decoder_utilization_ratio", "Utilization of the video decoders"+videoHelp).
		fromFunction("nvmlDeviceGetDecoderUtilization", device.PaceFast, inPercent,
			utilization(nvml.Device.GetDecoderUtilization)),
	gaugeRow("nvidia_gpu_jpeg_utilization_ratio", "Utilization of the JPEG decoders"+videoHelp).
		fromFunction("nvmlDeviceGetJpgUtilization", device.PaceFast, inPercent,
			utilization(nvml.Device.GetJpgUtilization)).onHardware("Turing and newer"),
	gaugeRow("nvidia_gpu_ofa_utilization_ratio", "Utilization of the optical flow accelerator"+videoHelp).
		fromFunction("nvmlDeviceGetOfaUtilization", device.PaceFast, inPercent,
			utilization(nvml.Device.GetOfaUtilization)).onHardware("Turing and newer"),
	gaugeRow("nvidia_gpu_graphics_engine_active_ratio",
		"Fraction of the latest 10 s with the graphics or compute engine active.").
		fromGPM(nvml.GPM_METRIC_GRAPHICS_UTIL, "GRAPHICS_UTIL").inMinimal(),
	gaugeRow("nvidia_gpu_sm_active_ratio", "Fraction of cycles with a resident warp, averaged over all SMs and 10 s.").
		fromGPM(nvml.GPM_METRIC_SM_UTIL, "SM_UTIL").inDefault(),
	gaugeRow("nvidia_gpu_sm_occupancy_ratio", "Resident warps as a fraction of the maximum, averaged over 10 s.").
		fromGPM(nvml.GPM_METRIC_SM_OCCUPANCY, "SM_OCCUPANCY"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "tensor").
		fromGPM(nvml.GPM_METRIC_ANY_TENSOR_UTIL, "ANY_TENSOR_UTIL").inDefault(),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "dfma").
		fromGPM(nvml.GPM_METRIC_DFMA_TENSOR_UTIL, "DFMA_TENSOR_UTIL"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "hmma").
		fromGPM(nvml.GPM_METRIC_HMMA_TENSOR_UTIL, "HMMA_TENSOR_UTIL"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "imma").
		fromGPM(nvml.GPM_METRIC_IMMA_TENSOR_UTIL, "IMMA_TENSOR_UTIL"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp64").fromGPM(nvml.GPM_METRIC_FP64_UTIL, "FP64_UTIL"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp32").fromGPM(nvml.GPM_METRIC_FP32_UTIL, "FP32_UTIL"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp16").fromGPM(nvml.GPM_METRIC_FP16_UTIL, "FP16_UTIL"),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "int").
		fromGPM(nvml.GPM_METRIC_INTEGER_UTIL, "INTEGER_UTIL"),
	gaugeRow("nvidia_gpu_dram_bandwidth_utilization_ratio",
		"Fraction of the memory bandwidth in use, averaged over 10 s.").
		fromGPM(nvml.GPM_METRIC_DRAM_BW_UTIL, "DRAM_BW_UTIL").inDefault(),
}
