package dashboards

import "slices"

// fleetDashboard returns the overview of all nodes.
func fleetDashboard(recorded bool) dashboard {
	uid, title, expr := "fleet", "Fleet", liveExpr
	description := "GPUs of all nodes: number, allocation, utilization and health."
	attention := newRow("Needs attention", unhealthyDevices(), idleDevices())
	if recorded {
		uid, title, expr = "fleet-recorded", "Fleet, recorded", recordedSeries
		description += " Reads the series of deploy/rules/podgauge.recording.yaml, for fleets too large for live queries."
		attention = newRow("Needs attention", unhealthyDevices())
	}
	return newDashboard(uid, title, description, []variable{varSource, varNode}, nil, fleetNow(expr), fleetTrends(expr), fleetBreakdown(expr), attention)
}

// sumOrZero returns a sum that is 0 without series.
func sumOrZero(expr string) string { return "sum(" + expr + ") or vector(0)" }

func fleetNow(expr exprFunc) []*panel {
	return newRow("Now",
		statPanel("Nodes", "Nodes with a scraped podgauge.", `count(podgauge_nvml_up{`+matchNode+`})`).unit("short"),
		statPanel("Nodes without a driver", "Nodes without a usable NVML; the GPUs have no metrics.",
			sumOrZero(`podgauge_nvml_up{`+matchNode+`} == bool 0`)).unit("short").thresholds("green", threshold{1, "red"}).size(5, 4),
		statPanel("Devices", "Allocatable whole GPUs and MIG devices. A partitioned GPU counts as its MIG devices.", `sum(`+expr(deviceCount)+`)`).unit("short").size(5, 4),
		statPanel("Unhealthy", "Devices listed as unhealthy to the kubelets, with details below.",
			sumOrZero(expr(unhealthySum))).unit("short").thresholds("green", threshold{1, "red"}).size(5, 4),
		statPanel("Idle but allocated", "Devices allocated to a single container for half an hour without any use. MIG devices: Hopper and newer only.",
			sumOrZero(expr(idleAllocatedSum))).unit("short").thresholds("green", threshold{1, "orange"}).size(5, 4),
		statPanel("Allocated", "Allocated share of the devices with a known allocation.",
			`sum(`+expr(allocatedSum)+`) / sum(`+expr(allocatedCount)+`)`).ratio().size(6, 4),
		statPanel("Utilization", "Mean of all GPUs without MIG, allocated or not.",
			`sum(`+expr(utilizationSum)+`) / sum(`+expr(utilizationCount)+`)`).ratio().size(6, 4),
		statPanel("Power", "Total power of all GPUs.", `sum(`+expr(powerSum)+`)`).unit("watt").size(6, 4),
		statPanel("Energy", "Total energy of all GPUs in the selected time range, allocated or not.", `sum(`+expr(energyByNamespace)+`) / 3.6e6`).unit("kwatth").noValue("unknown").size(6, 4),
	)
}

func fleetTrends(expr exprFunc) []*panel {
	return newRow("In time",
		timeSeriesPanel("Allocated, by model", "Allocated share of each model's devices with a known allocation.", "").ratio().
			query(`sum by (model) (`+expr(allocatedSum)+`) / sum by (model) (`+expr(allocatedCount)+`)`, "{{model}}"),
		timeSeriesPanel("Utilization, by model", "Mean of a model's GPUs without MIG.", "").ratio().
			query(`sum by (model) (`+expr(utilizationSum)+`) / sum by (model) (`+expr(utilizationCount)+`)`, "{{model}}"),
		timeSeriesPanel("Devices, by namespace", "Devices allocated to a namespace's pods. A shared device counts in each namespace.", "short").stack().
			query(`sum by (namespace) (`+expr(devicesByNamespace)+`)`, "{{namespace}}"),
		timeSeriesPanel("Idle but allocated, and unhealthy", "Devices without benefit for any workload.", "short").
			query(sumOrZero(expr(idleAllocatedSum)), "idle but allocated").
			query(sumOrZero(expr(unhealthySum)), "unhealthy"),
		timeSeriesPanel("Power, by namespace", "Power of the GPUs of a namespace's pods, from the energy counters. Unattributed GPUs are unallocated, shared or partitioned, or have an unknown owner.", "watt").stack().
			query(`sum by (namespace) (`+labelUnattributed(expr(powerByNamespace))+`)`, "{{namespace}}"),
		timeSeriesPanel("Power, by model", "Total power of a model's GPUs.", "watt").stack().
			query(`sum by (model) (`+expr(powerSum)+`)`, "{{model}}"),
		timeSeriesPanel("Memory used, by model", "Share of a model's GPU memory in use.", "").ratio().
			query(`sum by (model) (`+expr(memoryUsedSum)+`) / sum by (model) (`+expr(memoryTotalSum)+`)`, "{{model}}"),
		timeSeriesPanel("Incidents, by reason", "Devices with an incident in the last hour: reports of the driver and evidence of failures.", "short").bars().
			query(`sum by (reason) (`+expr(devicesWithIncidents)+`)`, "{{reason}}").noValue("no incidents"),
	)
}

