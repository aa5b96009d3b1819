package dashboards

// whose is what a series of a container's device is called.
const whose = "{{namespace}}/{{pod}} {{container}} · {{node}} GPU {{gpu}} {{mig_uuid}}"

// workload is what namespaces, pods and containers make of their devices.
func workload() dashboard {
	return compose("workload", "Workload", "What namespaces, pods and containers make of the devices they hold.",
		[]variable{varSource, varNode, varNamespace, varPod, varContainer, varGPU},
		[]annotation{note("Device failures", "red", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds", ofPod,
			"{{reason}} under {{namespace}}/{{pod}}", "container {{container}} on {{node}}, GPU {{gpu}} {{mig_uuid}}", "reason")},
		workloadNow(), workloadUse(), workloadShared(), workloadCost(), workloadSlow())
}

func workloadNow() []*panel {
	const holdings = `max by (namespace, pod, container, node, uuid, mig_uuid) (nvidia_gpu_allocation_info{` + ofPod + `})`
	const join = ` * on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) `
	return row("Now",
		stat("Pods", "Pods that hold devices.", `count(count by (namespace, pod) (nvidia_gpu_allocation_info{`+ofPod+`})) or vector(0)`).unit("short"),
		stat("Devices", "Devices that they hold, whole GPUs and MIG slices.", `count(count by (node, uuid, mig_uuid) (nvidia_gpu_allocation_info{`+ofPod+`})) or vector(0)`).unit("short"),
		stat("Unhealthy", "Holdings of a device that is unhealthy: the container keeps it until its pod is deleted.",
			total(`(`+holdings+join+`(nvidia_gpu_healthy{`+onGPU+`})) == bool 0`)).unit("short").levels("green", at{1, "red"}),
		stat("Mean utilisation", "Mean over the GPUs that one container each holds whole.", `avg(nvidia_gpu_utilization_ratio{`+ofPod+`})`).share().absent("not known"),
		stat("Power now", "What the GPUs draw that one container each holds whole.", `sum(nvidia_gpu_power_watts{`+ofPod+`})`).unit("watt").absent("not known"),
		stat("Energy", "Energy that the pods' GPUs took in the range of time that is shown, from the counters of their holders.",
			`sum(increase(nvidia_gpu_energy_joules_total{`+ofPod+`}[$__range])) / 3.6e6`).unit("kwatth").absent("not known"),
		table("Who has what", "A line for each container and device. Utilisation and memory are the device's, whoever else uses it; a slice's utilisation is known of Hopper and newer.",
			column{of: "namespace", title: "Namespace"},
			column{of: "pod", title: "Pod", link: toPod},
			column{of: "container", title: "Container"},
			column{of: "node", title: "Node"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "mig_uuid", title: "MIG slice"},
			column{of: "A", title: "Holds", hidden: true},
			column{of: "B", title: "Healthy", words: noYes},
			column{of: "C", title: "Utilisation", unit: "percentunit"},
			column{of: "D", title: "Memory used", unit: "percentunit"},
		).query(holdings, "").query(holdings+join+`(nvidia_gpu_healthy{`+onGPU+`})`, "").
			query(holdings+join+`(nvidia_gpu_utilization_ratio{`+onGPU+`} or nvidia_gpu_graphics_engine_active_ratio{mig_uuid!="",`+onGPU+`})`, "").
			query(holdings+join+`(nvidia_gpu_memory_used_bytes{`+onGPU+`} / nvidia_gpu_memory_total_bytes{`+onGPU+`})`, "").
			absent("nobody holds a device").size(24, 9),
	)
}

func workloadUse() []*panel {
	return row("Use",
		lines("Utilisation", "Share of the driver's last sampling period in which a kernel ran, of GPUs that are not partitioned. One kernel on one multiprocessor is enough for 100 %.", "").share().
			query(`nvidia_gpu_utilization_ratio{`+ofPod+`}`, whose),
		lines("SM activity", "Share of cycles in which a multiprocessor had work, over all multiprocessors: how full the GPU is. Hopper and newer, slices too.", "").share().
			query(`nvidia_gpu_sm_active_ratio{`+ofPod+`}`, whose).absent("needs Hopper or newer"),
		lines("Tensor activity", "Share of cycles in which the tensor cores worked. Hopper and newer.", "").share().
			query(`nvidia_gpu_pipe_active_ratio{pipe="tensor",`+ofPod+`}`, whose).absent("needs Hopper or newer"),
		lines("Memory bandwidth", "Share of the memory's bandwidth that is used. Hopper and newer.", "").share().
			query(`nvidia_gpu_dram_bandwidth_utilization_ratio{`+ofPod+`}`, whose).absent("needs Hopper or newer"),
		lines("Memory used", "Share of the device's memory that is in use.", "").share().levels("transparent", at{0.95, "orange"}).
			query(`nvidia_gpu_memory_used_bytes{`+ofPod+`} / nvidia_gpu_memory_total_bytes{`+ofPod+`}`, whose),
		lines("Memory free", "Memory that can be allocated.", "bytes").
			query(`nvidia_gpu_memory_free_bytes{`+ofPod+`}`, whose),
	)
}

