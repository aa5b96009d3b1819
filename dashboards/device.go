package dashboards

// which is what a series of a device is called.
const which = "{{node}} GPU {{gpu}} {{mig_uuid}}"

// device is one GPU in depth: what happened to it, and under whom.
func device() dashboard {
	return compose("device", "Device and incidents", "One GPU, or several, in depth: health, what happened and who held it then, and every reading.",
		[]variable{varSource, varNode, varGPU},
		[]annotation{
			note("Xids", "red", "nvidia_gpu_xid_last_timestamp_seconds", onGPU, "Xid {{xid}}", "{{node}} GPU {{gpu}}", "xid"),
			note("Incidents", "orange", "nvidia_gpu_incident_last_timestamp_seconds", `reason!~"xid_.*",`+onGPU, "{{reason}}", "{{node}} GPU {{gpu}} {{mig_uuid}}", "reason"),
		},
		deviceNow(), deviceIncidents(), deviceHolders(), deviceUse(), deviceHeat(), deviceFaults(), deviceLinks())
}

func deviceNow() []*panel {
	return row("Now",
		table("Devices", "What each is, and how it is: parents of slices are listed too, and are neither held nor healthy.",
			column{of: "node", title: "Node"},
			column{of: "gpu", title: "GPU"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "mig_uuid", title: "MIG slice"},
			column{of: "mig_profile", title: "Profile"},
			column{of: "model", title: "Model"},
			column{of: "serial", title: "Serial"},
			column{of: "pci_bus_id", title: "PCI address"},
			column{of: "driver_version", title: "Driver"},
			column{of: "A", title: "Listed", hidden: true},
			column{of: "B", title: "Healthy", words: noYes},
			column{of: "C", title: "Allocated", words: held},
			column{of: "D", title: "Since", unit: "dateTimeAsIso"},
			column{of: "E", title: "Flaps", unit: "short"},
		).query(`max by (node, gpu, uuid, mig_uuid, mig_profile, model, serial, pci_bus_id, driver_version) (nvidia_gpu_info{`+onGPU+`})`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_healthy{`+onGPU+`})`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_allocated{`+onGPU+`})`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_since_timestamp_seconds{`+onGPU+`}) * 1000`, "").
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_flaps_total{`+onGPU+`})`, "").size(24, 7),
		states("Health", "Where each device stands. Suspect: used as before, and checked. On probation: well, and not yet for long enough.",
			word{Text: "well", Color: "green"}, word{Text: "suspect", Color: "yellow"}, word{Text: "on probation", Color: "blue"}, word{Text: "unhealthy", Color: "red"}).
			query(`max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_state{state="suspect",`+onGPU+`})
				+ 2 * max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_state{state="probation",`+onGPU+`})
				+ 3 * max by (node, gpu, uuid, mig_uuid) (nvidia_gpu_health_state{state="unhealthy",`+onGPU+`})`, which),
	)
}

