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
		record: "node_model:podgauge_devices:count", comment: "Allocatable devices, whole GPUs and MIG devices.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{OF} >= bool 0)` + joinModel + `)`,
	}
	allocatedSum = recordingRule{
		record: "node_model:podgauge_devices_allocated:sum", comment: "Allocated devices.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_allocated{OF})` + joinModel + `)`,
	}
	allocatedCount = recordingRule{
		record: "node_model:podgauge_devices_allocated:count", comment: "Devices with a known allocation, as divisor of the sum.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_allocated{OF} >= bool 0)` + joinModel + `)`,
	}
	unhealthySum = recordingRule{
		record: "node_model:podgauge_devices_unhealthy:sum", comment: "Unhealthy devices.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_healthy{OF} == bool 0)` + joinModel + `)`,
	}
	idleAllocatedSum = recordingRule{
		record: "node_model:podgauge_devices_idle_held:sum", comment: "Devices allocated to a single container for half an hour without any use; absent if there are no such devices.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (` + idleExpr + `)` + joinModel + `)`,
	}
	utilizationSum = recordingRule{
		record: "node_model:nvidia_gpu_utilization_ratio:sum", comment: "Sum of utilization, to be divided by the count below.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_utilization_ratio{OF})` + joinModel + `)`,
	}
	utilizationCount = recordingRule{
		record: "node_model:nvidia_gpu_utilization_ratio:count", comment: "GPUs with a utilization: GPUs without MIG.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_utilization_ratio{OF} >= bool 0)` + joinModel + `)`,
	}
	memoryUsedSum = recordingRule{
		record: "node_model:nvidia_gpu_memory_used_bytes:sum", comment: "Memory in use.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_memory_used_bytes{mig_uuid="",OF})` + joinModel + `)`,
	}
	memoryTotalSum = recordingRule{
		record: "node_model:nvidia_gpu_memory_total_bytes:sum", comment: "Total memory.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_memory_total_bytes{mig_uuid="",OF})` + joinModel + `)`,
	}
	powerSum = recordingRule{
		record: "node_model:nvidia_gpu_power_watts:sum", comment: "Power.",
		expr: `sum by (node, model) (max by (node, uuid, mig_uuid) (nvidia_gpu_power_watts{mig_uuid="",OF})` + joinModel + `)`,
	}
	devicesByNamespace = recordingRule{
		record: "node_namespace:podgauge_devices_allocated:count", comment: "Allocated devices by namespace; a shared device counts in each namespace.",
		expr: `count by (node, namespace) (max by (node, namespace, uuid, mig_uuid) (nvidia_gpu_allocation_info{OF}))`,
	}
	powerByNamespace = recordingRule{
		record: "node_namespace:nvidia_gpu_energy_joules:rate5m", comment: "Power by namespace, from the energy counters; the namespace is empty for unallocated, shared and partitioned GPUs, and for unknown owners.",
		expr: `sum by (node, namespace) (rate(nvidia_gpu_energy_joules_total{OF}[RATE]))`,
	}
	devicesWithIncidents = recordingRule{
		record: "node_reason:podgauge_devices_hit:count1h", comment: "Devices with an incident in the last hour, by time, because increase() misses the first event of a series.",
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
	text.WriteString(`# The series of the dashboard "Fleet, recorded", evaluated once a minute: about ten series per node instead of
# about a hundred per GPU. Suitable for long retention and remote write. The rules need honor_labels and a label
# "node" (docs/operations.md). Generated by package dashboards (make golden).
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
