package metric

var memoryRows = []Row{
	gaugeRow("nvidia_gpu_memory_total_bytes", "Memory size of the device, in bytes.").
		fromCall(memoryTotal, inBytes).inMinimal(),
	gaugeRow("nvidia_gpu_memory_reserved_bytes", "Memory reserved by driver and firmware, in bytes.").
		fromCall(memoryReserved, inBytes),
	gaugeRow("nvidia_gpu_memory_used_bytes", "Memory in use, in bytes; includes reserved memory with old drivers.").
		fromCall(memoryUsed, inBytes).inMinimal(),
	gaugeRow("nvidia_gpu_memory_free_bytes", "Memory that programs can still allocate, in bytes.").
		fromCall(memoryFree, inBytes).inDefault(),
	gaugeRow("nvidia_gpu_bar1_memory_total_bytes",
		"Size of the BAR1 window, through which CPU and other devices access GPU memory, in bytes.").
		fromCall(bar1Total, inBytes),
	gaugeRow("nvidia_gpu_bar1_memory_used_bytes", "Mapped part of the BAR1 window, in bytes.").
		fromCall(bar1Used, inBytes),
}
