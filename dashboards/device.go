package dashboards

// deviceLegend is the legend of a device's series.
const deviceLegend = "{{node}} GPU {{gpu}} {{mig_uuid}}"

// deviceDashboard returns the dashboard of single GPUs: health, incidents and affected containers.
func deviceDashboard() dashboard {
	return newDashboard("device", "Device and incidents", "One GPU, or several, in depth: health, what happened and who held it then, and every reading.",
		[]variable{varSource, varNode, varGPU},
		[]annotation{
			newAnnotation("Xids", "red", "nvidia_gpu_xid_last_timestamp_seconds", matchGPU, "Xid {{xid}}", "{{node}} GPU {{gpu}}", "xid"),
			newAnnotation("Incidents", "orange", "nvidia_gpu_incident_last_timestamp_seconds", `reason!~"xid_.*",`+matchGPU, "{{reason}}", "{{node}} GPU {{gpu}} {{mig_uuid}}", "reason"),
		},
		deviceNow(), deviceIncidents(), deviceOwners(), deviceUtilization(), deviceThermals(), deviceFaults(), deviceLinks())
}

func deviceNow() []*panel {
	return newRow("Now",
		tablePanel("Devices", "What each is, and how it is: parents of slices are listed too, and are neither held nor healthy.",
			column{key: "node", title: "Node"},
			column{key: "gpu", title: "GPU"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG slice"},
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
		tablePanel("Failed pods and the health of their devices", "Pods that failed in the range of time that is shown, by kube-state-metrics, with the devices they held: a device with a reason failed under the pod, one without has nothing to do with it.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod", link: podURL},
			column{key: "container", title: "Container"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG slice"},
			column{key: "reason", title: "Device failed"},
			column{key: "B", title: "Failed at", unit: "dateTimeAsIso"},
			column{key: "A", title: "Last held", unit: "dateTimeAsIso"},
			column{key: "C", title: "Healthy now", mappings: yesIsGood},
		).query(lastAllocated+` * 1000 `+failed, "").
			query(`max by (node, namespace, pod, container, uuid, mig_uuid, reason) (
				last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+matchGPU+`}[$__range])) * 1000 `+failed, "").
			query(`(`+lastAllocated+` >= bool 0) * on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{`+matchGPU+`}) `+failed, "").
			noValue("no pod failed").size(24, 9),
		tablePanel("What happened", "Reports of the driver, and evidence of failures, by device; remembered when the device is gone.",
			column{key: "node", title: "Node"},
			column{key: "gpu", title: "GPU"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG slice"},
			column{key: "reason", title: "Reason"},
			column{key: "A", title: "Last", unit: "dateTimeAsIso"},
			column{key: "B", title: "Times", unit: "short"},
		).query(`max by (node, gpu, uuid, mig_uuid, reason) (last_over_time(nvidia_gpu_incident_last_timestamp_seconds{`+matchGPU+`}[$__range])) * 1000`, "").
			query(`max by (node, gpu, uuid, mig_uuid, reason) (last_over_time(nvidia_gpu_incidents_total{`+matchGPU+`}[$__range]))`, "").
			noValue("nothing").size(12, 8),
		tablePanel("Under whom", "The containers that held the device when it happened; kept when they are gone.",
			column{key: "namespace", title: "Namespace"},
			column{key: "pod", title: "Pod", link: podURL},
			column{key: "container", title: "Container"},
			column{key: "node", title: "Node"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "mig_uuid", title: "MIG slice"},
			column{key: "reason", title: "Reason"},
			column{key: "A", title: "Last", unit: "dateTimeAsIso"},
		).query(`max by (namespace, pod, container, node, uuid, mig_uuid, reason) (
			last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+matchGPU+`}[$__range])) * 1000`, "").
			noValue("nobody").size(12, 8),
	)
}

