package dashboards

// ownerLegend is the legend of a series of a container's device.
const ownerLegend = "{{namespace}}/{{pod}} {{container}} · {{node}} GPU {{gpu}} {{mig_uuid}}"

// workloadDashboard returns the dashboard of namespaces, pods and containers with their devices.
func workloadDashboard() dashboard {
	return newDashboard("workload", "Workload", "Allocated devices of namespaces, pods and containers, with utilization and failures.",
		[]variable{varSource, varNode, varNamespace, varPod, varContainer, varGPU},
		[]annotation{newAnnotation("Device failures", "red", "nvidia_gpu_allocation_device_failure_last_timestamp_seconds", matchPod,
			"{{reason}}: {{namespace}}/{{pod}}", "container {{container}} on {{node}}, GPU {{gpu}} {{mig_uuid}}", "reason")},
		workloadNow(), workloadUtilization(), workloadShared(), workloadCost(), workloadThrottling())
}

func workloadNow() []*panel {
	const allocations = `max by (namespace, pod, container, node, uuid, mig_uuid) (nvidia_gpu_allocation_info{` + matchPod + `})`
	const join = ` * on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) `
	return newRow("Now",
		statPanel("Pods", "Pods with allocated devices.", `count(count by (namespace, pod) (nvidia_gpu_allocation_info{`+matchPod+`})) or vector(0)`).unit("short"),
		statPanel("Devices", "Allocated whole GPUs and MIG devices.", `count(count by (node, uuid, mig_uuid) (nvidia_gpu_allocation_info{`+matchPod+`})) or vector(0)`).unit("short"),
		statPanel("Unhealthy", "Allocations of unhealthy devices. A container keeps the device until the pod is deleted.",
			sumOrZero(`(`+allocations+join+`(nvidia_gpu_healthy{`+matchGPU+`})) == bool 0`)).unit("short").thresholds("green", threshold{1, "red"}),
		statPanel("Mean utilization", "Mean of the whole GPUs with a single container.", `avg(nvidia_gpu_utilization_ratio{`+matchPod+`})`).ratio().noValue("unknown"),
		statPanel("Power now", "Power of the whole GPUs with a single container.", `sum(nvidia_gpu_power_watts{`+matchPod+`})`).unit("watt").noValue("unknown"),
		statPanel("Energy", "Energy of the pods' GPUs in the selected time range, from the counters of the owners.",
			`sum(increase(nvidia_gpu_energy_joules_total{`+matchPod+`}[$__range])) / 3.6e6`).unit("kwatth").noValue("unknown"),
		tablePanel("Allocations", "A row for each container and device. Utilization and memory are totals of the device. Utilization of MIG devices: Hopper and newer.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod", link: podURL},
			column{key: "container", title: "Container"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG device"},
			column{key: "A", title: "Allocated", hidden: true},
			column{key: "B", title: "Healthy", mappings: yesIsGood},
			column{key: "C", title: "Utilization", unit: "percentunit"},
			column{key: "D", title: "Memory used", unit: "percentunit"},
		).query(allocations, "").query(allocations+join+`(nvidia_gpu_healthy{`+matchGPU+`})`, "").
			query(allocations+join+`(nvidia_gpu_utilization_ratio{`+matchGPU+`} or nvidia_gpu_graphics_engine_active_ratio{mig_uuid!="",`+matchGPU+`})`, "").
			query(allocations+join+`(nvidia_gpu_memory_used_bytes{`+matchGPU+`} / nvidia_gpu_memory_total_bytes{`+matchGPU+`})`, "").
			noValue("no allocations").size(24, 9),
	)
}

