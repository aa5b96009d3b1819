package migrate

import (
	"regexp"
	"strings"

	"github.com/podgauge/podgauge/internal/dcgm"
)

// label is podgauge's counterpart of a label of dcgm-exporter.
type label struct {
	name   string
	isInfo bool                // only on nvidia_gpu_info
	value  func(string) string // of a matcher; nil: the same
	reason string              // why there is no counterpart
	note   string              // what differs
}

const (
	jobReason     = "hpc_job is on nvidia_gpu_allocation_info, which has a series for each job: join it by hand"
	noOwnerReason = "podgauge has no owner (label %s) for faults, limits, modes and properties of a device: " +
		"join nvidia_gpu_allocated by hand"
	noInfoReason = "the recorded series has no label %s: group by it in its rule"
)

var ownerLabels = []string{"namespace", "pod", "container"}

// labelsOfDCGM are the labels of dcgm-exporter, also as Prometheus renames them without honor_labels. Hostname is the
// label node of the scrape job.
var labelsOfDCGM = map[string]label{
	"gpu":       {name: "gpu"},
	"UUID":      {name: "uuid"},
	"uuid":      {name: "uuid"},
	"Hostname":  {name: "node"},
	"hostname":  {name: "node"},
	"device":    {name: "minor", isInfo: true, value: minorOf, note: "label device (nvidia0) is minor (0)"},
	"modelName": {name: "model", isInfo: true},
	"pci_bus_id": {
		name: "pci_bus_id", isInfo: true, value: shortPCIAddress,
		note: "values of pci_bus_id are 0000:1a:00.0, not 00000000:1A:00.0",
	},
	"GPU_I_ID":           {name: "gi", isInfo: true},
	"GPU_I_PROFILE":      {name: "mig_profile", isInfo: true},
	"namespace":          {name: "namespace"},
	"pod":                {name: "pod"},
	"container":          {name: "container"},
	"exported_namespace": {name: "namespace"},
	"exported_pod":       {name: "pod"},
	"exported_container": {name: "container"},
	"pod_namespace":      {name: "namespace"},
	"pod_name":           {name: "pod"},
	"container_name":     {name: "container"},
	"hpc_job":            {reason: jobReason},
	"err_code":           {reason: "podgauge has the label xid on nvidia_gpu_xid_errors_total"},
	"err_msg":            {reason: "podgauge has no text of an Xid; its label xid has the code"},
	"pod_uid":            {reason: "pod_uid is on nvidia_gpu_allocation_info, with --metrics.pod-uid"},
}

// labelOf returns the counterpart of a label; an unknown one comes from the scrape job and stays.
func labelOf(name string) label {
	if l, ok := labelsOfDCGM[name]; ok {
		return l
	}
	f, _ := dcgm.Find(name)
	switch {
	case f != nil && f.InfoLabel != "":
		return label{name: f.InfoLabel, isInfo: f.InfoLabel != "gpu" && f.InfoLabel != "uuid"}
	case strings.HasPrefix(name, "DCGM_"):
		return label{reason: "podgauge has no label " + name}
	default:
		return label{name: name}
	}
}

// isLabelOfDCGM reports whether dcgm-exporter has a label of this name.
func isLabelOfDCGM(name string) bool {
	_, ok := labelsOfDCGM[name]
	return ok || strings.HasPrefix(name, "DCGM_FI_")
}

// isMIGLabel reports whether only series of GPU instances have the label.
func isMIGLabel(name string) bool { return strings.HasPrefix(name, "GPU_I_") }

// minorOf turns nvidia0 into 0.
func minorOf(value string) string { return strings.ReplaceAll(value, "nvidia", "") }

var longPCIDomain = regexp.MustCompile(`\b0000([0-9a-f]{4}:)`)

// shortPCIAddress turns 00000000:1A:00.0 into 0000:1a:00.0.
func shortPCIAddress(value string) string {
	if hasVariable(value) {
		return value
	}
	return longPCIDomain.ReplaceAllString(strings.ToLower(value), "$1")
}

// hasVariable reports whether a value has a variable of Grafana, which can be empty.
func hasVariable(value string) bool {
	return strings.Contains(value, "$") || strings.Contains(value, "[[")
}
