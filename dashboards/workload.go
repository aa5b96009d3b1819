package dashboards

// ownerLegend is the legend of a series of a container's device.
const ownerLegend = "{{namespace}}/{{pod}} {{container}} · {{node}} GPU {{gpu}} {{mig_uuid}}"

// workloadDashboard returns the dashboard of namespaces, pods and containers with their devices.
func workloadDashboard() dashboard {
	return newDashboard("workload", "Workload", "What namespaces, pods and containers make of the devices they hold.",
		[]variable{varSource, varNode, varNamespace, varPod, varContainer, varGPU},
		[]annotation{newAnnotation("Device failures", "red", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds", matchPod,
			"{{reason}} under {{namespace}}/{{pod}}", "container {{container}} on {{node}}, GPU {{gpu}} {{mig_uuid}}", "reason")},
		workloadNow(), workloadUtilization(), workloadShared(), workloadCost(), workloadThrottling())
}

func workloadNow() []*panel {
	const allocations = `max by (namespace, pod, container, node, uuid, mig_uuid) (nvidia_gpu_allocation_info{` + matchPod + `})`
	const join = ` * on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) `
	return newRow("Now",
		statPanel("Pods", "Pods that hold devices.", `count(count by (namespace, pod) (nvidia_gpu_allocation_info{`+matchPod+`})) or vector(0)`).unit("short"),
		statPanel("Devices", "Devices that they hold, whole GPUs and MIG slices.", `count(count by (node, uuid, mig_uuid) (nvidia_gpu_allocation_info{`+matchPod+`})) or vector(0)`).unit("short"),
		statPanel("Unhealthy", "Holdings of a device that is unhealthy: the container keeps it until its pod is deleted.",
			sumOrZero(`(`+allocations+join+`(nvidia_gpu_healthy{`+matchGPU+`})) == bool 0`)).unit("short").thresholds("green", threshold{1, "red"}),
		statPanel("Mean utilisation", "Mean over the GPUs that one container each holds whole.", `avg(nvidia_gpu_utilization_ratio{`+matchPod+`})`).ratio().noValue("not known"),
		statPanel("Power now", "What the GPUs draw that one container each holds whole.", `sum(nvidia_gpu_power_watts{`+matchPod+`})`).unit("watt").noValue("not known"),
		statPanel("Energy", "Energy that the pods' GPUs took in the range of time that is shown, from the counters of their holders.",
			`sum(increase(nvidia_gpu_energy_joules_total{`+matchPod+`}[$__range])) / 3.6e6`).unit("kwatth").noValue("not known"),
		tablePanel("Who has what", "A line for each container and device. Utilisation and memory are the device's, whoever else uses it; a slice's utilisation is known of Hopper and newer.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod", link: podURL},
			column{key: "container", title: "Container"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG slice"},
			column{key: "A", title: "Holds", hidden: true},
			column{key: "B", title: "Healthy", mappings: yesIsGood},
			column{key: "C", title: "Utilisation", unit: "percentunit"},
			column{key: "D", title: "Memory used", unit: "percentunit"},
		).query(allocations, "").query(allocations+join+`(nvidia_gpu_healthy{`+matchGPU+`})`, "").
			query(allocations+join+`(nvidia_gpu_utilization_ratio{`+matchGPU+`} or nvidia_gpu_graphics_engine_active_ratio{mig_uuid!="",`+matchGPU+`})`, "").
			query(allocations+join+`(nvidia_gpu_memory_used_bytes{`+matchGPU+`} / nvidia_gpu_memory_total_bytes{`+matchGPU+`})`, "").
			noValue("nobody holds a device").size(24, 9),
	)
}

