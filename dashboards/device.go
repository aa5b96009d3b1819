package dashboards

// deviceLegend is the legend of a device's series.
const deviceLegend = "{{node}} GPU {{gpu}} {{mig_uuid}}"

// deviceDashboard returns the dashboard of single GPUs: health, incidents and affected containers.
func deviceDashboard() dashboard {
	return newDashboard("device", "Device and incidents", "Details of the selected GPUs: health, incidents with the affected containers, and all readings.",
		[]variable{varSource, varNode, varGPU},
		[]annotation{
			newAnnotation("Xids", "red", "nvidia_gpu_xid_last_timestamp_seconds", matchGPU, "Xid {{xid}}", "{{node}} GPU {{gpu}}", "xid"),
			newAnnotation("Incidents", "orange", "nvidia_gpu_incident_last_timestamp_seconds", `reason!~"xid_.*",`+matchGPU, "{{reason}}", "{{node}} GPU {{gpu}} {{mig_uuid}}", "reason"),
		},
		deviceNow(), deviceIncidents(), deviceOwners(), deviceUtilization(), deviceThermals(), deviceFaults(), deviceLinks())
}

func deviceNow() []*panel {
	return newRow("Now",
		tablePanel("Devices", "Identity and state of each device. Partitioned GPUs are listed without health and allocation.",
			column{key: "node", title: "Node"},
			column{key: "gpu", title: "GPU"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG device"},
			column{key: "mig_profile", title: "Profile"},
			column{key: "model", title: "Model"},
			column{key: "serial", title: "Serial"},
			column{key: "pci_bus_id", title: "PCI address"},
			column{key: "driver_version", title: "Driver"},
			column{key: "A", title: "Listed", hidden: true},
			column{key: "B", title: "Healthy", mappings: yesIsGood},
			column{key: "C", title: "Allocated", mappings: allocationValues},
			column{key: "D", title: "Since", unit: "dateTimeAsIso"},
			column{key: "E", title: "Flaps", unit: "short"},
		).query(`max by (node, gpu, uuid, mig_uuid, mig_profile, model, serial, pci_bus_id, driver_version) (nvidia_gpu_info{`+matchGPU+`})`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_healthy{`+matchGPU+`})`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_allocated{`+matchGPU+`})`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_since_timestamp_seconds{`+matchGPU+`}) * 1000`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_flaps_total{`+matchGPU+`})`, "").size(24, 7),
		stateTimelinePanel("Health", "Health state of each device. Suspect: in use while being checked. Recovering: no fault, but too few passed checks.",
			mappedValue{Text: "healthy", Color: "green"}, mappedValue{Text: "suspect", Color: "yellow"}, mappedValue{Text: "recovering", Color: "blue"}, mappedValue{Text: "unhealthy", Color: "red"}).
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_state{state="suspect",`+matchGPU+`})
				+ 2 * max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_state{state="recovering",`+matchGPU+`})
				+ 3 * max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_state{state="unhealthy",`+matchGPU+`})`, deviceLegend),
	)
}

func deviceIncidents() []*panel {
	// Failed pods with the last devices of each pod.
	const failed = `and on (namespace, pod) max by (namespace, pod) (max_over_time(kube_pod_status_phase{phase="Failed"}[$__range])) == 1`
	const lastAllocated = `max by (node, namespace, pod, container, uuid, mig_uuid) (
		last_over_time(nvidia_gpu_allocation_last_seen_timestamp_seconds{` + matchGPU + `}[$__range]))`
	return newRow("Incidents",
		tablePanel("Failed pods and the health of their devices", "Pods that failed in the selected time range, from kube-state-metrics, with the allocated devices. A device with a reason failed while allocated to the pod; a device without a reason did not cause the failure.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod", link: podURL},
			column{key: "container", title: "Container"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG device"},
			column{key: "reason", title: "Device failed"},
			column{key: "B", title: "Failed at", unit: "dateTimeAsIso"},
			column{key: "A", title: "Last allocated", unit: "dateTimeAsIso"},
			column{key: "C", title: "Healthy now", mappings: yesIsGood},
		).query(lastAllocated+` * 1000 `+failed, "").
			query(`max by (node, namespace, pod, container, uuid, mig_uuid, reason) (
				last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+matchGPU+`}[$__range])) * 1000 `+failed, "").
			query(`(`+lastAllocated+` >= bool 0) * on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{`+matchGPU+`}) `+failed, "").
			noValue("no pod failed").size(24, 9),
		tablePanel("Incidents by device", "Reports of the driver and evidence of failures. Incidents of removed devices are kept.",
			column{key: "node", title: "Node"},
			column{key: "gpu", title: "GPU"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG device"},
			column{key: "reason", title: "Reason"},
			column{key: "A", title: "Last", unit: "dateTimeAsIso"},
			column{key: "B", title: "Times", unit: "short"},
		).query(`max by (node, gpu, uuid, mig_uuid, reason) (last_over_time(nvidia_gpu_incident_last_timestamp_seconds{`+matchGPU+`}[$__range])) * 1000`, "").
			query(`max by (node, gpu, uuid, mig_uuid, reason) (last_over_time(nvidia_gpu_incidents_total{`+matchGPU+`}[$__range]))`, "").
			noValue("no incidents").size(12, 8),
		tablePanel("Affected containers", "Containers with an allocation of the device at the time of an incident. Ended containers are kept.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod", link: podURL},
			column{key: "container", title: "Container"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG device"},
			column{key: "reason", title: "Reason"},
			column{key: "A", title: "Last", unit: "dateTimeAsIso"},
		).query(`max by (namespace, pod, container, node, uuid, mig_uuid, reason) (
			last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+matchGPU+`}[$__range])) * 1000`, "").
			noValue("none").size(12, 8),
	)
}

func deviceOwners() []*panel {
	return newRow("Allocations",
		stateTimelinePanel("Containers", "Containers of each device over time. A shared device has a line for each container.", mappedValue{}, mappedValue{Text: "allocated", Color: "blue"}).
			query(`max by (node, uuid, mig_uuid, namespace, pod, container) (nvidia_gpu_allocation_info{`+matchGPU+`})`,
				"{{namespace}}/{{pod}} {{container}} · {{node}} {{uuid}} {{mig_uuid}}").noValue("no allocations").size(24, 8),
	)
}

func deviceUtilization() []*panel {
	return newRow("Use",
		timeSeriesPanel("Utilization", "Share of the driver's last sampling period with a running kernel. Not in MIG mode.", "").ratio().
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_utilization_ratio{`+matchGPU+`})`, deviceLegend),
		timeSeriesPanel("Multiprocessors and tensor cores", "Share of cycles with active multiprocessors or tensor cores. Hopper and newer, including MIG devices.", "").ratio().
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_sm_active_ratio{`+matchGPU+`})`, "SM · "+deviceLegend).
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_pipe_active_ratio{pipe="tensor",`+matchGPU+`})`, "tensor · "+deviceLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Memory used", "Share of the device's memory.", "").ratio().thresholds("transparent", threshold{0.95, "orange"}).
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_memory_used_bytes{`+matchGPU+`}) / max by (node, gpu, mig_uuid) (nvidia_gpu_memory_total_bytes{`+matchGPU+`})`, deviceLegend),
		timeSeriesPanel("Unattributed processes", "Processes on the device outside the containers of its allocation. Needs hostPID.", "short").
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_unattributed_processes{`+matchGPU+`})`, deviceLegend).noValue("needs hostPID"),
	)
}

