package condition

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	corev1 "k8s.io/api/core/v1"
)

// Kind is a kind of condition, with the words of the controllers that read it.
type Kind struct {
	Type corev1.NodeConditionType
	// Healthy is the status without a fault: True or False. The other one is
	// the status of a fault.
	Healthy       corev1.ConditionStatus
	HealthyReason string
	// HealthyMessage is empty for the number of healthy GPUs, which holds only
	// for a condition of all faults.
	HealthyMessage string
	UnknownReason  string // while the driver is not ready
	Faults         []Fault
}

// Fault is the condition's reason for faults. Faults without a row do not
// change the condition.
type Fault struct {
	Fault  string // a device's reason or "missing", as a pattern of path.Match
	Reason string // "*" stands for the number of the Xid; empty: no fault of the condition
}

const unknownReason = "DriverNotReady"

// presets returns the kinds of conditions by the name of the preset.
//
// EKS's node monitoring agent writes AcceleratedHardwareReady if its nvidia
// monitor is enabled, and AKS's node problem detector writes the conditions of
// AKS on nodes with AKS's driver. Of two writers, the later one wins, so
// podgauge replaces them and does not complement them.
func presets() map[string][]Kind {
	return map[string][]Kind{
		// As with node-problem-detector's conditions, "True" is the problem.
		"podgauge": {{
			Type: "GPUUnhealthy", Healthy: corev1.ConditionFalse, HealthyReason: "GPUsHealthy",
			UnknownReason: unknownReason, Faults: []Fault{{"*", "GPUsUnhealthy"}},
		}},
		// https://github.com/aws/eks-node-monitoring-agent: the type is in
		// pkg/conditions/conditions.go, the reason of a healthy node in
		// cmd/eks-node-monitoring-agent/main.go, the others in
		// pkg/reasons/reasons.yaml. The last row has podgauge's own reason.
		"eks": {{
			Type: "AcceleratedHardwareReady", Healthy: corev1.ConditionTrue, HealthyReason: "NvidiaGPUIsReady",
			HealthyMessage: "No GPU has a fault.",
			UnknownReason:  unknownReason,
			Faults: []Fault{
				// Auto repair would replace a node during the work of an operator.
				{device.ReasonRetired, ""},
				{"released", ""},
				{"driver_replaced", ""},
				{"missing", "NvidiaDeviceCountMismatch"},
				{"lost", "NvidiaDeviceCountMismatch"},
				{"gone", "NvidiaDeviceCountMismatch"},
				{"fabric*", "NvidiaFabricError"},
				{"xid_*", "NvidiaXID*Error"},
				{"*", "GPUsUnhealthy"},
			},
		}},
		// https://learn.microsoft.com/azure/aks/node-problem-detector has the
		// types, https://github.com/Azure/AgentBaker in e2e/validators.go
		// status, reasons and message of GPUMissing. The reasons of the other
		// two follow its pattern: type, and No with the type.
		"aks": {
			{
				Type: "GPUMissing", Healthy: corev1.ConditionFalse, HealthyReason: "NoGPUMissing",
				HealthyMessage: "All GPUs are present", UnknownReason: unknownReason,
				Faults: []Fault{{"missing", "GPUMissing"}, {"lost", "GPUMissing"}, {"gone", "GPUMissing"}},
			},
			{
				Type: "NVLinkStatusInactive", Healthy: corev1.ConditionFalse, HealthyReason: "NoNVLinkStatusInactive",
				HealthyMessage: "No GPU is unhealthy because of NVLink.", UnknownReason: unknownReason,
				// The fabric's state, and the Xids of NVIDIA's catalog with NVLink
				// in their names.
				Faults: []Fault{
					{"fabric*", "NVLinkStatusInactive"},
					{"xid_74", "NVLinkStatusInactive"},
					{"xid_14[4-9]", "NVLinkStatusInactive"},
					{"xid_150", "NVLinkStatusInactive"},
				},
			},
			{
				Type: "XIDErrors", Healthy: corev1.ConditionFalse, HealthyReason: "NoXIDErrors",
				HealthyMessage: "No GPU is unhealthy because of an Xid.", UnknownReason: unknownReason,
				Faults: []Fault{{"xid_*", "XIDErrors"}},
			},
		},
	}
}

// Settings select the kinds of conditions. Empty settings are the preset's.
type Settings struct {
	Preset        string
	Type          string
	HealthyStatus string            // True or False
	Reasons       map[string]string // by "ready", "unhealthy" and "unknown"
}

// Kinds returns the kinds of conditions.
func (s Settings) Kinds() ([]Kind, error) {
	kinds, ok := presets()[s.Preset]
	changed := s.Type != "" || s.HealthyStatus != "" || len(s.Reasons) > 0
	status := corev1.ConditionStatus(s.HealthyStatus)
	switch {
	case s.Preset == "" && !changed:
		return nil, nil
	case !ok:
		return nil, fmt.Errorf("--node-condition %q: expected podgauge, eks or aks", s.Preset)
	case changed && len(kinds) > 1:
		return nil, fmt.Errorf("--node-condition %q: type, status and reasons of several conditions cannot be set",
			s.Preset)
	case status != "" && status != corev1.ConditionTrue && status != corev1.ConditionFalse:
		return nil, fmt.Errorf("--node-condition.healthy-status %q: expected True or False", s.HealthyStatus)
	}
	k := &kinds[0]
	k.Type, k.Healthy = cmp.Or(corev1.NodeConditionType(s.Type), k.Type), cmp.Or(status, k.Healthy)
	for name, reason := range s.Reasons {
		switch name {
		case "ready":
			k.HealthyReason = reason
		case "unhealthy":
			k.Faults = []Fault{{"*", reason}}
		case "unknown":
			k.UnknownReason = reason
		default:
			return nil, fmt.Errorf("--node-condition.reasons %q: expected ready, unhealthy or unknown", name)
		}
	}
	return kinds, nil
}

// reason returns the condition's reason for a fault.
func (k *Kind) reason(fault string) (reason string, ok bool) {
	for _, f := range k.Faults {
		if ok, _ := path.Match(f.Fault, fault); ok { // the patterns are valid
			_, rest, _ := strings.Cut(fault, "_")
			return strings.ReplaceAll(f.Reason, "*", rest), f.Reason != ""
		}
	}
	return "", false
}
