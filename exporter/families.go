package exporter

import dto "github.com/prometheus/client_model/go"

// Family is a metric family.
type Family struct {
	Name, Help string
	Type       dto.MetricType
	Labels     []string // in addition to uuid, gpu, mig_uuid, namespace, pod and container
}

func gaugeDesc(name, help string, labels ...string) Family {
	return Family{name, help, dto.MetricType_GAUGE, labels}
}

func counterDesc(name, help string, labels ...string) Family {
	return Family{name, help, dto.MetricType_COUNTER, labels}
}

// Families are the families not made from rows of readings. Podgauge's own, in a registry, are not included.
var Families = [...]Family{
	gaugeDesc("nvidia_gpu_allocated", "1 if the device is allocated, even if the container is unnamed; absent while unknown."),
	gaugeDesc("nvidia_gpu_allocation_application_error_last_timestamp_seconds", "Unix time of the latest application error with this reason.", "reason"),
	counterDesc("nvidia_gpu_allocation_application_errors_total", "Xids that leave the device usable, while allocated to the container; kept for the newest 500 containers.", "reason"),
	gaugeDesc("nvidia_gpu_allocation_device_failure_last_timestamp_seconds", "Unix time of the latest fault with this reason while the device was allocated to the container.", "reason"),
	counterDesc("nvidia_gpu_allocation_device_failures_total", "Faults of the device while allocated to the container; kept after its end, for the newest 500 containers.", "reason"),
	gaugeDesc("nvidia_gpu_allocation_info", "Device, or replica of a device, allocated to a container; always 1.", "resource", "device_id"),
	gaugeDesc("nvidia_gpu_allocation_last_seen_timestamp_seconds", "Unix time of the kubelet's latest list with this allocation; kept for --allocations.max-age and eight containers per device."),
	gaugeDesc("nvidia_gpu_container_decoder_utilization_ratio", "Decoder utilization by the container's processes."),
	gaugeDesc("nvidia_gpu_container_encoder_utilization_ratio", "Encoder utilization by the container's processes."),
	gaugeDesc("nvidia_gpu_container_memory_controller_utilization_ratio", "Memory controller utilization by the container's processes."),
	gaugeDesc("nvidia_gpu_container_memory_used_bytes", "Memory of the device used by the container's processes, in bytes."),
	gaugeDesc("nvidia_gpu_container_processes", "Number of the container's processes that use the device."),
	gaugeDesc("nvidia_gpu_container_sm_utilization_ratio", "SM utilization by the container's processes."),
	counterDesc("nvidia_gpu_health_flaps_total", "Number of times the device became unhealthy."),
	gaugeDesc("nvidia_gpu_health_since_timestamp_seconds", "Unix time of the latest change of the device's health or of its reason."),
	gaugeDesc("nvidia_gpu_health_state", "1 for the device's current health state: healthy, suspect, unhealthy or recovering.", "state"),
	gaugeDesc("nvidia_gpu_healthy", "1 if the device is listed to the kubelet as healthy."),
	gaugeDesc("nvidia_gpu_incident_last_timestamp_seconds", "Unix time of the latest incident with this reason on this device.", "reason"),
	counterDesc("nvidia_gpu_incidents_total", "Faults of the device, from driver reports and checks; a fault of a partitioned GPU counts on the GPU.", "reason"),
	gaugeDesc("nvidia_gpu_info", "Properties of a device that stay the same while its driver is loaded; always 1."),
	gaugeDesc("nvidia_gpu_stalled", "1 if a call to the GPU hangs; the GPU is not read until the call returns."),
	gaugeDesc("nvidia_gpu_unallocatable_info", "1 if the device cannot be allocated although healthy: excluded by the configuration, or in MIG mode without MIG devices (no_mig_devices).", "reason"),
	gaugeDesc("nvidia_gpu_unattributed_decoder_utilization_ratio", "Decoder utilization by unattributed processes."),
	gaugeDesc("nvidia_gpu_unattributed_encoder_utilization_ratio", "Encoder utilization by unattributed processes."),
	gaugeDesc("nvidia_gpu_unattributed_memory_controller_utilization_ratio", "Memory controller utilization by unattributed processes."),
	gaugeDesc("nvidia_gpu_unattributed_memory_used_bytes", "Memory of the device used by no container to which it is allocated, in bytes; includes the driver's own."),
	gaugeDesc("nvidia_gpu_unattributed_processes", "Number of processes on the device outside the containers to which it is allocated."),
	gaugeDesc("nvidia_gpu_unattributed_sm_utilization_ratio", "SM utilization by unattributed processes."),
	gaugeDesc("nvidia_gpu_unhealthy_info", "Reason why the device is unhealthy, and action that recovers it; always 1.", "reason", "action"),
	gaugeDesc("nvidia_gpu_up", "1 if the GPU was read for this scrape."),
	counterDesc("nvidia_gpu_xid_errors_total", "Xid errors of the GPU reported by the driver.", "xid"),
	gaugeDesc("nvidia_gpu_xid_last_timestamp_seconds", "Unix time of the latest Xid error of this code on this GPU, without nonfatal NVLink errors.", "xid"),
	gaugeDesc("podgauge_allocatable_cpus", "Number of CPUs that the CPU manager's static policy can allocate exclusively, including allocated ones."),
	gaugeDesc("podgauge_allocatable_memory_bytes", "Memory or huge pages that the memory manager's Static policy can reserve, in bytes.", "type", "numa_node"),
	gaugeDesc("podgauge_allocation_device_failures_dropped", "Number of the oldest containers with device failures, which this scrape omits."),
	gaugeDesc("podgauge_claim_info", "Device allocated to a container by Dynamic Resource Allocation; always 1.", "claim_namespace", "claim", "driver", "pool", "device", "share"),
	gaugeDesc("podgauge_container_exclusive_cpus", "Number of CPUs exclusive to the container."),
	gaugeDesc("podgauge_container_exclusive_cpus_info", "CPUs exclusive to the container, in Linux list format: \"2-3,7\"; always 1.", "cpus"),
	gaugeDesc("podgauge_container_reserved_memory_bytes", "Memory or huge pages reserved for the container, in bytes.", "type", "numa_node"),
	gaugeDesc("podgauge_expected_gpus", "Number of GPUs that the node should have; absent without --expected-gpus."),
	gaugeDesc("podgauge_collection_begin_timestamp_seconds", "Unix time of the start of the collection of this scrape's readings and allocations."),
	gaugeDesc("podgauge_collection_end_timestamp_seconds", "Unix time of the end of the collection of this scrape's readings and allocations."),
	gaugeDesc("podgauge_allocations_age_seconds", "Age of the kubelet's list of allocations used in this scrape, in seconds."),
	gaugeDesc("podgauge_incident_store_up", "1 if incidents are stored on disk; absent without --state-dir."),
	gaugeDesc("podgauge_incidents", "Number of recorded incidents."),
	gaugeDesc("podgauge_kubelet_up", "1 if the kubelet listed allocations for this scrape; 0: the previous list applies, or owners are unknown."),
	gaugeDesc("podgauge_missing_gpus", "Number of expected GPUs that the driver does not list; absent without --expected-gpus."),
	gaugeDesc("podgauge_nvml_up", "1 if NVML is initialized, lists devices and responds."),
	gaugeDesc("podgauge_resource_allocatable_devices", "Number of healthy devices of a device plugin's resource, including allocated ones.", "resource", "numa_node"),
	gaugeDesc("podgauge_resource_allocation_info", "Device of any device plugin allocated to a container; always 1.", "resource", "device_id", "numa_node"),
	gaugeDesc("podgauge_resource_device_info", "Healthy device of any device plugin, including allocated ones; always 1.", "resource", "device_id", "numa_node"),
	gaugeDesc("podgauge_resource_dropped_ids", "Number of ids of a resource with more than 4096 ids, whose other series are omitted.", "resource", "list"),
	gaugeDesc("podgauge_series", "Number of series in this scrape, without podgauge's process metrics."),
	gaugeDesc("podgauge_series_dropped", "Number of series omitted from this scrape because of --metrics.series-limit."),
	gaugeDesc("podgauge_shared_cpus", "Number of allocatable CPUs that are not exclusive to a container."),
	gaugeDesc("podgauge_state_up", "1 if the devices' health is stored on disk; absent without --state-dir."),
}