func deviceThermals() []*panel {
	return newRow("Power, heat and clocks",
		timeSeriesPanel("Power", "Power of the GPU, and the enforced limit.", "watt").
			query(`max by (node, gpu) (nvidia_gpu_power_watts{mig_uuid="",`+matchGPU+`})`, "{{node}} GPU {{gpu}}").
			query(`max by (node, gpu) (nvidia_gpu_power_limit_watts{type="enforced",`+matchGPU+`})`, "limit · {{node}} GPU {{gpu}}"),
		timeSeriesPanel("Temperature", "Core temperature, memory temperature if the memory has a sensor, and the slowdown limit of Ampere and older.", "celsius").
			query(`max by (node, gpu, sensor) (nvidia_gpu_temperature_celsius{`+matchGPU+`})`, "{{sensor}} · {{node}} GPU {{gpu}}").
			query(`max by (node, gpu) (nvidia_gpu_temperature_limit_celsius{type="slowdown",`+matchGPU+`})`, "slows down at · {{node}} GPU {{gpu}}"),
		timeSeriesPanel("Margin to slowdown", "Difference to the slowdown temperature, comparable between models with different limits. Ada, Hopper and newer.", "celsius").
			thresholds("red", threshold{3, "orange"}, threshold{10, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_temperature_margin_celsius{`+matchGPU+`})`, "{{node}} GPU {{gpu}}").noValue("needs Ada, Hopper or newer"),
		timeSeriesPanel("Clocks", "Of multiprocessors and memory.", "hertz").
			query(`max by (node, gpu, clock) (nvidia_gpu_clock_hertz{clock=~"sm|memory",`+matchGPU+`})`, "{{clock}} · {{node}} GPU {{gpu}}"),
		stateTimelinePanel("Why the clocks are not higher", "Active throttle reasons. Idle GPUs and power capping are normal; thermal slowdown and power brake are not.",
			mappedValue{}, mappedValue{Text: "active", Color: "orange"}).
			query(`max by (node, gpu, reason) (nvidia_gpu_throttle_active{`+matchGPU+`}) == 1`, "{{reason}} · {{node}} GPU {{gpu}}").noValue("none").size(24, 7),
		timeSeriesPanel("Throttled, by reason", "Share of time with clocks limited for the reason. Power capping is normal under full load; thermal and power brake are not.", "").ratio().
			query(`sum by (node, gpu, reason) (rate(nvidia_gpu_throttle_seconds_total{reason!="low_utilization",`+matchGPU+`}[$__rate_interval])) > 0`,
				"{{reason}} · {{node}} GPU {{gpu}}").noValue("no throttling").size(24, 7),
	)
}

func deviceFaults() []*panel {
	return newRow("Memory and faults",
		timeSeriesPanel("Xids", "Xid errors from the driver since the start of podgauge's count.", "short").
			query(`max by (node, gpu, xid) (nvidia_gpu_xid_errors_total{`+matchGPU+`})`, "Xid {{xid}} · {{node}} GPU {{gpu}}").noValue("none"),
		timeSeriesPanel("ECC errors", "Since the load of the driver or the last GPU reset. Corrected errors have no effect; an uncorrected error ends the reading process.", "short").
			query(`max by (node, gpu, severity) (nvidia_gpu_ecc_volatile_errors_total{mig_uuid="",`+matchGPU+`})`, "{{severity}} · {{node}} GPU {{gpu}}").noValue("no ECC"),
		timeSeriesPanel("Remapped rows", "Memory rows replaced by spare rows. Ampere and newer.", "short").
			query(`max by (node, gpu, cause) (nvidia_gpu_remapped_rows{`+matchGPU+`})`, "{{cause}} · {{node}} GPU {{gpu}}").noValue("needs Ampere or newer"),
		tablePanel("Required actions", "Recovery actions that the driver requires before further use of the GPU, and pending or failed repairs.",
			column{key: "node", title: "Node"},
			column{key: "gpu", title: "GPU"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "action", title: "Recovery action"},
			column{key: "A", title: "Required", mappings: yesIsBad},
			column{key: "B", title: "Row remapping pending", mappings: yesIsBad},
			column{key: "C", title: "Row remapping failed", mappings: yesIsBad},
			column{key: "D", title: "Too many SRAM errors", mappings: yesIsBad},
		).query(`max by (node, gpu, uuid, action) (nvidia_gpu_recovery_action{action!="none",`+matchGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_row_remap_pending{`+matchGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_row_remap_failure{`+matchGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_ecc_sram_threshold_exceeded{`+matchGPU+`}) == 1`, "").
			noValue("no actions").size(12, 8),
	)
}

// yesIsBad shows 1 in red.
var yesIsBad = []mappedValue{{Text: "no", Color: "green"}, {Text: "yes", Color: "red"}}

func deviceLinks() []*panel {
	return newRow("Links",
		timeSeriesPanel("PCIe errors", "Replayed packets, and errors by type. A few are normal, growth is not.", "short").
			query(`max by (node, gpu) (nvidia_gpu_pcie_replays_total{`+matchGPU+`})`, "replays · {{node}} GPU {{gpu}}").
			query(`max by (node, gpu, type) (nvidia_gpu_pcie_errors_total{`+matchGPU+`}) > 0`, "{{type}} · {{node}} GPU {{gpu}}"),
		timeSeriesPanel("PCIe lanes", "Share of the lanes of GPU and slot. The link generation is not shown, because idle GPUs reduce the generation.", "").ratio().thresholds("red", threshold{1, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_pcie_link_width{`+matchGPU+`}) / max by (node, gpu) (nvidia_gpu_pcie_link_width_max{`+matchGPU+`})`, "{{node}} GPU {{gpu}}"),
		timeSeriesPanel("NVLinks up", "Share of the GPU's NVLinks.", "").ratio().thresholds("red", threshold{1, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_nvlink_links_up{`+matchGPU+`}) / max by (node, gpu) (nvidia_gpu_nvlink_links{`+matchGPU+`})`, "{{node}} GPU {{gpu}}").noValue("no NVLink"),
		timeSeriesPanel("NVLink errors", "By type. Replays and recoveries are repaired at the cost of bandwidth.", "short").
			query(`max by (node, gpu, type) (nvidia_gpu_nvlink_errors_total{`+matchGPU+`})`, "{{type}} · {{node}} GPU {{gpu}}").noValue("no NVLink"),
	)
}
