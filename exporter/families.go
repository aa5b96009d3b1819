package exporter

import (
	"slices"

	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	dto "github.com/prometheus/client_model/go"
)

// Family is a metric family.
type Family struct {
	Set        device.MetricSet // smallest set with the family
	Type       dto.MetricType
	Name, Help string
	Labels     []string // in addition to uuid, gpu, mig_uuid, namespace, pod and container
}

// The sets of families, as a column.
const (
	full      = device.SetFull
	byDefault = device.SetDefault
	minimal   = device.SetMinimal
)

func gauge(set device.MetricSet, name, help string, labels ...string) Family {
	return Family{set, dto.MetricType_GAUGE, name, help, labels}
}

func counter(set device.MetricSet, name, help string, labels ...string) Family {
	return Family{set, dto.MetricType_COUNTER, name, help, labels}
}

func histogram(set device.MetricSet, name, help string, labels ...string) Family {
	return Family{set, dto.MetricType_HISTOGRAM, name, help, labels}
}

// Families are the families not made from rows of readings, without
// SelfFamilies.
var Families = [...]Family{
	gauge(minimal, "nvidia_gpu_allocated",
		"1 if the device is allocated, even if the container is unnamed; absent while unknown."),
	gauge(byDefault, "nvidia_gpu_allocation_application_error_last_timestamp_seconds",
		"Unix time of the latest application error with this reason.", "reason"),
	counter(byDefault, "nvidia_gpu_allocation_application_errors_total",
		"Xids that leave the device usable, while allocated to the container; kept for the newest 500 containers.",
		"reason"),
	gauge(minimal, "nvidia_gpu_allocation_device_failure_last_timestamp_seconds",
		"Unix time of the latest fault with this reason while the device was allocated to the container.", "reason"),
	counter(byDefault, "nvidia_gpu_allocation_device_failures_total",
		"Faults of the device while allocated to the container; kept after its end, for the newest 500 "+
			"containers.", "reason"),
	gauge(minimal, "nvidia_gpu_allocation_info",
		"Device, or replica of a device, allocated to a container; always 1.", "resource", "device_id", "claim"),
	gauge(byDefault, "nvidia_gpu_allocation_last_seen_timestamp_seconds",
		"Unix time of the kubelet's latest list with this allocation; kept for --allocations.max-age and "+
			"eight containers per device."),
	gauge(minimal, "nvidia_gpu_allocation_ratio",
		"Part of the GPU allocated to the container with this device: 1 for a whole GPU, less for a MIG device "+
			"or a replica.", "resource"),
	gauge(full, "nvidia_gpu_container_decoder_utilization_ratio", "Decoder utilization by the container's processes."),
	gauge(full, "nvidia_gpu_container_encoder_utilization_ratio", "Encoder utilization by the container's processes."),
	gauge(full, "nvidia_gpu_container_memory_controller_utilization_ratio",
		"Memory controller utilization by the container's processes."),
	gauge(byDefault, "nvidia_gpu_container_memory_used_bytes",
		"Memory of the device used by the container's processes, in bytes."),
	gauge(full, "nvidia_gpu_container_processes", "Number of the container's processes that use the device."),
	gauge(byDefault, "nvidia_gpu_container_sm_utilization_ratio", "SM utilization by the container's processes."),
	counter(minimal, "nvidia_gpu_health_flaps_total", "Number of times the device became unhealthy."),
	gauge(minimal, "nvidia_gpu_health_since_timestamp_seconds",
		"Unix time of the latest change of the device's health or of its reason."),
	gauge(byDefault, "nvidia_gpu_health_state",
		"1 for the device's current health state: healthy, suspect, unhealthy or recovering.", "state"),
	counter(minimal, "nvidia_gpu_health_state_seconds_total",
		"Time in this health state and for this reason, in seconds; a state has a series from its first time on.",
		"state", "reason"),
	gauge(minimal, "nvidia_gpu_healthy", "1 if the device is listed to the kubelet as healthy."),
	gauge(minimal, "nvidia_gpu_incident_last_timestamp_seconds",
		"Unix time of the latest incident with this reason on this device.", "reason"),
	counter(byDefault, "nvidia_gpu_incidents_total",
		"Faults of the device, from driver reports and checks; a fault of a partitioned GPU counts on the GPU.",
		"reason"),
	gauge(minimal, "nvidia_gpu_info",
		"Properties of a device that stay the same while its driver is loaded; always 1."),
	gauge(byDefault, "nvidia_gpu_masked_fault_info",
		"Fault that a retired device still has, behind its retirement, and action that recovers it; always 1.",
		"reason", "action"),
	gauge(minimal, "nvidia_gpu_stalled", "1 if a call to the GPU hangs; the GPU is not read until the call returns."),
	gauge(minimal, "nvidia_gpu_unallocatable_info",
		"1 if the device cannot be allocated although healthy: excluded by the configuration, or in MIG mode "+
			"without MIG devices (no_mig_devices).", "reason"),
	gauge(full, "nvidia_gpu_unattributed_decoder_utilization_ratio", "Decoder utilization by unattributed processes."),
	gauge(full, "nvidia_gpu_unattributed_encoder_utilization_ratio", "Encoder utilization by unattributed processes."),
	gauge(full, "nvidia_gpu_unattributed_memory_controller_utilization_ratio",
		"Memory controller utilization by unattributed processes."),
	gauge(byDefault, "nvidia_gpu_unattributed_memory_used_bytes",
		"Memory of the device used by no container to which it is allocated, in bytes; includes the driver's own."),
	gauge(byDefault, "nvidia_gpu_unattributed_processes",
		"Number of processes on the device outside the containers to which it is allocated."),
	gauge(full, "nvidia_gpu_unattributed_sm_utilization_ratio", "SM utilization by unattributed processes."),
	gauge(minimal, "nvidia_gpu_unhealthy_info",
		"Reason why the device is unhealthy, and action that recovers it; always 1.", "reason", "action"),
	gauge(minimal, "nvidia_gpu_up", "1 if the GPU was read for this scrape."),
	counter(minimal, "nvidia_gpu_xid_errors_total", "Xid errors of the GPU reported by the driver.", "xid"),
	gauge(minimal, "nvidia_gpu_xid_last_timestamp_seconds",
		"Unix time of the latest Xid error of this code on this GPU, without nonfatal NVLink errors.", "xid"),
	gauge(full, "podgauge_allocatable_cpus",
		"Number of CPUs that the CPU manager's static policy can allocate exclusively, including allocated ones."),
	gauge(full, "podgauge_allocatable_memory_bytes",
		"Memory or huge pages that the memory manager's Static policy can reserve, in bytes.", "type", "numa_node"),
	gauge(full, "podgauge_allocation_device_failures_dropped",
		"Number of the oldest containers with device failures, which this scrape omits."),
	gauge(full, "podgauge_claim_info",
		"Device allocated to a container by Dynamic Resource Allocation; always 1.",
		"claim_namespace", "claim", "driver", "pool", "device", "share"),
	gauge(full, "podgauge_container_exclusive_cpus", "Number of CPUs exclusive to the container."),
	gauge(full, "podgauge_container_exclusive_cpus_info",
		"CPUs exclusive to the container, in Linux list format: \"2-3,7\"; always 1.", "cpus"),
	gauge(full, "podgauge_container_reserved_memory_bytes",
		"Memory or huge pages reserved for the container, in bytes.", "type", "numa_node"),
	gauge(byDefault, "podgauge_cpu_power_watts",
		"Mean power draw of a part of the CPU's module in this socket, in watts.", "socket", "sensor"),
	gauge(byDefault, "podgauge_cpu_temperature_celsius",
		"Temperature of a part of the CPU in this socket, in degrees Celsius.", "socket", "sensor"),
	gauge(byDefault, "podgauge_expected_gpus",
		"Number of GPUs that the node should have; absent without --expected-gpus."),
	gauge(byDefault, "podgauge_collection_begin_timestamp_seconds",
		"Unix time of the start of the collection of this scrape's readings and allocations."),
	gauge(byDefault, "podgauge_collection_end_timestamp_seconds",
		"Unix time of the end of the collection of this scrape's readings and allocations."),
	gauge(minimal, "podgauge_allocations_age_seconds",
		"Age of the kubelet's list of allocations used in this scrape, in seconds."),
	gauge(byDefault, "podgauge_incidents", "Number of recorded incidents."),
	gauge(minimal, "podgauge_kubelet_up",
		"1 if the kubelet listed allocations for this scrape; 0: the previous list applies, or owners are unknown."),
	gauge(minimal, "podgauge_missing_gpus",
		"Number of expected GPUs that the driver does not list; absent without --expected-gpus."),
	gauge(minimal, "podgauge_nvml_up", "1 if NVML is initialized, lists devices and responds."),
	gauge(minimal, "podgauge_rdma_allocation_info",
		"RDMA device of any device plugin or DRA driver allocated to a container; always 1.",
		"device", "resource", "device_id"),
	counter(byDefault, "podgauge_rdma_port_ack_timeouts_total",
		"Requests of this port whose acknowledgment did not arrive in time (local_ack_timeout_err).", "device", "port"),
	counter(byDefault, "podgauge_rdma_port_excessive_buffer_overruns_total",
		"Buffer overruns of the port in successive flow control periods (excessive_buffer_overrun_errors).",
		"device", "port"),
	gauge(byDefault, "podgauge_rdma_port_info", "Properties of an RDMA port; always 1.",
		"device", "port", "link_layer", "pci_bus_id"),
	counter(minimal, "podgauge_rdma_port_link_downed_total", "Number of times the port's link went down (link_downed).",
		"device", "port"),
	counter(byDefault, "podgauge_rdma_port_link_error_recoveries_total",
		"Recoveries of the port's link from errors (link_error_recovery).", "device", "port"),
	counter(byDefault, "podgauge_rdma_port_local_link_integrity_errors_total",
		"Number of times the port's physical errors exceeded the threshold (local_link_integrity_errors).",
		"device", "port"),
	counter(byDefault, "podgauge_rdma_port_out_of_sequence_packets_total",
		"Packets that the port received out of sequence (out_of_sequence).", "device", "port"),
	gauge(byDefault, "podgauge_rdma_port_physical_state_id",
		"Physical state of the port: 2 is polling, 3 disabled, 4 training, 5 link up, 6 link error recovery.",
		"device", "port"),
	gauge(byDefault, "podgauge_rdma_port_rate_bytes_per_second",
		"Rate of the port's link in each direction, in bytes per second.", "device", "port"),
	counter(byDefault, "podgauge_rdma_port_receive_errors_total",
		"Packets with errors that the port received (port_rcv_errors).", "device", "port"),
	counter(byDefault, "podgauge_rdma_port_received_bytes_total", "Bytes received by the port.", "device", "port"),
	counter(byDefault, "podgauge_rdma_port_symbol_errors_total",
		"Minor link errors of the port's physical lanes (symbol_error).", "device", "port"),
	counter(byDefault, "podgauge_rdma_port_transmitted_bytes_total", "Bytes sent by the port.", "device", "port"),
	gauge(minimal, "podgauge_rdma_port_up", "1 if the port's logical state is active.", "device", "port"),
	gauge(full, "podgauge_resource_allocatable_devices",
		"Number of healthy devices of a device plugin's resource, including allocated ones.", "resource", "numa_node"),
	gauge(full, "podgauge_resource_allocation_info",
		"Device of any device plugin allocated to a container; always 1.", "resource", "device_id", "numa_node"),
	gauge(full, "podgauge_resource_device_info",
		"Healthy device of any device plugin, including allocated ones; always 1.",
		"resource", "device_id", "numa_node"),
	gauge(full, "podgauge_resource_dropped_ids",
		"Number of ids of a resource with more than 4096 ids, whose other series are omitted.", "resource", "list"),
	gauge(minimal, "podgauge_series", "Number of series in this scrape, without podgauge's process metrics."),
	gauge(minimal, "podgauge_series_dropped",
		"Number of series omitted from this scrape because of --metrics.series-limit."),
	gauge(full, "podgauge_shared_cpus", "Number of allocatable CPUs that are not exclusive to a container."),
	gauge(minimal, "podgauge_state_up", "1 if health and incidents are stored on disk; absent without --state-dir."),
}