// labelUnattributed adds a namespace label to series without namespace.
func labelUnattributed(expr string) string {
	return `label_replace(` + expr + `, "namespace", "(unattributed)", "namespace", "")`
}

// breakdownQueries adds the queries of breakdownColumns, by node or model.
func breakdownQueries(p *panel, by string, expr exprFunc) *panel {
	sum := func(r recordingRule) string { return `sum by (` + by + `) (` + expr(r) + `)` }
	return p.query(sum(deviceCount), "").query(sum(allocatedSum), "").query(sum(unhealthySum), "").query(sum(idleAllocatedSum), "").
		query(sum(utilizationSum)+` / `+sum(utilizationCount), "").query(sum(memoryUsedSum)+` / `+sum(memoryTotalSum), "").query(sum(powerSum), "")
}

var breakdownColumns = []column{
	{key: "A", title: "Devices", unit: "short"},
	{key: "B", title: "Allocated", unit: "short"},
	{key: "C", title: "Unhealthy", unit: "short", thresholds: []threshold{{1, "red"}}},
	{key: "D", title: "Idle but allocated", unit: "short", thresholds: []threshold{{1, "orange"}}},
	{key: "E", title: "Utilization", unit: "percentunit"},
	{key: "F", title: "Memory used", unit: "percentunit"},
	{key: "G", title: "Power", unit: "watt"},
}

func fleetBreakdown(expr exprFunc) []*panel {
	return newRow("By node, model and namespace",
		breakdownQueries(tablePanel("By node", "A row for each node, with a link to the node's devices.",
			slices.Concat([]column{{key: "node", title: "Node", link: nodeURL}}, breakdownColumns)...), "node", expr).size(24, 10),
		breakdownQueries(tablePanel("By model", "A row for each GPU model. The devices of a partitioned GPU are its MIG devices.",
			slices.Concat([]column{{key: "model", title: "Model"}}, breakdownColumns)...), "model", expr).size(14, 8),
		tablePanel("By namespace", "Devices allocated to a namespace's pods, with power, and energy in the selected time range. Unattributed GPUs are unallocated, shared or partitioned, or have an unknown owner.",
			column{key: "namespace", title: "Namespace", link: namespaceURL},
			column{key: "A", title: "Devices", unit: "short"},
			column{key: "B", title: "Power", unit: "watt"},
			column{key: "C", title: "Energy", unit: "kwatth"},
		).query(`sum by (namespace) (`+expr(devicesByNamespace)+`)`, "").
			query(`sum by (namespace) (`+labelUnattributed(expr(powerByNamespace))+`)`, "").
			query(`sum by (namespace) (`+labelUnattributed(expr(energyByNamespace))+`) / 3.6e6`, "").size(10, 8),
	)
}

// unhealthyDevices reads nvidia_gpu_unhealthy_info, which has too few series to need a recording rule.
func unhealthyDevices() *panel {
	return tablePanel("Unhealthy devices", "Unhealthy devices with reason, required action and the current container. The kubelet does not remove allocated devices from containers.",
		column{key: "node", title: "Node", link: deviceURL},
		column{key: "gpu", title: "GPU"},
		column{key: "uuid", title: "UUID", link: deviceURL},
		column{key: "mig_uuid", title: "MIG device"},
		column{key: "reason", title: "Reason"},
		column{key: "action", title: "Action"},
		column{key: "namespace", title: "Namespace"},
		column{key: "pod", title: "Pod", link: podURL},
		column{key: "container", title: "Container"},
		column{key: "A", title: "Since", unit: "dateTimeAsIso"},
	).query(`max by (node, gpu, uuid, mig_uuid, reason, action, namespace, pod, container) (nvidia_gpu_unhealthy_info{`+matchNode+`})
		* on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) (nvidia_gpu_health_since_timestamp_seconds{`+matchNode+`}) * 1000`, "").
		noValue("all devices are healthy")
}

// idleDevices reads half an hour of all devices, too slow for the largest fleets.
func idleDevices() *panel {
	return tablePanel("Idle allocated devices", "Containers with a device allocated for half an hour without any use.",
		column{key: "namespace", title: "Namespace"},
		column{key: "pod", title: "Pod", link: podURL},
		column{key: "container", title: "Container"},
		column{key: "node", title: "Node"},
		column{key: "gpu", title: "GPU"},
		column{key: "uuid", title: "UUID", link: deviceURL},
		column{key: "mig_uuid", title: "MIG device"},
		column{key: "A", title: "Allocated", hidden: true},
	).query(`max by (namespace, pod, container, node, gpu, uuid, mig_uuid) `+liveExpr(recordingRule{expr: idleExpr}), "").noValue("none")
}
