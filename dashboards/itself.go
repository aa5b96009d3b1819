package dashboards

// itself is how podgauge does, and what it says of driver and kubelet.
func itself() dashboard {
	return compose("itself", "podgauge itself", "Whether podgauge, the driver and the kubelets do their part on each node, and what it costs.",
		[]variable{varSource, varNode}, nil, itselfNow(), itselfOffer(), itselfHolders(), itselfCost())
}

func itselfNow() []*panel {
	down := func(title, description, expr string) *panel {
		return stat(title, description, total(expr)).unit("short").levels("green", at{1, "red"})
	}
	return row("Now",
		down("Driver not usable", "Nodes on which NVML is not initialised.", `podgauge_nvml_up{`+onNode+`} == bool 0`),
		down("Kubelet does not answer", "Nodes on which the kubelet did not say who holds what.", `podgauge_kubelet_up{`+onNode+`} == bool 0`),
		down("Events not heard", "Nodes on which Xid errors are not heard.", `podgauge_events_up{`+onNode+`} == bool 0`),
		down("GPUs that stall", "GPUs with a call to the driver that has not come back.", `nvidia_gpu_stalled{`+onNode+`}`),
		down("Series left out", "Series that scrapes leave out, since there would be more than --metrics.series-limit.", `podgauge_series_dropped{`+onNode+`}`),
		down("State not kept", "Nodes on which health or incidents cannot be written to disk; a restart would forget.",
			`(podgauge_state_up{`+onNode+`} == 0 or podgauge_incident_store_up{`+onNode+`} == 0) == bool 0`),
		table("Nodes", "A line for each podgauge.",
			column{of: "node", title: "Node", link: toNode},
			column{of: "version", title: "Version"},
			column{of: "goversion", title: "Go"},
			column{of: "A", title: "Runs", hidden: true},
			column{of: "B", title: "Driver", words: noYes},
			column{of: "C", title: "Kubelet", words: noYes},
			column{of: "D", title: "Events", words: noYes},
			column{of: "E", title: "Simulated", words: noYesBad},
			column{of: "F", title: "Age of holders", unit: "s"},
			column{of: "G", title: "Series", unit: "short"},
		).query(`max by (node, version, goversion) (podgauge_build_info{`+onNode+`})`, "").
			query(`min by (node) (podgauge_nvml_up{`+onNode+`})`, "").
			query(`min by (node) (podgauge_kubelet_up{`+onNode+`})`, "").
			query(`min by (node) (podgauge_events_up{`+onNode+`})`, "").
			query(`max by (node) (podgauge_simulated{`+onNode+`})`, "").
			query(`max by (node) (podgauge_holders_age_seconds{`+onNode+`})`, "").
			query(`max by (node) (podgauge_series{`+onNode+`})`, "").size(24, 8),
	)
}

func itselfOffer() []*panel {
	return row("Device plugin",
		lines("Devices that the kubelets were told of", "By resource and health.", "short").stack().
			query(`sum by (resource, health) (podgauge_plugin_devices{`+onNode+`})`, "{{resource}} {{health}}"),
		lines("Resources that are not registered", "Resources without a stream to the kubelet, by node: no pod that asks for them is started there.", "short").bars().
			query(`sum by (node, resource) (podgauge_plugin_streams{`+onNode+`} == bool 0) > 0`, "{{node}} {{resource}}").absent("all are"),
		lines("Registrations", "By outcome, in the five minutes before. One for each restart of a kubelet is normal.", "short").bars().
			query(`sum by (resource, result) (increase(podgauge_registrations_total{`+onNode+`}[5m])) > 0`, "{{resource}} {{result}}").absent("none"),
		lines("Refusals", "Containers that were not given what they asked for, in the five minutes before, by reason.", "short").bars().
			query(`sum by (resource, reason) (increase(podgauge_plugin_refusals_total{`+onNode+`}[5m])) > 0`, "{{reason}} · {{resource}}").absent("none"),
		lines("Time to answer the kubelet", "99 of 100 answers of the device plugin were quicker.", "s").
			query(`histogram_quantile(0.99, sum by (le, method) (rate(podgauge_plugin_request_duration_seconds_bucket{`+onNode+`}[$__rate_interval])))`, "{{method}}").absent("no question"),
		lines("Errors to the kubelet", "Answers of the device plugin that were errors, a second.", "short").
			query(`sum by (method) (rate(podgauge_plugin_request_errors_total{`+onNode+`}[$__rate_interval]))`, "{{method}}"),
	)
}

func itselfHolders() []*panel {
	return row("Who holds what",
		lines("Age of the holders", "How long ago the kubelet said what a scrape's holders are drawn from.", "s").levels("transparent", at{60, "orange"}).
			query(`max by (node) (podgauge_holders_age_seconds{`+onNode+`})`, "{{node}}"),
		lines("Time that the kubelet takes", "99 of 100 answers about who holds what were quicker.", "s").
			query(`histogram_quantile(0.99, sum by (le, method) (rate(podgauge_pod_resources_request_duration_seconds_bucket{`+onNode+`}[$__rate_interval])))`, "{{method}}"),
		lines("Questions without an answer", "Questions to the kubelet about who holds what, a second.", "short").
			query(`sum by (method) (rate(podgauge_pod_resources_request_errors_total{`+onNode+`}[$__rate_interval]))`, "{{method}}"),
		lines("Incidents", "Incidents that are remembered.", "short").
			query(`max by (node) (podgauge_incidents{`+onNode+`})`, "{{node}}"),
	)
}

func itselfCost() []*panel {
	return row("Cost",
		lines("Time of a reading", "From the first question to the last answer of a scrape; it ends after a second, with what is there.", "s").levels("transparent", at{0.9, "orange"}).
			query(`max by (node) (podgauge_flight_end_timestamp_seconds{`+onNode+`} - podgauge_flight_begin_timestamp_seconds{`+onNode+`})`, "{{node}}"),
		lines("Series", "Series of a scrape.", "short").
			query(`max by (node) (podgauge_series{`+onNode+`})`, "{{node}}"),
		lines("Memory", "Resident memory of the process.", "bytes").
			query(`process_resident_memory_bytes{`+onNode+`} and on (instance, job) podgauge_build_info{`+onNode+`}`, "{{node}}"),
		lines("CPU", "Processors that the process keeps busy.", "short").
			query(`rate(process_cpu_seconds_total{`+onNode+`}[$__rate_interval]) and on (instance, job) podgauge_build_info{`+onNode+`}`, "{{node}}"),
		table("Families that the driver lacks", "Metric families that are absent because the driver's library has no function for them.",
			column{of: "family", title: "Family"},
			column{of: "A", title: "Nodes", unit: "short"},
		).query(`count by (family) (podgauge_family_unsupported{`+onNode+`})`, "").absent("none").size(24, 7),
	)
}