func workloadUtilization() []*panel {
	return newRow("Use",
		timeSeriesPanel("Utilisation", "Share of the driver's last sampling period in which a kernel ran, of GPUs that are not partitioned. One kernel on one multiprocessor is enough for 100 %.", "").ratio().
			query(`nvidia_gpu_utilization_ratio{`+matchPod+`}`, ownerLegend),
		timeSeriesPanel("SM activity", "Share of cycles in which a multiprocessor had work, over all multiprocessors: how full the GPU is. Hopper and newer, slices too.", "").ratio().
			query(`nvidia_gpu_sm_active_ratio{`+matchPod+`}`, ownerLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Tensor activity", "Share of cycles in which the tensor cores worked. Hopper and newer.", "").ratio().
			query(`nvidia_gpu_pipe_active_ratio{pipe="tensor",`+matchPod+`}`, ownerLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Memory bandwidth", "Share of the memory's bandwidth that is used. Hopper and newer.", "").ratio().
			query(`nvidia_gpu_dram_bandwidth_utilization_ratio{`+matchPod+`}`, ownerLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Memory used", "Share of the device's memory that is in use.", "").ratio().thresholds("transparent", threshold{0.95, "orange"}).
			query(`nvidia_gpu_memory_used_bytes{`+matchPod+`} / nvidia_gpu_memory_total_bytes{`+matchPod+`}`, ownerLegend),
		timeSeriesPanel("Memory free", "Memory that can be allocated.", "bytes").
			query(`nvidia_gpu_memory_free_bytes{`+matchPod+`}`, ownerLegend),
	)
}

func workloadShared() []*panel {
	return newRow("Containers of one GPU",
		timeSeriesPanel("Memory, by container", "What the container's own processes hold of the GPU's memory, also where several containers share it. Needs hostPID.", "bytes").stack().
			query(`nvidia_gpu_container_memory_used_bytes{`+matchPod+`}`, ownerLegend).noValue("needs hostPID"),
		timeSeriesPanel("SM utilisation, by container", "Share of time in which a kernel of the container's processes ran. Needs hostPID; not of MIG slices.", "").ratio().
			query(`nvidia_gpu_container_sm_utilization_ratio{`+matchPod+`}`, ownerLegend).noValue("needs hostPID"),
	)
}

func workloadCost() []*panel {
	return newRow("Power and traffic",
		timeSeriesPanel("Power", "What the GPU draws; a partitioned one's is not its slices'.", "watt").
			query(`nvidia_gpu_power_watts{`+matchPod+`}`, ownerLegend),
		timeSeriesPanel("PCIe", "Bytes a second to and from the GPU; what it sends is drawn below zero.", "Bps").
			query(`rate(nvidia_gpu_pcie_receive_bytes_total{`+matchPod+`}[$__rate_interval])`, "received · "+ownerLegend).
			query(`-rate(nvidia_gpu_pcie_transmit_bytes_total{`+matchPod+`}[$__rate_interval])`, "sent · "+ownerLegend),
		timeSeriesPanel("NVLink", "Bytes a second over all links of the GPU; what it sends is drawn below zero.", "Bps").
			query(`rate(nvidia_gpu_nvlink_receive_bytes_total{`+matchPod+`}[$__rate_interval])`, "received · "+ownerLegend).
			query(`-rate(nvidia_gpu_nvlink_transmit_bytes_total{`+matchPod+`}[$__rate_interval])`, "sent · "+ownerLegend).noValue("no NVLink"),
		timeSeriesPanel("Clock of the multiprocessors", "As a share of the highest they can have.", "").ratio().
			query(`nvidia_gpu_clock_hertz{clock="sm",`+matchPod+`}
				/ on (node, uuid) group_left () max by (node, uuid) (nvidia_gpu_clock_max_hertz{clock="sm",`+matchGPU+`})`, ownerLegend),
	)
}

func workloadThrottling() []*panel {
	return newRow("What slows it down",
		timeSeriesPanel("Throttled, by reason", "Share of time in which this kept the clocks down while the container held the GPU. Power capping is normal under full load; thermal and power brake are not.", "").ratio().
			query(`sum by (namespace, pod, container, reason) (rate(nvidia_gpu_throttle_seconds_total{reason!="low_utilization",`+matchPod+`}[$__rate_interval]))
				/ on (namespace, pod, container) group_left () count by (namespace, pod, container) (nvidia_gpu_allocated{`+matchPod+`}) > 0`,
				"{{reason}} · {{namespace}}/{{pod}} {{container}}").noValue("nothing throttles"),
		timeSeriesPanel("Margin to slowdown", "How much warmer the GPU may get before it slows down. Ada, Hopper and newer.", "celsius").thresholds("red", threshold{3, "orange"}, threshold{10, "transparent"}).
			query(`nvidia_gpu_temperature_margin_celsius{`+matchPod+`}`, ownerLegend).noValue("needs Ada, Hopper or newer"),
		tablePanel("Device failures under containers", "What happened to devices while the pods held them, also of pods and devices that are gone. The time is of the last one.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod"},
			column{key: "container", title: "Container"},
			column{key: "reason", title: "Reason"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG slice"},
			column{key: "A", title: "Last", unit: "dateTimeAsIso"},
			column{key: "B", title: "Times", unit: "short"},
		).query(`max by (namespace, pod, container, reason, node, uuid, mig_uuid) (last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+matchPod+`}[$__range])) * 1000`, "").
			query(`max by (namespace, pod, container, reason, node, uuid, mig_uuid) (last_over_time(nvidia_gpu_allocation_device_failures_total{`+matchPod+`}[$__range]))`, "").
			noValue("none failed").size(24, 8),
	)
}
