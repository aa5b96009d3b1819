package exporter

import (
	"cmp"
	"slices"
)

// builtinDescs describes the families not made from rows of readings; usageDescs has more.
var builtinDescs = []familyDesc{
	gaugeDesc("nvidia_gpu_info", "What does not change about a device while its driver is loaded; always 1."),
	gaugeDesc("nvidia_gpu_healthy", "Whether the device can be used, as the kubelet is told."),
	gaugeDesc("nvidia_gpu_unhealthy_info",
		"Why the device cannot be used, and what that asks for; always 1.", "reason", "action"),
	gaugeDesc("nvidia_gpu_unallocatable_info",
		"1 if nothing of a GPU that works can be allocated, by reason; no_mig_devices: MIG mode is on and there is no MIG device.", "reason"),
	gaugeDesc("nvidia_gpu_health_state",
		"Where the device stands: well, suspect (used as before, and checked), unhealthy, or on probation (well, and not yet for long enough).", "state"),
	gaugeDesc("nvidia_gpu_health_since_timestamp_seconds",
		"Since when the device has been healthy, or unhealthy for the present reason."),
	counterDesc("nvidia_gpu_health_flaps_total", "How often the device turned unhealthy, as far as is remembered."),
	gaugeDesc("nvidia_gpu_up", "Whether the GPU gave its readings for this scrape."),
	gaugeDesc("nvidia_gpu_stalled", "Whether a call to the GPU has not come back, so that it is not asked again."),
	gaugeDesc("nvidia_gpu_allocated",
		"1 if the device is allocated, also to a container that the kubelet does not name; absent while that is unknown."),
	counterDesc("nvidia_gpu_xid_errors_total", "Xid errors that the driver reported of the GPU.", "xid"),
	gaugeDesc("nvidia_gpu_xid_last_timestamp_seconds", "When the driver last reported the Xid error.", "xid"),
	gaugeDesc("nvidia_gpu_allocation_info",
		"A device, or a replica of it, that a container holds; always 1.", "resource", "device_id"),
	gaugeDesc("nvidia_gpu_allocation_last_seen_timestamp_seconds",
		"When the container was last seen to hold the device; kept for --holders.max-age, for eight containers a device."),
	counterDesc("nvidia_gpu_incidents_total",
		"What happened to the device: reports of the driver, and evidence that it had failed.", "reason"),
	gaugeDesc("nvidia_gpu_incident_last_timestamp_seconds", "When it last happened to the device.", "reason"),
	counterDesc("nvidia_gpu_allocation_device_failures_total",
		"What happened to the device while the container held it; kept when the container is gone, the newest 500.", "reason"),
	gaugeDesc("nvidia_gpu_allocation_device_failure_last_timestamp_seconds",
		"When it last happened to the device while the container held it.", "reason"),
	gaugeDesc("podgauge_allocation_device_failures_dropped",
		"Containers' device failures that this scrape leaves out, the oldest: it has 500."),
	gaugeDesc("podgauge_incidents", "Incidents that are remembered."),
	gaugeDesc("podgauge_incident_store_up", "Whether incidents are kept on disk; absent where they are not to be."),
	gaugeDesc("podgauge_resource_allocatable_devices",
		"Healthy devices of any plugin that the kubelet would give away, held ones included; absent while it does not answer.", "resource", "numa_node"),
	gaugeDesc("podgauge_resource_device_info",
		"A healthy device of any plugin that the kubelet would give away, held or not; always 1.", "resource", "device_id", "numa_node"),
	gaugeDesc("podgauge_resource_allocation_info",
		"A device of any plugin that a container holds; always 1.", "resource", "device_id", "numa_node"),
	gaugeDesc("podgauge_resource_dropped_ids",
		"Ids of a resource that has more than 4096 besides those of podgauge's devices: such a resource has no other series. List: allocatable or allocated.", "resource", "list"),
	gaugeDesc("podgauge_allocatable_cpus",
		"CPUs that the kubelet would give away one by one, held ones included: with the CPU manager's static policy."),
	gaugeDesc("podgauge_shared_cpus",
		"CPUs of those that are no container's alone: the pool that all other containers share."),
	gaugeDesc("podgauge_container_exclusive_cpus", "CPUs that the container has for itself."),
	gaugeDesc("podgauge_container_exclusive_cpus_info",
		"Which CPUs the container has for itself, as Linux lists them: \"2-3,7\"; always 1.", "cpus"),
	gaugeDesc("podgauge_allocatable_memory_bytes",
		"Memory or huge pages that the kubelet would reserve: with the memory manager's Static policy.", "type", "numa_node"),
	gaugeDesc("podgauge_container_reserved_memory_bytes",
		"Memory or huge pages that are reserved for the container.", "type", "numa_node"),
	gaugeDesc("podgauge_claim_info",
		"A device that a container has by Dynamic Resource Allocation; always 1.", "claim_namespace", "claim", "driver", "pool", "device", "share"),
	gaugeDesc("podgauge_state_up", "Whether the devices' health is kept on disk; absent where it is not to be."),
	gaugeDesc("podgauge_nvml_up", "Whether NVML is initialised and lists devices."),
	gaugeDesc("podgauge_kubelet_up",
		"1 if the kubelet answered for this scrape which container has which device; otherwise the last answer stands, or owners are unknown."),
	gaugeDesc("podgauge_holders_age_seconds", "How long ago the kubelet said what the holders are drawn from."),
	gaugeDesc("podgauge_flight_begin_timestamp_seconds",
		"When the readings and holders of this scrape were first asked for."),
	gaugeDesc("podgauge_flight_end_timestamp_seconds", "When the last of them had come."),
	gaugeDesc("podgauge_series", "Series of this scrape, but for this process's own."),
	gaugeDesc("podgauge_series_dropped",
		"Series that this scrape leaves out, since there would be more than --metrics.series-limit."),
}

// Family is a metric family for documentation.
type Family struct {
	Name, Help, Type string
	Labels           []string // in addition to uuid, gpu, mig_uuid, namespace, pod and container
}

// Families returns all families not made from rows of readings, by name. Podgauge's own, in a registry, are not included.
func Families() []Family {
	var families []Family
	for _, d := range slices.Concat(builtinDescs, usageDescs()) {
		families = append(families, Family{d.name, d.help, d.typeName(), d.labels})
	}
	slices.SortFunc(families, func(a, b Family) int { return cmp.Compare(a.Name, b.Name) })
	return families
}
