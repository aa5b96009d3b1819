package metric

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// The helps that several rows share, and what they are had on.
const (
	videoHelp = " in the driver's last sampling period. Not in MIG mode."
	pipeHelp  = "Share of cycles in the latest window of ten seconds in which the pipe was active, over all multiprocessors."
	hopper    = "Hopper and newer"
)

var engineRows = []Row{
	gaugeRow("nvidia_gpu_utilization_ratio", "Share of the driver's last sampling period, 1/6 to 1 s, in which a kernel ran. Not in MIG mode.").
		fromCall(gpuUtilization, inPercent),
	gaugeRow("nvidia_gpu_memory_controller_utilization_ratio", "Share of the driver's last sampling period in which memory was read or written. Not in MIG mode.").
		fromCall(memoryUtilization, inPercent),
	gaugeRow("nvidia_gpu_encoder_utilization_ratio", "How busy the video encoders were"+videoHelp).fromCall(encoderUtilization, inPercent),
	gaugeRow("nvidia_gpu_decoder_utilization_ratio", "How busy the video decoders were"+videoHelp).fromCall(decoderUtilization, inPercent),
	gaugeRow("nvidia_gpu_jpeg_utilization_ratio", "How busy the JPEG decoders were"+videoHelp).
		fromCall(jpegUtilization, inPercent).onHardware("Ampere and newer"),
	gaugeRow("nvidia_gpu_ofa_utilization_ratio", "How busy the optical flow accelerator was"+videoHelp).
		fromCall(ofaUtilization, inPercent).onHardware("Turing and newer"),
	gaugeRow("nvidia_gpu_graphics_engine_active_ratio", "Share of time in the latest window of ten seconds in which the graphics or compute engine was active.").
		fromCall(GPMGraphics, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_sm_active_ratio", "Share of cycles in the latest window of ten seconds in which a multiprocessor had a warp, over all multiprocessors.").
		fromCall(GPMSM, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_sm_occupancy_ratio", "Warps on the multiprocessors in the latest window of ten seconds, as a share of those that fit.").
		fromCall(gpmOccupancy, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "tensor").fromCall(gpmTensor, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "dfma").fromCall(gpmDFMA, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "hmma").fromCall(gpmHMMA, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "imma").fromCall(gpmIMMA, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp64").fromCall(gpmFP64, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp32").fromCall(gpmFP32, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp16").fromCall(gpmFP16, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "int").fromCall(gpmInteger, inCyclePercent).onHardware(hopper),
	gaugeRow("nvidia_gpu_dram_bandwidth_utilization_ratio", "Memory bandwidth used in the latest window of ten seconds, as a share of what there is.").
		fromCall(gpmDRAM, inCyclePercent).onHardware(hopper),
}

// GPMIDs are the metrics, in the order of the slots from gpmGraphics on.
var GPMIDs = [...]nvml.GpmMetricId{
	nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_INTEGER_UTIL,
	nvml.GPM_METRIC_ANY_TENSOR_UTIL, nvml.GPM_METRIC_DFMA_TENSOR_UTIL, nvml.GPM_METRIC_HMMA_TENSOR_UTIL,
	nvml.GPM_METRIC_IMMA_TENSOR_UTIL, nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_FP64_UTIL,
	nvml.GPM_METRIC_FP32_UTIL, nvml.GPM_METRIC_FP16_UTIL,
}
