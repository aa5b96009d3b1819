package dashboards

// podgaugeDashboard returns the dashboard of podgauge, driver and kubelet on each node.
func podgaugeDashboard() dashboard {
	return newDashboard("itself", "podgauge itself", "Whether podgauge, the driver and the kubelets do their part on each node, and what it costs.",
		[]variable{varSource, varNode}, nil, podgaugeNow(), podgaugePlugin(), podgaugeOwners(), podgaugeCost())
}

func podgaugeNow() []*panel {
	down := func(title, description, expr string) *panel {
		return statPanel(title, description, sumOrZero(expr)).unit("short").thresholds("green", threshold{1, "red"})
	}
	return newRow("Now",
		down("Driver not usable", "Nodes on which NVML is not initialised.", `podgauge_nvml_up{`+matchNode+`} == bool 0`),
		down("Kubelet does not answer", "Nodes on which the kubelet did not say who holds what.", `podgauge_kubelet_up{`+matchNode+`} == bool 0`),
		down("Events not heard", "Nodes on which Xid errors are not heard.", `podgauge_events_up{`+matchNode+`} == bool 0`),
		down("GPUs that stall", "GPUs with a call to the driver that has not come back.", `nvidia_gpu_stalled{`+matchNode+`}`),
		down("Series left out", "Series that scrapes leave out, since there would be more than --metrics.series-limit.", `podgauge_series_dropped{`+matchNode+`}`),
		down("State not kept", "Nodes on which health or incidents cannot be written to disk; a restart would forget.",
			`(podgauge_state_up{`+matchNode+`} == 0 or podgauge_incident_store_up{`+matchNode+`} == 0) == bool 0`),
		tablePanel("Nodes", "A line for each podgauge.",
			column{key: "node", title: "Node", link: nodeURL},
			column{key: "version", title: "Version"},
			column{key: "goversion", title: "Go"},
			column{key: "A", title: "Runs", hidden: true},
			column{key: "B", title: "Driver", mappings: yesIsGood},
			column{key: "C", title: "Kubelet", mappings: yesIsGood},
			column{key: "D", title: "Events", mappings: yesIsGood},
			column{key: "E", title: "Simulated", mappings: yesIsBad},
			column{key: "F", title: "Age of holders", unit: "s"},
			column{key: "G", title: "Series", unit: "short"},
		).query(`max by (node, version, goversion) (podgauge_build_info{`+matchNode+`})`, "").
			query(`min by (node) (podgauge_nvml_up{`+matchNode+`})`, "").
			query(`min by (node) (podgauge_kubelet_up{`+matchNode+`})`, "").
			query(`min by (node) (podgauge_events_up{`+matchNode+`})`, "").
			query(`max by (node) (podgauge_simulated{`+matchNode+`})`, "").
			query(`max by (node) (podgauge_holders_age_seconds{`+matchNode+`})`, "").
			query(`max by (node) (podgauge_series{`+matchNode+`})`, "").size(24, 8),
	)
}

func podgaugePlugin() []*panel {
	return newRow("Device plugin",
		timeSeriesPanel("Devices that the kubelets were told of", "By resource and health.", "short").stack().
			query(`sum by (resource, health) (podgauge_plugin_devices{`+matchNode+`})`, "{{resource}} {{health}}"),
		timeSeriesPanel("Resources that are not registered", "Resources without a stream to the kubelet, by node: no pod that asks for them is started there.", "short").bars().
			query(`sum by (node, resource) (podgauge_plugin_streams{`+matchNode+`} == bool 0) > 0`, "{{node}} {{resource}}").noValue("all are"),
		timeSeriesPanel("Registrations", "By outcome, in the five minutes before. One for each restart of a kubelet is normal.", "short").bars().
			query(`sum by (resource, result) (increase(podgauge_registrations_total{`+matchNode+`}[5m])) > 0`, "{{resource}} {{result}}").noValue("none"),
		timeSeriesPanel("Refusals", "Containers that were not given what they asked for, in the five minutes before, by reason.", "short").bars().
			query(`sum by (resource, reason) (increase(podgauge_plugin_refusals_total{`+matchNode+`}[5m])) > 0`, "{{reason}} · {{resource}}").noValue("none"),
		timeSeriesPanel("Time to answer the kubelet", "99 of 100 answers of the device plugin were quicker.", "s").
			query(`histogram_quantile(0.99, sum by (le, method) (rate(podgauge_plugin_request_duration_seconds_bucket{`+matchNode+`}[$__rate_interval])))`, "{{method}}").noValue("no question"),
		timeSeriesPanel("Errors to the kubelet", "Answers of the device plugin that were errors, a second.", "short").
			query(`sum by (method) (rate(podgauge_plugin_request_errors_total{`+matchNode+`}[$__rate_interval]))`, "{{method}}"),
	)
}

func podgaugeOwners() []*panel {
	return newRow("Who holds what",
		timeSeriesPanel("Age of the holders", "How long ago the kubelet said what a scrape's holders are drawn from.", "s").thresholds("transparent", threshold{60, "orange"}).
			query(`max by (node) (podgauge_holders_age_seconds{`+matchNode+`})`, "{{node}}"),
		timeSeriesPanel("Time that the kubelet takes", "99 of 100 answers about who holds what were quicker.", "s").
			query(`histogram_quantile(0.99, sum by (le, method) (rate(podgauge_pod_resources_request_duration_seconds_bucket{`+matchNode+`}[$__rate_interval])))`, "{{method}}"),
		timeSeriesPanel("Questions without an answer", "Questions to the kubelet about who holds what, a second.", "short").
			query(`sum by (method) (rate(podgauge_pod_resources_request_errors_total{`+matchNode+`}[$__rate_interval]))`, "{{method}}"),
		timeSeriesPanel("Incidents", "Incidents that are remembered.", "short").
			query(`max by (node) (podgauge_incidents{`+matchNode+`})`, "{{node}}"),
	)
}

func podgaugeCost() []*panel {
	return newRow("Cost",
		timeSeriesPanel("Time of a reading", "From the first question to the last answer of a scrape; it ends after a second, with what is there.", "s").thresholds("transparent", threshold{0.9, "orange"}).
			query(`max by (node) (podgauge_flight_end_timestamp_seconds{`+matchNode+`} - podgauge_flight_begin_timestamp_seconds{`+matchNode+`})`, "{{node}}"),
		timeSeriesPanel("Series", "Series of a scrape.", "short").
			query(`max by (node) (podgauge_series{`+matchNode+`})`, "{{node}}"),
		timeSeriesPanel("Memory", "Resident memory of the process.", "bytes").
			query(`process_resident_memory_bytes{`+matchNode+`} and on (instance, job) podgauge_build_info{`+matchNode+`}`, "{{node}}"),
		timeSeriesPanel("CPU", "Processors that the process keeps busy.", "short").
			query(`rate(process_cpu_seconds_total{`+matchNode+`}[$__rate_interval]) and on (instance, job) podgauge_build_info{`+matchNode+`}`, "{{node}}"),
		tablePanel("Families that the driver lacks", "Metric families that are absent because the driver's library has no function for them.",
			column{key: "family", title: "Family"},
			column{key: "A", title: "Nodes", unit: "short"},
		).query(`count by (family) (podgauge_family_unsupported{`+matchNode+`})`, "").noValue("none").size(24, 7),
	)
}