func deviceOwners() []*panel {
	return newRow("Who held it",
		stateTimelinePanel("Holders", "Containers that held the devices, and when. One that several hold has a line for each.", mappedValue{}, mappedValue{Text: "held", Color: "blue"}).
			query(`max by (node, uuid, mig_uuid, namespace, pod, container) (nvidia_gpu_allocation_info{`+matchGPU+`})`,
				"{{namespace}}/{{pod}} {{container}} · {{node}} {{uuid}} {{mig_uuid}}").noValue("nobody did").size(24, 8),
	)
}

func deviceUtilization() []*panel {
	return newRow("Use",
		timeSeriesPanel("Utilisation", "Share of the driver's last sampling period in which a kernel ran. Not in MIG mode.", "").ratio().
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_utilization_ratio{`+matchGPU+`})`, deviceLegend),
		timeSeriesPanel("Multiprocessors and tensor cores", "Share of cycles in which they worked. Hopper and newer, slices too.", "").ratio().
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_sm_active_ratio{`+matchGPU+`})`, "SM · "+deviceLegend).
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_pipe_active_ratio{pipe="tensor",`+matchGPU+`})`, "tensor · "+deviceLegend).noValue("needs Hopper or newer"),
		timeSeriesPanel("Memory used", "Share of the device's memory.", "").ratio().thresholds("transparent", threshold{0.95, "orange"}).
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_memory_used_bytes{`+matchGPU+`}) / max by (node, gpu, mig_uuid) (nvidia_gpu_memory_total_bytes{`+matchGPU+`})`, deviceLegend),
		timeSeriesPanel("Processes of nobody", "Processes that use the device and are in no container that holds it. Needs hostPID.", "short").
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_unattributed_processes{`+matchGPU+`})`, deviceLegend).noValue("needs hostPID"),
	)
}

func deviceThermals() []*panel {
	return newRow("Power, heat and clocks",
		timeSeriesPanel("Power", "What the GPU draws, and the limit that is enforced.", "watt").
			query(`max by (node, gpu) (nvidia_gpu_power_watts{mig_uuid="",`+matchGPU+`})`, "{{node}} GPU {{gpu}}").
			query(`max by (node, gpu) (nvidia_gpu_power_limit_watts{type="enforced",`+matchGPU+`})`, "limit · {{node}} GPU {{gpu}}"),
		timeSeriesPanel("Temperature", "Of the core, and of the memory where it has a sensor; and where a GPU slows down, of those that tell that in degrees: Ampere and older.", "celsius").
			query(`max by (node, gpu, sensor) (nvidia_gpu_temperature_celsius{`+matchGPU+`})`, "{{sensor}} · {{node}} GPU {{gpu}}").
			query(`max by (node, gpu) (nvidia_gpu_temperature_limit_celsius{type="slowdown",`+matchGPU+`})`, "slows down at · {{node}} GPU {{gpu}}"),
		timeSeriesPanel("Margin to slowdown", "How much warmer the GPU may get before it slows down: the measure of heat, since limits differ. Ada, Hopper and newer.", "celsius").
			thresholds("red", threshold{3, "orange"}, threshold{10, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_temperature_margin_celsius{`+matchGPU+`})`, "{{node}} GPU {{gpu}}").noValue("needs Ada, Hopper or newer"),
		timeSeriesPanel("Clocks", "Of multiprocessors and memory.", "hertz").
			query(`max by (node, gpu, clock) (nvidia_gpu_clock_hertz{clock=~"sm|memory",`+matchGPU+`})`, "{{clock}} · {{node}} GPU {{gpu}}"),
		stateTimelinePanel("Why the clocks are not higher", "Reasons that hold now. Idle GPUs and power capping are normal; slowdowns by heat and power brake are not.",
			mappedValue{}, mappedValue{Text: "holds", Color: "orange"}).
			query(`max by (node, gpu, reason) (nvidia_gpu_throttle_active{`+matchGPU+`}) == 1`, "{{reason}} · {{node}} GPU {{gpu}}").noValue("none").size(24, 7),
		timeSeriesPanel("Throttled, by reason", "Share of time in which this kept the clocks down. Power capping is normal under full load; thermal and power brake are not.", "").ratio().
			query(`sum by (node, gpu, reason) (rate(nvidia_gpu_throttle_seconds_total{reason!="low_utilization",`+matchGPU+`}[$__rate_interval])) > 0`,
				"{{reason}} · {{node}} GPU {{gpu}}").noValue("nothing throttles").size(24, 7),
	)
}

