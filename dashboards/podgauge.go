package dashboards

// podgaugeDashboard returns the dashboard of podgauge, driver and kubelet on each node.
func podgaugeDashboard() dashboard {
	return newDashboard("itself", "podgauge itself", "State and cost of podgauge, and state of driver and kubelet, on each node.",
		[]variable{varSource, varNode}, nil, podgaugeNow(), podgaugePlugin(), podgaugeOwners(), podgaugeCost())
}

func podgaugeNow() []*panel {
	down := func(title, description, expr string) *panel {
		return statPanel(title, description, sumOrZero(expr)).unit("short").thresholds("green", threshold{1, "red"})
	}
	return newRow("Now",
		down("Driver not usable", "Nodes without an initialized NVML.", `podgauge_nvml_up{`+matchNode+`} == bool 0`),
		down("Kubelet does not answer", "Nodes with a failed pod-resources request.", `podgauge_kubelet_up{`+matchNode+`} == bool 0`),
		down("Events unavailable", "Nodes without Xid events.", `podgauge_events_up{`+matchNode+`} == bool 0`),
		down("Stalled GPUs", "GPUs with a blocked call to the driver.", `nvidia_gpu_stalled{`+matchNode+`}`),
		down("Dropped series", "Series above --metrics.series-limit, which scrapes omit.", `podgauge_series_dropped{`+matchNode+`}`),
		down("State not saved", "Nodes that cannot write health or incidents to disk. A restart loses the state.",
			`(podgauge_state_up{`+matchNode+`} == 0 or podgauge_incident_store_up{`+matchNode+`} == 0) == bool 0`),
		tablePanel("Nodes", "A row for each podgauge.",
			column{key: "node", title: "Node", link: nodeURL},
			column{key: "version", title: "Version"},
			column{key: "goversion", title: "Go"},
			column{key: "A", title: "Runs", hidden: true},
			column{key: "B", title: "Driver", mappings: yesIsGood},
			column{key: "C", title: "Kubelet", mappings: yesIsGood},
			column{key: "D", title: "Events", mappings: yesIsGood},
			column{key: "E", title: "Simulated", mappings: yesIsBad},
			column{key: "F", title: "Allocation age", unit: "s"},
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
		timeSeriesPanel("Devices listed to the kubelets", "By resource and health.", "short").stack().
			query(`sum by (resource, health) (podgauge_plugin_devices{`+matchNode+`})`, "{{resource}} {{health}}"),
		timeSeriesPanel("Unregistered resources", "Resources without a stream to the kubelet, by node. Pods with the resource do not start on the node.", "short").bars().
			query(`sum by (node, resource) (podgauge_plugin_streams{`+matchNode+`} == bool 0) > 0`, "{{node}} {{resource}}").noValue("none"),
		timeSeriesPanel("Registrations", "By outcome, in the last five minutes. A registration after each kubelet restart is normal.", "short").bars().
			query(`sum by (resource, result) (increase(podgauge_registrations_total{`+matchNode+`}[5m])) > 0`, "{{resource}} {{result}}").noValue("none"),
		timeSeriesPanel("Rejected requests", "Rejected device requests of containers in the last five minutes, by reason.", "short").bars().
			query(`sum by (resource, reason) (increase(podgauge_plugin_refusals_total{`+matchNode+`}[5m])) > 0`, "{{reason}} · {{resource}}").noValue("none"),
		timeSeriesPanel("Plugin response time", "99th percentile of the device plugin's response time.", "s").
			query(`histogram_quantile(0.99, sum by (le, method) (rate(podgauge_plugin_request_duration_seconds_bucket{`+matchNode+`}[$__rate_interval])))`, "{{method}}").noValue("no requests"),
		timeSeriesPanel("Plugin errors", "Error responses of the device plugin per second.", "short").
			query(`sum by (method) (rate(podgauge_plugin_request_errors_total{`+matchNode+`}[$__rate_interval]))`, "{{method}}"),
	)
}

func podgaugeOwners() []*panel {
	return newRow("Allocations",
		timeSeriesPanel("Allocation age", "Age of the kubelet's response with the allocations of a scrape.", "s").thresholds("transparent", threshold{60, "orange"}).
			query(`max by (node) (podgauge_holders_age_seconds{`+matchNode+`})`, "{{node}}"),
		timeSeriesPanel("Kubelet response time", "99th percentile of the response time of the pod-resources API.", "s").
			query(`histogram_quantile(0.99, sum by (le, method) (rate(podgauge_pod_resources_request_duration_seconds_bucket{`+matchNode+`}[$__rate_interval])))`, "{{method}}"),
		timeSeriesPanel("Kubelet errors", "Failed requests to the pod-resources API per second.", "short").
			query(`sum by (method) (rate(podgauge_pod_resources_request_errors_total{`+matchNode+`}[$__rate_interval]))`, "{{method}}"),
		timeSeriesPanel("Incidents", "Stored incidents.", "short").
			query(`max by (node) (podgauge_incidents{`+matchNode+`})`, "{{node}}"),
	)
}

func podgaugeCost() []*panel {
	return newRow("Cost",
		timeSeriesPanel("Collection duration", "Duration of a collection; after a second a scrape returns the values collected so far.", "s").thresholds("transparent", threshold{0.9, "orange"}).
			query(`max by (node) (podgauge_flight_end_timestamp_seconds{`+matchNode+`} - podgauge_flight_begin_timestamp_seconds{`+matchNode+`})`, "{{node}}"),
		timeSeriesPanel("Series", "Series of a scrape.", "short").
			query(`max by (node) (podgauge_series{`+matchNode+`})`, "{{node}}"),
		timeSeriesPanel("Memory", "Resident memory of the process.", "bytes").
			query(`process_resident_memory_bytes{`+matchNode+`} and on (instance, job) podgauge_build_info{`+matchNode+`}`, "{{node}}"),
		timeSeriesPanel("CPU", "CPU cores in use by the process.", "short").
			query(`rate(process_cpu_seconds_total{`+matchNode+`}[$__rate_interval]) and on (instance, job) podgauge_build_info{`+matchNode+`}`, "{{node}}"),
		tablePanel("Unsupported families", "Metric families without a function in the driver's library.",
			column{key: "family", title: "Family"},
			column{key: "A", title: "Nodes", unit: "short"},
		).query(`count by (family) (podgauge_family_unsupported{`+matchNode+`})`, "").noValue("none").size(24, 7),
	)
}
