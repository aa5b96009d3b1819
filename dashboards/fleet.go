package dashboards

import "slices"

// fleetDashboard returns the overview of all nodes.
func fleetDashboard(recorded bool) dashboard {
	uid, title, expr := "fleet", "Fleet", liveExpr
	description := "GPUs of all nodes: how many there are, who has them, what of them is idle or broken."
	attention := newRow("What to look at", unhealthyDevices(), idleDevices())
	if recorded {
		uid, title, expr = "fleet-recorded", "Fleet, recorded", recordedSeries
		description += " From the series of deploy/rules/podgauge.recording.yaml, for fleets in which the other one takes long."
		attention = newRow("What to look at", unhealthyDevices())
	}
	return newDashboard(uid, title, description, []variable{varSource, varNode}, nil, fleetNow(expr), fleetTrends(expr), fleetBreakdown(expr), attention)
}

// sumOrZero returns a sum that is 0 without series.
func sumOrZero(expr string) string { return "sum(" + expr + ") or vector(0)" }

func fleetNow(expr exprFunc) []*panel {
	return newRow("Now",
		statPanel("Nodes", "Nodes whose podgauge answers Prometheus.", `count(podgauge_nvml_up{`+matchNode+`})`).unit("short"),
		statPanel("Nodes without a driver", "Nodes on which NVML cannot be used: nothing is known of their GPUs.",
			sumOrZero(`podgauge_nvml_up{`+matchNode+`} == bool 0`)).unit("short").thresholds("green", threshold{1, "red"}).size(5, 4),
		statPanel("Devices", "Whole GPUs and MIG slices that can be held. A partitioned GPU counts by its slices.", `sum(`+expr(deviceCount)+`)`).unit("short").size(5, 4),
		statPanel("Unhealthy", "Devices that the kubelets are told not to use. They are listed below.",
			sumOrZero(expr(unhealthySum))).unit("short").thresholds("green", threshold{1, "red"}).size(5, 4),
		statPanel("Idle but held", "Devices that one container has held for half an hour in which nothing ran on them. Of MIG slices only Hopper and newer can tell.",
			sumOrZero(expr(idleAllocatedSum))).unit("short").thresholds("green", threshold{1, "orange"}).size(5, 4),
		statPanel("Allocated", "Share of the devices that are allocated to containers, among those of which the kubelets tell it.",
			`sum(`+expr(allocatedSum)+`) / sum(`+expr(allocatedCount)+`)`).ratio().size(6, 4),
		statPanel("Utilisation", "Mean over the GPUs that are not partitioned, held or not.",
			`sum(`+expr(utilizationSum)+`) / sum(`+expr(utilizationCount)+`)`).ratio().size(6, 4),
		statPanel("Power", "What all GPUs draw together.", `sum(`+expr(powerSum)+`)`).unit("watt").size(6, 4),
		statPanel("Energy", "What all GPUs took in the range of time that is shown, held or not.", `sum(`+expr(energyByNamespace)+`) / 3.6e6`).unit("kwatth").noValue("not known").size(6, 4),
	)
}