func deviceFaults() []*panel {
	return newRow("Memory and faults",
		timeSeriesPanel("Xids", "Xid errors that the driver has reported since podgauge began to count.", "short").
			query(`max by (node, gpu, xid) (nvidia_gpu_xid_errors_total{`+matchGPU+`})`, "Xid {{xid}} · {{node}} GPU {{gpu}}").noValue("none"),
		timeSeriesPanel("ECC errors", "Since the driver was loaded or the GPU was reset. Corrected ones cost nothing; uncorrected ones end the process that reads them.", "short").
			query(`max by (node, gpu, severity) (nvidia_gpu_ecc_volatile_errors_total{mig_uuid="",`+matchGPU+`})`, "{{severity}} · {{node}} GPU {{gpu}}").noValue("no ECC"),
		timeSeriesPanel("Remapped rows", "Rows of memory that were replaced by spare ones. Ampere and newer.", "short").
			query(`max by (node, gpu, cause) (nvidia_gpu_remapped_rows{`+matchGPU+`})`, "{{cause}} · {{node}} GPU {{gpu}}").noValue("needs Ampere or newer"),
		tablePanel("What the GPU asks for", "What the driver wants done before the GPU can be used again, and repairs that wait or failed.",
			column{key: "node", title: "Node"},
			column{key: "gpu", title: "GPU"},
			column{key: "uuid", title: "UUID", link: deviceURL},
			column{key: "action", title: "Recovery action"},
			column{key: "A", title: "Asked for", mappings: yesIsBad},
			column{key: "B", title: "Rows wait for a reset", mappings: yesIsBad},
			column{key: "C", title: "Rows cannot be remapped", mappings: yesIsBad},
			column{key: "D", title: "Too many SRAM errors", mappings: yesIsBad},
		).query(`max by (node, gpu, uuid, action) (nvidia_gpu_recovery_action{action!="none",`+matchGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_row_remap_pending{`+matchGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_row_remap_failure{`+matchGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_ecc_sram_threshold_exceeded{`+matchGPU+`}) == 1`, "").
			noValue("nothing").size(12, 8),
	)
}

// yesIsBad shows 1 in red.
var yesIsBad = []mappedValue{{Text: "no", Color: "green"}, {Text: "yes", Color: "red"}}

func deviceLinks() []*panel {
	return newRow("Links",
		timeSeriesPanel("PCIe errors", "Packets that were sent again, and errors by type; a few are normal, growth is not.", "short").
			query(`max by (node, gpu) (nvidia_gpu_pcie_replays_total{`+matchGPU+`})`, "replays · {{node}} GPU {{gpu}}").
			query(`max by (node, gpu, type) (nvidia_gpu_pcie_errors_total{`+matchGPU+`}) > 0`, "{{type}} · {{node}} GPU {{gpu}}"),
		timeSeriesPanel("PCIe lanes", "Share of the lanes that GPU and slot have. The generation is left out: idle GPUs lower it.", "").ratio().thresholds("red", threshold{1, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_pcie_link_width{`+matchGPU+`}) / max by (node, gpu) (nvidia_gpu_pcie_link_width_max{`+matchGPU+`})`, "{{node}} GPU {{gpu}}"),
		timeSeriesPanel("NVLinks up", "Share of the GPU's NVLinks.", "").ratio().thresholds("red", threshold{1, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_nvlink_links_up{`+matchGPU+`}) / max by (node, gpu) (nvidia_gpu_nvlink_links{`+matchGPU+`})`, "{{node}} GPU {{gpu}}").noValue("no NVLink"),
		timeSeriesPanel("NVLink errors", "By type; replays and recoveries are repaired, and cost bandwidth.", "short").
			query(`max by (node, gpu, type) (nvidia_gpu_nvlink_errors_total{`+matchGPU+`})`, "{{type}} · {{node}} GPU {{gpu}}").noValue("no NVLink"),
	)
}
