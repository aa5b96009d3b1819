package nvml

// The helps that several rows share, and what they are had on.
const (
	videoHelp = " in the driver's last sampling period. Not in MIG mode."
	pipeHelp  = "Share of cycles in the latest window of ten seconds in which the pipe was active, over all multiprocessors."
	hopper    = "Hopper and newer"
)

var engineRows = []row{
	gauge("nvidia_gpu_utilization_ratio", "Share of the driver's last sampling period, 1/6 to 1 s, in which a kernel ran. Not in MIG mode.").
		asked(busy, inPercent),
	gauge("nvidia_gpu_memory_controller_utilization_ratio", "Share of the driver's last sampling period in which memory was read or written. Not in MIG mode.").
		asked(memoryBusy, inPercent),
	gauge("nvidia_gpu_encoder_utilization_ratio", "How busy the video encoders were"+videoHelp).asked(encoderBusy, inPercent),
	gauge("nvidia_gpu_decoder_utilization_ratio", "How busy the video decoders were"+videoHelp).asked(decoderBusy, inPercent),
	gauge("nvidia_gpu_jpeg_utilization_ratio", "How busy the JPEG decoders were"+videoHelp).
		asked(jpegBusy, inPercent).on("Ampere and newer"),
	gauge("nvidia_gpu_ofa_utilization_ratio", "How busy the optical flow accelerator was"+videoHelp).
		asked(ofaBusy, inPercent).on("Turing and newer"),
	gauge("nvidia_gpu_graphics_engine_active_ratio", "Share of time in the latest window of ten seconds in which the graphics or compute engine was active.").
		asked(gpmGraphics, inCycles).on(hopper),
	gauge("nvidia_gpu_sm_active_ratio", "Share of cycles in the latest window of ten seconds in which a multiprocessor had a warp, over all multiprocessors.").
		asked(gpmSM, inCycles).on(hopper),
	gauge("nvidia_gpu_sm_occupancy_ratio", "Warps on the multiprocessors in the latest window of ten seconds, as a share of those that fit.").
		asked(gpmOccupancy, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "tensor").asked(gpmTensor, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "dfma").asked(gpmDFMA, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "hmma").asked(gpmHMMA, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "imma").asked(gpmIMMA, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp64").asked(gpmFP64, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp32").asked(gpmFP32, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "fp16").asked(gpmFP16, inCycles).on(hopper),
	gauge("nvidia_gpu_pipe_active_ratio", pipeHelp, "pipe", "int").asked(gpmInteger, inCycles).on(hopper),
	gauge("nvidia_gpu_dram_bandwidth_utilization_ratio", "Memory bandwidth used in the latest window of ten seconds, as a share of what there is.").
		asked(gpmDRAM, inCycles).on(hopper),
}
