package dashboards

import "slices"

// fleet is all nodes at a glance.
func fleet(recorded bool) dashboard {
	uid, title, from := "fleet", "Fleet", asScraped
	about := "GPUs of all nodes: how many there are, who has them, what of them is idle or broken."
	look := row("What to look at", unhealthyDevices(), idleDevices())
	if recorded {
		uid, title, from = "fleet-recorded", "Fleet, recorded", asRecorded
		about += " From the series of deploy/rules/podgauge.recording.yaml, for fleets in which the other one takes long."
		look = row("What to look at", unhealthyDevices())
	}
	return compose(uid, title, about, []variable{varSource, varNode}, nil, fleetNow(from), fleetInTime(from), fleetParts(from), look)
}

// total is a sum that is 0 where there is nothing to sum up.
func total(expr string) string { return "sum(" + expr + ") or vector(0)" }

func fleetNow(from source) []*panel {
	return row("Now",
		stat("Nodes", "Nodes whose podgauge answers Prometheus.", `count(podgauge_nvml_up{`+onNode+`})`).unit("short"),
		stat("Nodes without a driver", "Nodes on which NVML cannot be used: nothing is known of their GPUs.",
			total(`podgauge_nvml_up{`+onNode+`} == bool 0`)).unit("short").levels("green", at{1, "red"}).size(5, 4),
		stat("Devices", "Whole GPUs and MIG slices that can be held. A partitioned GPU counts by its slices.", `sum(`+from(devices)+`)`).unit("short").size(5, 4),
		stat("Unhealthy", "Devices that the kubelets are told not to use. They are listed below.",
			total(from(unhealthy))).unit("short").levels("green", at{1, "red"}).size(5, 4),
		stat("Idle but held", "Devices that one container has held for half an hour in which nothing ran on them. Of MIG slices only Hopper and newer can tell.",
			total(from(idleHeld))).unit("short").levels("green", at{1, "orange"}).size(5, 4),
		stat("Allocated", "Share of the devices that are allocated to containers, among those of which the kubelets tell it.",
			`sum(`+from(allocated)+`) / sum(`+from(known)+`)`).share().size(6, 4),
		stat("Utilisation", "Mean over the GPUs that are not partitioned, held or not.",
			`sum(`+from(busy)+`) / sum(`+from(measured)+`)`).share().size(6, 4),
		stat("Power", "What all GPUs draw together.", `sum(`+from(power)+`)`).unit("watt").size(6, 4),
		stat("Energy", "What all GPUs took in the range of time that is shown, held or not.", `sum(`+from(took)+`) / 3.6e6`).unit("kwatth").absent("not known").size(6, 4),
	)
}

func fleetInTime(from source) []*panel {
	return row("In time",
		lines("Allocated, by model", "Share of each model's devices that are allocated, among those of which the kubelets tell it.", "").share().
			query(`sum by (model) (`+from(allocated)+`) / sum by (model) (`+from(known)+`)`, "{{model}}"),
		lines("Utilisation, by model", "Mean over the GPUs of a model that are not partitioned.", "").share().
			query(`sum by (model) (`+from(busy)+`) / sum by (model) (`+from(measured)+`)`, "{{model}}"),
		lines("Devices, by namespace", "Devices that the pods of a namespace hold; one that several hold counts in each.", "short").stack().
			query(`sum by (namespace) (`+from(heldBy)+`)`, "{{namespace}}"),
		lines("Idle but held, and unhealthy", "Devices that are paid for and of no use.", "short").
			query(total(from(idleHeld)), "idle but held").
			query(total(from(unhealthy)), "unhealthy"),
		lines("Power, by namespace", "What the GPUs of a namespace's pods draw, from their energy counters. Unattributed are those that are unallocated, shared or partitioned, or whose owner is unknown.", "watt").stack().
			query(`sum by (namespace) (`+named(from(drawnBy))+`)`, "{{namespace}}"),
		lines("Power, by model", "What the GPUs of a model draw together.", "watt").stack().
			query(`sum by (model) (`+from(power)+`)`, "{{model}}"),
		lines("Memory used, by model", "Share of the memory of a model's GPUs that is in use.", "").share().
			query(`sum by (model) (`+from(memoryUsed)+`) / sum by (model) (`+from(memoryTotal)+`)`, "{{model}}"),
		lines("Incidents, by reason", "Devices to which something happened in the hour before: reports of the driver, and evidence of a failure.", "short").bars().
			query(`sum by (reason) (`+from(hit)+`)`, "{{reason}}").absent("nothing happened"),
	)
}