func workloadShared() []*panel {
	return row("Containers of one GPU",
		lines("Memory, by container", "What the container's own processes hold of the GPU's memory, also where several containers share it. Needs hostPID.", "bytes").stack().
			query(`nvidia_gpu_container_memory_used_bytes{`+ofPod+`}`, whose).absent("needs hostPID"),
		lines("SM utilisation, by container", "Share of time in which a kernel of the container's processes ran. Needs hostPID; not of MIG slices.", "").share().
			query(`nvidia_gpu_container_sm_utilization_ratio{`+ofPod+`}`, whose).absent("needs hostPID"),
	)
}

func workloadCost() []*panel {
	return row("Power and traffic",
		lines("Power", "What the GPU draws; a partitioned one's is not its slices'.", "watt").
			query(`nvidia_gpu_power_watts{`+ofPod+`}`, whose),
		lines("PCIe", "Bytes a second to and from the GPU; what it sends is drawn below zero.", "Bps").
			query(`rate(nvidia_gpu_pcie_receive_bytes_total{`+ofPod+`}[$__rate_interval])`, "received · "+whose).
			query(`-rate(nvidia_gpu_pcie_transmit_bytes_total{`+ofPod+`}[$__rate_interval])`, "sent · "+whose),
		lines("NVLink", "Bytes a second over all links of the GPU; what it sends is drawn below zero.", "Bps").
			query(`rate(nvidia_gpu_nvlink_receive_bytes_total{`+ofPod+`}[$__rate_interval])`, "received · "+whose).
			query(`-rate(nvidia_gpu_nvlink_transmit_bytes_total{`+ofPod+`}[$__rate_interval])`, "sent · "+whose).absent("no NVLink"),
		lines("Clock of the multiprocessors", "As a share of the highest they can have.", "").share().
			query(`nvidia_gpu_clock_hertz{clock="sm",`+ofPod+`}
				/ on (node, uuid) group_left () max by (node, uuid) (nvidia_gpu_clock_max_hertz{clock="sm",`+onGPU+`})`, whose),
	)
}

func workloadSlow() []*panel {
	return row("What slows it down",
		lines("Throttled, by reason", "Share of time in which this kept the clocks down while the container held the GPU. Power capping is normal under full load; thermal and power brake are not.", "").share().
			query(`sum by (namespace, pod, container, reason) (rate(nvidia_gpu_throttle_seconds_total{reason!="low_utilization",`+ofPod+`}[$__rate_interval]))
				/ on (namespace, pod, container) group_left () count by (namespace, pod, container) (nvidia_gpu_allocated{`+ofPod+`}) > 0`,
				"{{reason}} · {{namespace}}/{{pod}} {{container}}").absent("nothing throttles"),
		lines("Margin to slowdown", "How much warmer the GPU may get before it slows down. Ada, Hopper and newer.", "celsius").levels("red", at{3, "orange"}, at{10, "transparent"}).
			query(`nvidia_gpu_temperature_margin_celsius{`+ofPod+`}`, whose).absent("needs Ada, Hopper or newer"),
		table("Device failures under containers", "What happened to devices while the pods held them, also of pods and devices that are gone. The time is of the last one.",
			column{of: "namespace", title: "Namespace"},
			column{of: "pod", title: "Pod"},
			column{of: "container", title: "Container"},
			column{of: "reason", title: "Reason"},
			column{of: "node", title: "Node"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "mig_uuid", title: "MIG slice"},
			column{of: "A", title: "Last", unit: "dateTimeAsIso"},
			column{of: "B", title: "Times", unit: "short"},
		).query(`max by (namespace, pod, container, reason, node, uuid, mig_uuid) (last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+ofPod+`}[$__range])) * 1000`, "").
			query(`max by (namespace, pod, container, reason, node, uuid, mig_uuid) (last_over_time(nvidia_gpu_allocation_device_failures_total{`+ofPod+`}[$__range]))`, "").
			absent("none failed").size(24, 8),
	)
}
