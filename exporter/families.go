package exporter

import (
	"cmp"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// Family is a metric family.
type Family struct {
	Name, Help string
	Type       string   // "gauge" or "counter"
	Labels     []string // in addition to uuid, gpu, mig_uuid, namespace, pod and container
}

func gaugeDesc(name, help string, labels ...string) Family {
	return Family{name, help, "gauge", labels}
}

func counterDesc(name, help string, labels ...string) Family {
	return Family{name, help, "counter", labels}
}

// rowDesc returns the family of a row. Sources.Metrics has the labels.
func rowDesc(m device.Metric) Family {
	if m.Kind == device.OwnerCounter || m.Kind == device.FaultCounter {
		return counterDesc(m.Name, m.Help)
	}
	return gaugeDesc(m.Name, m.Help)
}

// labelled returns the family's own labels with their values.
func (f *Family) labelled(values []string) []device.Label {
	labels := make([]device.Label, len(values))
	for i, value := range values {
		labels[i] = device.Label{Name: f.Labels[i], Value: value}
	}
	return labels
}

// header returns the HELP and TYPE lines. OpenMetrics drops a counter's _total, has no counter without that suffix, as
// dcgm-exporter has, and escapes quotes in the help as well.
func (f *Family) header(openMetrics bool) []byte {
	name, kind, escaper := f.Name, f.Type, helpEscaper
	if openMetrics {
		escaper = labelEscaper
		if short, ok := strings.CutSuffix(name, "_total"); ok && kind == "counter" {
			name = short
		} else if kind == "counter" {
			kind = "unknown"
		}
	}
	return []byte("# HELP " + name + " " + escaper.Replace(f.Help) + "\n# TYPE " + name + " " + kind + "\n")
}

// Characters to escape in a help text, and in the value of a label.
var (
	helpEscaper  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// builtinDescs describes the families not made from rows of readings; usageFamilies has more.
var builtinDescs = []Family{
	gaugeDesc("nvidia_gpu_info", "Properties of a device that stay the same while its driver is loaded; always 1."),
	gaugeDesc("nvidia_gpu_healthy", "1 if the device is listed to the kubelet as healthy."),
	gaugeDesc("nvidia_gpu_unhealthy_info", "Reason why the device is unhealthy and action that recovers it; always 1.", "reason", "action"),
	gaugeDesc("nvidia_gpu_unallocatable_info",
		"1 if no device of a healthy GPU can be allocated, by reason; no_mig_devices: MIG mode is on and there is no MIG device.", "reason"),
	gaugeDesc("nvidia_gpu_health_state",
		"1 for the device's current health state: healthy, suspect (allocatable, being checked), unhealthy, or recovering (no fault, too few passed checks).", "state"),
	gaugeDesc("nvidia_gpu_health_since_timestamp_seconds", "Unix time of the latest change of the device's health or of its reason."),
	counterDesc("nvidia_gpu_health_flaps_total", "Number of times that the device became unhealthy, as far as recorded."),
	gaugeDesc("nvidia_gpu_up", "1 if the GPU was read for this scrape."),
	gaugeDesc("nvidia_gpu_stalled", "1 if a call to the GPU hangs; the GPU is not read until the call returns."),
	gaugeDesc("nvidia_gpu_allocated",
		"1 if the device is allocated, also to a container that the kubelet does not name; absent while unknown."),
	counterDesc("nvidia_gpu_xid_errors_total", "Xid errors of the GPU reported by the driver.", "xid"),
	gaugeDesc("nvidia_gpu_xid_last_timestamp_seconds", "Unix time of the latest Xid error of this code on this GPU.", "xid"),
	gaugeDesc("nvidia_gpu_allocation_info", "Device, or replica of a device, allocated to a container; always 1.", "resource", "device_id"),
	gaugeDesc("nvidia_gpu_allocation_last_seen_timestamp_seconds",
		"Unix time at which the kubelet last listed the allocation; kept for --holders.max-age, for eight containers per device."),
	counterDesc("nvidia_gpu_incidents_total", "Faults of the device: driver reports, and failures found by checks.", "reason"),
	gaugeDesc("nvidia_gpu_incident_last_timestamp_seconds", "Unix time of the latest incident with this reason on this device.", "reason"),
	counterDesc("nvidia_gpu_allocation_device_failures_total",
		"Faults of the device while allocated to the container; kept after the container's end, the newest 500.", "reason"),
	gaugeDesc("nvidia_gpu_allocation_device_failure_last_timestamp_seconds",
		"Unix time of the latest fault with this reason while the device was allocated to the container.", "reason"),
	gaugeDesc("podgauge_allocation_device_failures_dropped",
		"Containers with device failures left out of this scrape, the oldest; a scrape has 500."),
	gaugeDesc("podgauge_incidents", "Number of recorded incidents."),
	gaugeDesc("podgauge_incident_store_up", "1 if incidents are stored on disk; absent without --state-dir."),
	gaugeDesc("podgauge_resource_allocatable_devices",
		"Number of healthy devices of any device plugin that the kubelet can allocate, including allocated ones; absent while the kubelet does not answer.", "resource", "numa_node"),
	gaugeDesc("podgauge_resource_device_info",
		"Healthy device of any device plugin that the kubelet can allocate, including allocated ones; always 1.", "resource", "device_id", "numa_node"),
	gaugeDesc("podgauge_resource_allocation_info",
		"Device of any device plugin allocated to a container; always 1.", "resource", "device_id", "numa_node"),
	gaugeDesc("podgauge_resource_dropped_ids",
		"Number of ids, list allocatable or allocated, of a resource with more than 4096 ids other than podgauge's devices; its other series are left out.", "resource", "list"),
	gaugeDesc("podgauge_allocatable_cpus",
		"Number of CPUs that the kubelet can allocate exclusively, including allocated ones, with the CPU manager's static policy."),
	gaugeDesc("podgauge_shared_cpus", "Number of allocatable CPUs in the shared pool: not exclusive to any container."),
	gaugeDesc("podgauge_container_exclusive_cpus", "Number of CPUs exclusive to the container."),
	gaugeDesc("podgauge_container_exclusive_cpus_info",
		"CPUs exclusive to the container, in Linux list format: \"2-3,7\"; always 1.", "cpus"),
	gaugeDesc("podgauge_allocatable_memory_bytes",
		"Memory or huge pages that the kubelet can reserve, in bytes, with the memory manager's Static policy.", "type", "numa_node"),
	gaugeDesc("podgauge_container_reserved_memory_bytes",
		"Memory or huge pages reserved for the container, in bytes.", "type", "numa_node"),
	gaugeDesc("podgauge_claim_info",
		"Device allocated to a container by Dynamic Resource Allocation; always 1.", "claim_namespace", "claim", "driver", "pool", "device", "share"),
	gaugeDesc("podgauge_state_up", "1 if the devices' health is stored on disk; absent without --state-dir."),
	gaugeDesc("podgauge_nvml_up", "1 if NVML is initialized and lists devices."),
	gaugeDesc("podgauge_kubelet_up",
		"1 if the kubelet listed allocations for this scrape; otherwise the previous list stands, or owners are unknown."),
	gaugeDesc("podgauge_holders_age_seconds", "Age of the kubelet's list of allocations used in this scrape, in seconds."),
	gaugeDesc("podgauge_flight_begin_timestamp_seconds",
		"Unix time of the begin of the collection of this scrape's readings and allocations."),
	gaugeDesc("podgauge_flight_end_timestamp_seconds", "Unix time of the end of the collection of this scrape's readings and allocations."),
	gaugeDesc("podgauge_series", "Number of series in this scrape, podgauge's own process metrics excepted."),
	gaugeDesc("podgauge_series_dropped", "Number of series left out of this scrape because of --metrics.series-limit."),
}

// Families returns all families not made from rows of readings, by name. Podgauge's own, in a registry, are not included.
func Families() []Family {
	families := slices.Clone(builtinDescs)
	for _, f := range usageFamilies {
		families = append(families, f.container, f.unattributed)
	}
	slices.SortFunc(families, func(a, b Family) int { return cmp.Compare(a.Name, b.Name) })
	return families
}
