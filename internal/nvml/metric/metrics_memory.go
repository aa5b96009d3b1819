package metric

var memoryRows = []Row{
	gaugeRow("nvidia_gpu_memory_total_bytes", "Memory that the GPU has.").fromCall(memoryTotal, inBytes),
	gaugeRow("nvidia_gpu_memory_reserved_bytes", "Memory that the driver and the firmware keep.").fromCall(memoryReserved, inBytes),
	gaugeRow("nvidia_gpu_memory_used_bytes", "Memory in use; with what is reserved, where the driver is too old to tell them apart.").
		fromCall(memoryUsed, inBytes),
	gaugeRow("nvidia_gpu_memory_free_bytes", "Memory that can be allocated.").fromCall(memoryFree, inBytes),
	gaugeRow("nvidia_gpu_bar1_memory_total_bytes", "Size of the window through which the CPU and other devices reach the GPU's memory (BAR1).").
		fromCall(bar1Total, inBytes),
	gaugeRow("nvidia_gpu_bar1_memory_used_bytes", "How much of that window is mapped.").fromCall(bar1Used, inBytes),
}