// SelfFamilies are podgauge's families about itself, of SelfMetrics.
var SelfFamilies = [...]Family{
	gauge(minimal, "podgauge_build_info", "Version of podgauge and of Go; always 1.", "version", "goversion"),
	gauge(minimal, "podgauge_cdi_spec_up",
		"1 if the CDI spec of this class is written; 0 if a device list strategy needs it and it is missing.", "class"),
	gauge(minimal, "podgauge_config_unknown_keys",
		"Number of ignored unknown keys in the configuration file; the log names each."),
	gauge(byDefault, "podgauge_dcgm_counters_errors",
		"Number of ignored wrong lines in the file of --metrics.dcgm-counters; the log names the first 100."),
	gauge(byDefault, "podgauge_dcgm_counters_unserved",
		"Field in the file of --metrics.dcgm-counters that podgauge cannot export; always 1.", "field", "reason"),
	gauge(minimal, "podgauge_events_up",
		"1 if driver events, including Xid errors, are received; 0 while waiting for events fails or hangs."),
	gauge(byDefault, "podgauge_family_unsupported",
		"Metric family that is absent because the driver's library lacks a function; always 1.", "family"),
	gauge(byDefault, "podgauge_nvswitch_error_last_link",
		"NVLink of the latest error of this number on this NVSwitch; absent for an error of the whole NVSwitch.",
		"switch", "sxid", "severity"),
	gauge(minimal, "podgauge_nvswitch_error_last_timestamp_seconds",
		"Unix time of the latest error of this number on this NVSwitch, since the driver was loaded.",
		"switch", "sxid", "severity"),
	counter(minimal, "podgauge_nvswitch_errors_total",
		"Errors (SXids) of an NVSwitch in the kernel log, by PCI address, since the start of podgauge.",
		"switch", "sxid", "severity"),
	gauge(minimal, "podgauge_plugin_devices",
		"Number of devices in the latest device list sent to the kubelet; absent without a device.",
		"resource", "health"),
	counter(minimal, "podgauge_plugin_rejections_total",
		"Containers whose device request was rejected, by the first reason found.", "resource", "reason"),
	histogram(byDefault, "podgauge_plugin_request_duration_seconds",
		"Duration of requests from the kubelet, in seconds.", "method"),
	counter(byDefault, "podgauge_plugin_request_errors_total",
		"Requests from the kubelet answered with an error.", "method"),
	gauge(minimal, "podgauge_plugin_streams",
		"Number of open ListAndWatch streams of the kubelet; 1 if the resource is registered.", "resource"),
	gauge(minimal, "podgauge_plugin_waiting",
		"1 while another device plugin serves the resource, and podgauge waits with its first registration.",
		"resource"),
	histogram(byDefault, "podgauge_pod_resources_request_duration_seconds",
		"Duration of requests to the kubelet, in seconds.", "method"),
	counter(byDefault, "podgauge_pod_resources_request_errors_total", "Requests to the kubelet that failed.", "method"),
	gauge(minimal, "podgauge_ready",
		"1 if the check of /readyz passes; 0 if it makes podgauge not ready.", "check"),
	counter(byDefault, "podgauge_registrations_total",
		"Registrations with the kubelet, by result.", "resource", "result"),
	gauge(byDefault, "podgauge_simulated", "1 if devices are simulated."),
}

// setOf returns the smallest set with a family that is not made from rows of
// readings. Of the collectors of Go runtime and process, two families are in
// the set default.
func setOf(name string) device.MetricSet {
	for _, families := range [][]Family{Families[:], SelfFamilies[:]} {
		if i := slices.IndexFunc(families, func(f Family) bool { return f.Name == name }); i >= 0 {
			return families[i].Set
		}
	}
	if name == "process_cpu_seconds_total" || name == "process_resident_memory_bytes" {
		return byDefault
	}
	return full
}

// dcgmFamily returns a family of dcgm-exporter.
func dcgmFamily(f dcgm.Family) Family {
	family := gauge(full, f.Name, f.Help)
	if f.Type == dcgm.Counter {
		family.Type = dto.MetricType_COUNTER
	}
	if f.Xid {
		family.Labels = []string{"err_code", "err_msg"}
	}
	return family
}
