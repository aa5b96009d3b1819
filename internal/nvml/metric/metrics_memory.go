package metric

var memoryRows = []Row{
	gaugeRow("nvidia_gpu_memory_total_bytes", "Total memory of the GPU.").fromCall(memoryTotal, inBytes),
	gaugeRow("nvidia_gpu_memory_reserved_bytes", "Memory reserved by driver and firmware.").fromCall(memoryReserved, inBytes),
	gaugeRow("nvidia_gpu_memory_used_bytes", "Memory in use, including reserved memory with drivers too old to tell them apart.").
		fromCall(memoryUsed, inBytes),
	gaugeRow("nvidia_gpu_memory_free_bytes", "Memory available for allocation.").fromCall(memoryFree, inBytes),
	gaugeRow("nvidia_gpu_bar1_memory_total_bytes", "Size of the BAR1 window for access to GPU memory by the CPU and other devices.").
		fromCall(bar1Total, inBytes),
	gaugeRow("nvidia_gpu_bar1_memory_used_bytes", "Mapped part of the BAR1 window.").fromCall(bar1Used, inBytes),
}