func deviceIncidents() []*panel {
	// Pods that failed, and the devices that they held last.
	const failed = `and on (namespace, pod) max by (namespace, pod) (max_over_time(kube_pod_status_phase{phase="Failed"}[$__range])) == 1`
	const lastHeld = `max by (node, namespace, pod, container, uuid, mig_uuid) (
		last_over_time(nvidia_gpu_allocation_last_seen_timestamp_seconds{` + onGPU + `}[$__range]))`
	return row("Incidents",
		table("Failed pods and the health of their devices", "Pods that failed in the range of time that is shown, by kube-state-metrics, with the devices they held: a device with a reason failed under the pod, one without has nothing to do with it.",
			column{of: "namespace", title: "Namespace"},
			column{of: "pod", title: "Pod", link: toPod},
			column{of: "container", title: "Container"},
			column{of: "node", title: "Node"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "mig_uuid", title: "MIG slice"},
			column{of: "reason", title: "Device failed"},
			column{of: "B", title: "Failed at", unit: "dateTimeAsIso"},
			column{of: "A", title: "Last held", unit: "dateTimeAsIso"},
			column{of: "C", title: "Healthy now", words: noYes},
		).query(lastHeld+` * 1000 `+failed, "").
			query(`max by (node, namespace, pod, container, uuid, mig_uuid, reason) (
				last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+onGPU+`}[$__range])) * 1000 `+failed, "").
			query(`(`+lastHeld+` >= bool 0) * on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{`+onGPU+`}) `+failed, "").
			absent("no pod failed").size(24, 9),
		table("What happened", "Reports of the driver, and evidence of failures, by device; remembered when the device is gone.",
			column{of: "node", title: "Node"},
			column{of: "gpu", title: "GPU"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "mig_uuid", title: "MIG slice"},
			column{of: "reason", title: "Reason"},
			column{of: "A", title: "Last", unit: "dateTimeAsIso"},
			column{of: "B", title: "Times", unit: "short"},
		).query(`max by (node, gpu, uuid, mig_uuid, reason) (last_over_time(nvidia_gpu_incident_last_timestamp_seconds{`+onGPU+`}[$__range])) * 1000`, "").
			query(`max by (node, gpu, uuid, mig_uuid, reason) (last_over_time(nvidia_gpu_incidents_total{`+onGPU+`}[$__range]))`, "").
			absent("nothing").size(12, 8),
		table("Under whom", "The containers that held the device when it happened; kept when they are gone.",
			column{of: "namespace", title: "Namespace"},
			column{of: "pod", title: "Pod", link: toPod},
			column{of: "container", title: "Container"},
			column{of: "node", title: "Node"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "mig_uuid", title: "MIG slice"},
			column{of: "reason", title: "Reason"},
			column{of: "A", title: "Last", unit: "dateTimeAsIso"},
		).query(`max by (namespace, pod, container, node, uuid, mig_uuid, reason) (
			last_over_time(nvidia_gpu_allocation_device_failure_last_timestamp_seconds{`+onGPU+`}[$__range])) * 1000`, "").
			absent("nobody").size(12, 8),
	)
}

func deviceHolders() []*panel {
	return row("Who held it",
		states("Holders", "Containers that held the devices, and when. One that several hold has a line for each.", word{}, word{Text: "held", Color: "blue"}).
			query(`max by (node, uuid, mig_uuid, namespace, pod, container) (nvidia_gpu_allocation_info{`+onGPU+`})`,
				"{{namespace}}/{{pod}} {{container}} · {{node}} {{uuid}} {{mig_uuid}}").absent("nobody did").size(24, 8),
	)
}

func deviceUse() []*panel {
	return row("Use",
		lines("Utilisation", "Share of the driver's last sampling period in which a kernel ran. Not in MIG mode.", "").share().
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_utilization_ratio{`+onGPU+`})`, which),
		lines("Multiprocessors and tensor cores", "Share of cycles in which they worked. Hopper and newer, slices too.", "").share().
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_sm_active_ratio{`+onGPU+`})`, "SM · "+which).
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_pipe_active_ratio{pipe="tensor",`+onGPU+`})`, "tensor · "+which).absent("needs Hopper or newer"),
		lines("Memory used", "Share of the device's memory.", "").share().levels("transparent", at{0.95, "orange"}).
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_memory_used_bytes{`+onGPU+`}) / max by (node, gpu, mig_uuid) (nvidia_gpu_memory_total_bytes{`+onGPU+`})`, which),
		lines("Processes of nobody", "Processes that use the device and are in no container that holds it. Needs hostPID.", "short").
			query(`max by (node, gpu, mig_uuid) (nvidia_gpu_unattributed_processes{`+onGPU+`})`, which).absent("needs hostPID"),
	)
}

func deviceHeat() []*panel {
	return row("Power, heat and clocks",
		lines("Power", "What the GPU draws, and the limit that is enforced.", "watt").
			query(`max by (node, gpu) (nvidia_gpu_power_watts{mig_uuid="",`+onGPU+`})`, "{{node}} GPU {{gpu}}").
			query(`max by (node, gpu) (nvidia_gpu_power_limit_watts{type="enforced",`+onGPU+`})`, "limit · {{node}} GPU {{gpu}}"),
		lines("Temperature", "Of the core, and of the memory where it has a sensor; and where a GPU slows down, of those that tell that in degrees: Ampere and older.", "celsius").
			query(`max by (node, gpu, sensor) (nvidia_gpu_temperature_celsius{`+onGPU+`})`, "{{sensor}} · {{node}} GPU {{gpu}}").
			query(`max by (node, gpu) (nvidia_gpu_temperature_limit_celsius{type="slowdown",`+onGPU+`})`, "slows down at · {{node}} GPU {{gpu}}"),
		lines("Margin to slowdown", "How much warmer the GPU may get before it slows down: the measure of heat, since limits differ. Ada, Hopper and newer.", "celsius").
			levels("red", at{3, "orange"}, at{10, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_temperature_margin_celsius{`+onGPU+`})`, "{{node}} GPU {{gpu}}").absent("needs Ada, Hopper or newer"),
		lines("Clocks", "Of multiprocessors and memory.", "hertz").
			query(`max by (node, gpu, clock) (nvidia_gpu_clock_hertz{clock=~"sm|memory",`+onGPU+`})`, "{{clock}} · {{node}} GPU {{gpu}}"),
		states("Why the clocks are not higher", "Reasons that hold now. Idle GPUs and power capping are normal; slowdowns by heat and power brake are not.",
			word{}, word{Text: "holds", Color: "orange"}).
			query(`max by (node, gpu, reason) (nvidia_gpu_throttle_active{`+onGPU+`}) == 1`, "{{reason}} · {{node}} GPU {{gpu}}").absent("none").size(24, 7),
		lines("Throttled, by reason", "Share of time in which this kept the clocks down. Power capping is normal under full load; thermal and power brake are not.", "").share().
			query(`sum by (node, gpu, reason) (rate(nvidia_gpu_throttle_seconds_total{reason!="low_utilization",`+onGPU+`}[$__rate_interval])) > 0`,
				"{{reason}} · {{node}} GPU {{gpu}}").absent("nothing throttles").size(24, 7),
	)
}