func fleetTrends(expr exprFunc) []*panel {
	return newRow("In time",
		timeSeriesPanel("Allocated, by model", "Share of each model's devices that are allocated, among those of which the kubelets tell it.", "").ratio().
			query(`sum by (model) (`+expr(allocatedSum)+`) / sum by (model) (`+expr(allocatedCount)+`)`, "{{model}}"),
		timeSeriesPanel("Utilisation, by model", "Mean over the GPUs of a model that are not partitioned.", "").ratio().
			query(`sum by (model) (`+expr(utilizationSum)+`) / sum by (model) (`+expr(utilizationCount)+`)`, "{{model}}"),
		timeSeriesPanel("Devices, by namespace", "Devices that the pods of a namespace hold; one that several hold counts in each.", "short").stack().
			query(`sum by (namespace) (`+expr(devicesByNamespace)+`)`, "{{namespace}}"),
		timeSeriesPanel("Idle but held, and unhealthy", "Devices that are paid for and of no use.", "short").
			query(sumOrZero(expr(idleAllocatedSum)), "idle but held").
			query(sumOrZero(expr(unhealthySum)), "unhealthy"),
		timeSeriesPanel("Power, by namespace", "What the GPUs of a namespace's pods draw, from their energy counters. Unattributed are those that are unallocated, shared or partitioned, or whose owner is unknown.", "watt").stack().
			query(`sum by (namespace) (`+labelUnattributed(expr(powerByNamespace))+`)`, "{{namespace}}"),
		timeSeriesPanel("Power, by model", "What the GPUs of a model draw together.", "watt").stack().
			query(`sum by (model) (`+expr(powerSum)+`)`, "{{model}}"),
		timeSeriesPanel("Memory used, by model", "Share of the memory of a model's GPUs that is in use.", "").ratio().
			query(`sum by (model) (`+expr(memoryUsedSum)+`) / sum by (model) (`+expr(memoryTotalSum)+`)`, "{{model}}"),
		timeSeriesPanel("Incidents, by reason", "Devices to which something happened in the hour before: reports of the driver, and evidence of a failure.", "short").bars().
			query(`sum by (reason) (`+expr(devicesWithIncidents)+`)`, "{{reason}}").noValue("nothing happened"),
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
	{key: "D", title: "Idle but held", unit: "short", thresholds: []threshold{{1, "orange"}}},
	{key: "E", title: "Utilisation", unit: "percentunit"},
	{key: "F", title: "Memory used", unit: "percentunit"},
	{key: "G", title: "Power", unit: "watt"},
}

func fleetBreakdown(expr exprFunc) []*panel {
	return newRow("By node, model and namespace",
		breakdownQueries(tablePanel("What each node has", "A line for each node; the name leads to its devices.",
			slices.Concat([]column{{key: "node", title: "Node", link: nodeURL}}, breakdownColumns)...), "node", expr).size(24, 10),
		breakdownQueries(tablePanel("What there is of each model", "A line for each model of GPU; of a partitioned one the slices are its devices.",
			slices.Concat([]column{{key: "model", title: "Model"}}, breakdownColumns)...), "model", expr).size(14, 8),
		tablePanel("What each namespace has", "Devices that a namespace's pods hold, and what its GPUs draw and took in the range of time that is shown. Unattributed are those that are unallocated, shared or partitioned, or whose owner is unknown.",
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
	return tablePanel("Unhealthy devices", "Why each cannot be used, what that asks for, and who holds it nevertheless: the kubelet takes none from a container.",
		column{key: "node", title: "Node", link: deviceURL},
		column{key: "gpu", title: "GPU"},
		column{key: "uuid", title: "UUID", link: deviceURL},
		column{key: "mig_uuid", title: "MIG slice"},
		column{key: "reason", title: "Reason"},
		column{key: "action", title: "Action"},
		column{key: "namespace", title: "Namespace"},
		column{key: "pod", title: "Pod", link: podURL},
		column{key: "container", title: "Container"},
		column{key: "A", title: "Since", unit: "dateTimeAsIso"},
	).query(`max by (node, gpu, uuid, mig_uuid, reason, action, namespace, pod, container) (nvidia_gpu_unhealthy_info{`+matchNode+`})
		* on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) (nvidia_gpu_health_since_timestamp_seconds{`+matchNode+`}) * 1000`, "").
		noValue("all are healthy")
}

// idleDevices reads half an hour of all devices, too slow for the largest fleets.
func idleDevices() *panel {
	return tablePanel("Held and idle", "Containers that have held a device for half an hour in which nothing ran on it.",
		column{key: "namespace", title: "Namespace"},
		column{key: "pod", title: "Pod", link: podURL},
		column{key: "container", title: "Container"},
		column{key: "node", title: "Node"},
		column{key: "gpu", title: "GPU"},
		column{key: "uuid", title: "UUID", link: deviceURL},
		column{key: "mig_uuid", title: "MIG slice"},
		column{key: "A", title: "Held", hidden: true},
	).query(`max by (namespace, pod, container, node, gpu, uuid, mig_uuid) `+liveExpr(recordingRule{expr: idleExpr}), "").noValue("none is")
}