// named gives what has no namespace a name.
func named(expr string) string {
	return `label_replace(` + expr + `, "namespace", "(unattributed)", "namespace", "")`
}

// whats are a table's columns of what there is by node or by model, and its queries.
func whats(p *panel, by string, from source) *panel {
	sum := func(r rule) string { return `sum by (` + by + `) (` + from(r) + `)` }
	return p.query(sum(devices), "").query(sum(allocated), "").query(sum(unhealthy), "").query(sum(idleHeld), "").
		query(sum(busy)+` / `+sum(measured), "").query(sum(memoryUsed)+` / `+sum(memoryTotal), "").query(sum(power), "")
}

var whatColumns = []column{
	{of: "A", title: "Devices", unit: "short"},
	{of: "B", title: "Allocated", unit: "short"},
	{of: "C", title: "Unhealthy", unit: "short", levels: []at{{1, "red"}}},
	{of: "D", title: "Idle but held", unit: "short", levels: []at{{1, "orange"}}},
	{of: "E", title: "Utilisation", unit: "percentunit"},
	{of: "F", title: "Memory used", unit: "percentunit"},
	{of: "G", title: "Power", unit: "watt"},
}

func fleetParts(from source) []*panel {
	return row("By node, model and namespace",
		whats(table("What each node has", "A line for each node; the name leads to its devices.",
			slices.Concat([]column{{of: "node", title: "Node", link: toNode}}, whatColumns)...), "node", from).size(24, 10),
		whats(table("What there is of each model", "A line for each model of GPU; of a partitioned one the slices are its devices.",
			slices.Concat([]column{{of: "model", title: "Model"}}, whatColumns)...), "model", from).size(14, 8),
		table("What each namespace has", "Devices that a namespace's pods hold, and what its GPUs draw and took in the range of time that is shown. Unattributed are those that are unallocated, shared or partitioned, or whose owner is unknown.",
			column{of: "namespace", title: "Namespace", link: toNamespace},
			column{of: "A", title: "Devices", unit: "short"},
			column{of: "B", title: "Power", unit: "watt"},
			column{of: "C", title: "Energy", unit: "kwatth"},
		).query(`sum by (namespace) (`+from(heldBy)+`)`, "").
			query(`sum by (namespace) (`+named(from(drawnBy))+`)`, "").
			query(`sum by (namespace) (`+named(from(took))+`) / 3.6e6`, "").size(10, 8),
	)
}

// unhealthyDevices are the few series that say what is wrong, which need no rule.
func unhealthyDevices() *panel {
	return table("Unhealthy devices", "Why each cannot be used, what that asks for, and who holds it nevertheless: the kubelet takes none from a container.",
		column{of: "node", title: "Node", link: toDevice},
		column{of: "gpu", title: "GPU"},
		column{of: "uuid", title: "UUID", link: toDevice},
		column{of: "mig_uuid", title: "MIG slice"},
		column{of: "reason", title: "Reason"},
		column{of: "action", title: "Action"},
		column{of: "namespace", title: "Namespace"},
		column{of: "pod", title: "Pod", link: toPod},
		column{of: "container", title: "Container"},
		column{of: "A", title: "Since", unit: "dateTimeAsIso"},
	).query(`max by (node, gpu, uuid, mig_uuid, reason, action, namespace, pod, container) (nvidia_gpu_unhealthy_info{`+onNode+`})
		* on (node, uuid, mig_uuid) group_left () max by (node, uuid, mig_uuid) (nvidia_gpu_health_since_timestamp_seconds{`+onNode+`}) * 1000`, "").
		absent("all are healthy")
}

// idleDevices takes half an hour of all devices: it is not for the largest fleets.
func idleDevices() *panel {
	return table("Held and idle", "Containers that have held a device for half an hour in which nothing ran on it.",
		column{of: "namespace", title: "Namespace"},
		column{of: "pod", title: "Pod", link: toPod},
		column{of: "container", title: "Container"},
		column{of: "node", title: "Node"},
		column{of: "gpu", title: "GPU"},
		column{of: "uuid", title: "UUID", link: toDevice},
		column{of: "mig_uuid", title: "MIG slice"},
		column{of: "A", title: "Held", hidden: true},
	).query(`max by (namespace, pod, container, node, gpu, uuid, mig_uuid) `+asScraped(rule{expr: idle}), "").absent("none is")
}