func workloadUtilization() []*panel {
	return newRow("Use",
		timeSeriesPanel("Utilization", "Share of the driver's last sampling period with a running kernel, of GPUs without MIG. A kernel on a single multiprocessor suffices for 100 %.", "").ratio().
			query(`nvidia_gpu_utilization_ratio{`+matchPod+`}`, ownerLegend),
		timeSeriesPanel("SM activity", "Share of cycles with an active multiprocessor, averaged over all multiprocessors. Hopper and newer, including MIG devices.", "").ratio().
			query(`nvidia_gpu_sm_active_ratio{`+matchPod+`}`, ownerLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Tensor activity", "Share of cycles with active tensor cores. Hopper and newer.", "").ratio().
			query(`nvidia_gpu_pipe_active_ratio{pipe="tensor",`+matchPod+`}`, ownerLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Memory bandwidth", "Share of the memory bandwidth in use. Hopper and newer.", "").ratio().
			query(`nvidia_gpu_dram_bandwidth_utilization_ratio{`+matchPod+`}`, ownerLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Memory used", "Share of the device's memory in use.", "").ratio().thresholds("transparent", threshold{0.95, "orange"}).
			query(`nvidia_gpu_memory_used_bytes{`+matchPod+`} / nvidia_gpu_memory_total_bytes{`+matchPod+`}`, ownerLegend),
		timeSeriesPanel("Memory free", "Memory available for allocation.", "bytes").
			query(`nvidia_gpu_memory_free_bytes{`+matchPod+`}`, ownerLegend),
	)
}

func workloadShared() []*panel {
	return newRow("Containers of one GPU",
		timeSeriesPanel("Memory, by container", "GPU memory of the container's processes, also on shared GPUs. Needs hostPID.", "bytes").stack().
			query(`nvidia_gpu_container_memory_used_bytes{`+matchPod+`}`, ownerLegend).noValue("needs hostPID"),
		timeSeriesPanel("SM utilization, by container", "Share of time with a running kernel of the container's processes. Needs hostPID; not for MIG devices.", "").ratio().
			query(`nvidia_gpu_container_sm_utilization_ratio{`+matchPod+`}`, ownerLegend).noValue("needs hostPID"),
	)
}

func workloadCost() []*panel {
	return newRow("Power and traffic",
		timeSeriesPanel("Power", "Power of the GPU; not available for MIG devices.", "watt").
			query(`nvidia_gpu_power_watts{`+matchPod+`}`, ownerLegend),
		timeSeriesPanel("PCIe", "Bytes per second to and from the GPU; sent bytes are drawn below zero.", "Bps").
			query(`rate(nvidia_gpu_pcie_receive_bytes_total{`+matchPod+`}[$__rate_interval])`, "received · "+ownerLegend).
			query(`-rate(nvidia_gpu_pcie_transmit_bytes_total{`+matchPod+`}[$__rate_interval])`, "sent · "+ownerLegend),
		timeSeriesPanel("NVLink", "Bytes per second over all links of the GPU; sent bytes are drawn below zero.", "Bps").
			query(`rate(nvidia_gpu_nvlink_receive_bytes_total{`+matchPod+`}[$__rate_interval])`, "received · "+ownerLegend).
			query(`-rate(nvidia_gpu_nvlink_transmit_bytes_total{`+matchPod+`}[$__rate_interval])`, "sent · "+ownerLegend).noValue("no NVLink"),
		timeSeriesPanel("Clock of the multiprocessors", "Share of the maximum clock.", "").ratio().
			query(`nvidia_gpu_clock_hertz{clock="sm",`+matchPod+`}
				/ on (node, uuid) group_left () max by (node, uuid) (nvidia_gpu_clock_max_hertz{clock="sm",`+matchGPU+`})`, ownerLegend),
	)
}

func workloadThrottling() []*panel {
	return newRow("Throttling",
		timeSeriesPanel("Throttled, by reason", "Share of time with clocks limited for the reason, during the allocation. Power capping is normal under full load; thermal and power brake are not.", "").ratio().
			query(`sum by (namespace, pod, container, reason) (rate(nvidia_gpu_throttle_seconds_total{reason!="low_utilization",`+matchPod+`}[$__rate_interval]))
				/ on (namespace, pod, container) group_left () count by (namespace, pod, container) (nvidia_gpu_allocated{`+matchPod+`}) > 0`,
				"{{reason}} · {{namespace}}/{{pod}} {{container}}").noValue("no throttling"),
		timeSeriesPanel("Margin to slowdown", "Difference to the slowdown temperature. Ada, Hopper and newer.", "celsius").thresholds("red", threshold{3, "orange"}, threshold{10, "transparent"}).
			query(`nvidia_gpu_temperature_margin_celsius{`+matchPod+`}`, ownerLegend).noValue("needs Ada, Hopper or newer"),
		tablePanel("Device failures by container", "Incidents of devices during an allocation, including deleted pods and removed devices. The time is of the latest incident.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod"},
			column{key: "container", title: "Container"},
			column{key: "reason", title: "Reason"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG device"},
			column{key: "A", title: "Last", unit: "dateTimeAsIso"},
			column{key: "B", title: "Times", unit: "short"},
		).query(`max by (namespace, pod, container, reason, node, uuid, mig_uuid) (last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+matchPod+`}[$__range])) * 1000`, "").
			query(`max by (namespace, pod, container, reason, node, uuid, mig_uuid) (last_over_time(nvidia_gpu_allocation_device_failures_total{`+matchPod+`}[$__range]))`, "").
			noValue("no failures").size(24, 8),
	)
}
