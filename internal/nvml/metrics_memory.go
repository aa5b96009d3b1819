package nvml

var memoryRows = []row{
	gauge("nvidia_gpu_memory_total_bytes", "Memory that the GPU has.").asked(memoryTotal, inBytes),
	gauge("nvidia_gpu_memory_reserved_bytes", "Memory that the driver and the firmware keep.").asked(memoryReserved, inBytes),
	gauge("nvidia_gpu_memory_used_bytes", "Memory in use; with what is reserved, where the driver is too old to tell them apart.").
		asked(memoryUsed, inBytes),
	gauge("nvidia_gpu_memory_free_bytes", "Memory that can be allocated.").asked(memoryFree, inBytes),
	gauge("nvidia_gpu_bar1_memory_total_bytes", "Size of the window through which the CPU and other devices reach the GPU's memory (BAR1).").
		asked(bar1Total, inBytes),
	gauge("nvidia_gpu_bar1_memory_used_bytes", "How much of that window is mapped.").asked(bar1Used, inBytes),
}
