package dashboards

import (
	"fmt"
	"strings"
)

// recordingRule is an expression over the whole fleet with its series name.
// OF is a placeholder for the matchers of the dashboard's selections, RATE for the window of a rate.
type recordingRule struct {
	record  string
	comment string // a comment in the file
	expr    string
	// recordedExpr replaces the series of the rule if a dashboard derives the value from a different series.
	recordedExpr string
}

// joinModel adds the model label to the series of a device.
// nvidia_gpu_info includes partitioned GPUs, which cannot be allocated but have readings of the whole GPU.
const joinModel = ` * on (node, uuid, mig_uuid) group_left (model) max by (node, uuid, mig_uuid, model) (nvidia_gpu_info{OF})`

// idleExpr selects devices that a single container has had for half an hour without any use.
// MIG devices without GPM have no utilization.
const idleExpr = `
	nvidia_gpu_allocated{namespace!="",OF} == 1
	and on (node, uuid, mig_uuid, namespace, pod, container) (
		(
			max_over_time(nvidia_gpu_utilization_ratio{OF}[30m])
			or max_over_time(nvidia_gpu_graphics_engine_active_ratio{mig_uuid!="",OF}[30m])
		) == 0
	)
	and on (node, uuid, mig_uuid, namespace, pod, container) nvidia_gpu_allocated{OF} offset 30m == 1`

// Rules of the fleet. `max by` the device's labels counts a device once, independent of owner labels; readings with an empty
// mig_uuid belong to whole GPUs.
var (
	deviceCount = recordingRule{
		record: "node_model:podgauge_devices:count", comment: "Devices that can be held, whole GPUs and MIG slices.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{OF} >= bool 0)` + joinModel + `)`,
	}
	allocatedSum = recordingRule{
		record: "node_model:podgauge_devices_allocated:sum", comment: "Those that are allocated.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_allocated{OF})` + joinModel + `)`,
	}
	allocatedCount = recordingRule{
		record: "node_model:podgauge_devices_allocated:count", comment: "Devices of which it is known whether they are allocated, to divide the sum by.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_allocated{OF} >= bool 0)` + joinModel + `)`,
	}
	unhealthySum = recordingRule{
		record: "node_model:podgauge_devices_unhealthy:sum", comment: "Those that cannot be used.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{OF} == bool 0)` + joinModel + `)`,
	}
	idleAllocatedSum = recordingRule{
		record: "node_model:podgauge_devices_idle_held:sum", comment: "Those that one container has held for half an hour in which nothing ran on them; absent where there are none.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (` + idleExpr + `)` + joinModel + `)`,
	}
	utilizationSum = recordingRule{
		record: "node_model:nvidia_gpu_utilization_ratio:sum", comment: "Utilisation, to be divided by the next.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_utilization_ratio{OF})` + joinModel + `)`,
	}
	utilizationCount = recordingRule{
		record: "node_model:nvidia_gpu_utilization_ratio:count", comment: "GPUs whose utilisation is read: those that are not partitioned.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_utilization_ratio{OF} >= bool 0)` + joinModel + `)`,
	}
	memoryUsedSum = recordingRule{
		record: "node_model:nvidia_gpu_memory_used_bytes:sum", comment: "Memory in use.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_memory_used_bytes{mig_uuid="",OF})` + joinModel + `)`,
	}
	memoryTotalSum = recordingRule{
		record: "node_model:nvidia_gpu_memory_total_bytes:sum", comment: "Memory that there is.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_memory_total_bytes{mig_uuid="",OF})` + joinModel + `)`,
	}
	powerSum = recordingRule{
		record: "node_model:nvidia_gpu_power_watts:sum", comment: "Power.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_power_watts{mig_uuid="",OF})` + joinModel + `)`,
	}
	devicesByNamespace = recordingRule{
		record: "node_namespace:podgauge_devices_allocated:count", comment: "Devices by the namespace that holds them; one that several hold counts in each.",
		expr: `count by (node, namespace) (max by (node, namespace, uuid, mig_uuid) (nvidia_gpu_allocation_info{OF}))`,
	}
	powerByNamespace = recordingRule{
		record: "node_namespace:nvidia_gpu_energy_joules:rate5m", comment: "Power by the namespace that holds the GPU, from the energy; empty for GPUs that are unallocated, shared or partitioned, or whose owner is unknown.",
		expr: `sum by (node, namespace) (rate(nvidia_gpu_energy_joules_total{OF}[RATE]))`,
	}
	devicesWithIncidents = recordingRule{
		record: "node_reason:podgauge_devices_hit:count1h", comment: "Devices to which it happened within the hour; by its time, since no increase shows a series' first event.",
		expr: `count by (node, reason) (time() - max by (node, uuid, mig_uuid, reason) (nvidia_gpu_incident_last_timestamp_seconds{OF}) < 3600)`,
	}

	// energyByNamespace is the energy in the dashboard's time range. The recorded form sums powerByNamespace by minute.
	energyByNamespace = recordingRule{
		expr:         `sum by (node, namespace) (increase(nvidia_gpu_energy_joules_total{OF}[$__range]))`,
		recordedExpr: `60 * sum_over_time(node_namespace:nvidia_gpu_energy_joules:rate5m{OF}[$__range])`,
	}

	recordingRules = []recordingRule{deviceCount, allocatedSum, allocatedCount, unhealthySum, idleAllocatedSum, utilizationSum, utilizationCount, memoryUsedSum, memoryTotalSum, powerSum, devicesByNamespace, powerByNamespace, devicesWithIncidents}
)

// exprFunc returns the expression of a rule for the fleet's panels: live or recorded.
type exprFunc = func(recordingRule) string

// liveExpr returns the rule's expression for evaluation by the panel.
func liveExpr(r recordingRule) string {
	return "(" + oneLine(strings.NewReplacer("OF", matchNode, "RATE", "$__rate_interval").Replace(r.expr)) + ")"
}

// recordedSeries returns a selector of the recorded series.
func recordedSeries(r recordingRule) string {
	if r.recordedExpr != "" {
		return "(" + strings.ReplaceAll(r.recordedExpr, "OF", matchNode) + ")"
	}
	return r.record + "{" + matchNode + "}"
}

// RecordingRules returns the content of deploy/rules/podgauge.recording.yaml.
func RecordingRules() []byte {
	var text strings.Builder
	text.WriteString(`# What the dashboard "Fleet, recorded" shows, worked out once a minute: some ten series a node in
# place of some hundred a GPU. Also what to keep for years, or to send elsewhere. They take
# honor_labels and a label "node" (docs/operations.md). Made by package dashboards: make golden.
groups:
  - name: podgauge-recording
    interval: 1m
    rules:
`)
	replacer := strings.NewReplacer("{OF}", "", ",OF", "", "RATE", "5m")
	for _, r := range recordingRules {
		fmt.Fprintf(&text, "      # %s\n      - record: %s\n        expr: >-\n          %s\n", r.comment, r.record, oneLine(replacer.Replace(r.expr)))
	}
	return []byte(text.String())
}