func deviceFaults() []*panel {
	return row("Memory and faults",
		lines("Xids", "Xid errors that the driver has reported since podgauge began to count.", "short").
			query(`max by (node, gpu, xid) (nvidia_gpu_xid_errors_total{`+onGPU+`})`, "Xid {{xid}} · {{node}} GPU {{gpu}}").absent("none"),
		lines("ECC errors", "Since the driver was loaded or the GPU was reset. Corrected ones cost nothing; uncorrected ones end the process that reads them.", "short").
			query(`max by (node, gpu, severity) (nvidia_gpu_ecc_volatile_errors_total{mig_uuid="",`+onGPU+`})`, "{{severity}} · {{node}} GPU {{gpu}}").absent("no ECC"),
		lines("Remapped rows", "Rows of memory that were replaced by spare ones. Ampere and newer.", "short").
			query(`max by (node, gpu, cause) (nvidia_gpu_remapped_rows{`+onGPU+`})`, "{{cause}} · {{node}} GPU {{gpu}}").absent("needs Ampere or newer"),
		table("What the GPU asks for", "What the driver wants done before the GPU can be used again, and repairs that wait or failed.",
			column{of: "node", title: "Node"},
			column{of: "gpu", title: "GPU"},
			column{of: "uuid", title: "UUID", link: toDevice},
			column{of: "action", title: "Recovery action"},
			column{of: "A", title: "Asked for", words: noYesBad},
			column{of: "B", title: "Rows wait for a reset", words: noYesBad},
			column{of: "C", title: "Rows cannot be remapped", words: noYesBad},
			column{of: "D", title: "Too many SRAM errors", words: noYesBad},
		).query(`max by (node, gpu, uuid, action) (nvidia_gpu_recovery_action{action!="none",`+onGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_row_remap_pending{`+onGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_row_remap_failure{`+onGPU+`}) == 1`, "").
			query(`max by (node, gpu, uuid) (nvidia_gpu_ecc_sram_threshold_exceeded{`+onGPU+`}) == 1`, "").
			absent("nothing").size(12, 8),
	)
}

// noYesBad is for what had better not be.
var noYesBad = []word{{Text: "no", Color: "green"}, {Text: "yes", Color: "red"}}

func deviceLinks() []*panel {
	return row("Links",
		lines("PCIe errors", "Packets that were sent again, and errors by type; a few are normal, growth is not.", "short").
			query(`max by (node, gpu) (nvidia_gpu_pcie_replays_total{`+onGPU+`})`, "replays · {{node}} GPU {{gpu}}").
			query(`max by (node, gpu, type) (nvidia_gpu_pcie_errors_total{`+onGPU+`}) > 0`, "{{type}} · {{node}} GPU {{gpu}}"),
		lines("PCIe lanes", "Share of the lanes that GPU and slot have. The generation is left out: idle GPUs lower it.", "").share().levels("red", at{1, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_pcie_link_width{`+onGPU+`}) / max by (node, gpu) (nvidia_gpu_pcie_link_width_max{`+onGPU+`})`, "{{node}} GPU {{gpu}}"),
		lines("NVLinks up", "Share of the GPU's NVLinks.", "").share().levels("red", at{1, "transparent"}).
			query(`max by (node, gpu) (nvidia_gpu_nvlink_links_up{`+onGPU+`}) / max by (node, gpu) (nvidia_gpu_nvlink_links{`+onGPU+`})`, "{{node}} GPU {{gpu}}").absent("no NVLink"),
		lines("NVLink errors", "By type; replays and recoveries are repaired, and cost bandwidth.", "short").
			query(`max by (node, gpu, type) (nvidia_gpu_nvlink_errors_total{`+onGPU+`})`, "{{type}} · {{node}} GPU {{gpu}}").absent("no NVLink"),
	)
}
