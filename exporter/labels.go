package exporter

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// labelSet selects the labels of a series. The sets are a public contract (docs/contributing/adr/0002-label-contract.md).
type labelSet uint8

const (
	// deviceLabels are the six labels of each per-device series. Owner labels are present and empty without an owner:
	// honor_labels would fill a missing label with podgauge's own pod.
	deviceLabels labelSet = iota
	// allocationSeenLabels are the labels of past allocations.
	allocationSeenLabels
	// allocationInfoLabels are the labels of current allocations, with the pod's metadata if configured.
	allocationInfoLabels
	// dcgmLabels are dcgm-exporter's labels.
	dcgmLabels
	// noLabels are for the series of the node.
	noLabels
)

// labels returns the labels of a set, ordered by name.
func (set labelSet) labels(s device.Status, owner device.Owner, meta device.PodMeta, o *Options) []device.Label {
	labels := ownerLabels(owner)
	switch set {
	case noLabels:
		return nil
	case dcgmLabels:
		labels = append(labels, dcgmDeviceLabels(s, o.Hostname)...)
	case deviceLabels:
		labels = append(labels, deviceIDLabels(s.Device)...)
	case allocationSeenLabels:
		labels = append(labels, uuidLabels(s.Device)...)
	case allocationInfoLabels:
		labels = append(labels, uuidLabels(s.Device)...)
		if o.PodUID {
			labels = append(labels, device.Label{Name: "pod_uid", Value: meta.UID})
		}
		labels = append(labels, podLabels(meta.Labels)...)
	}
	sortLabels(labels)
	return labels
}

func ownerLabels(o device.Owner) []device.Label {
	return []device.Label{{Name: "container", Value: o.Container}, {Name: "namespace", Value: o.Namespace}, {Name: "pod", Value: o.Pod}}
}

// uuidLabels returns the labels unique to a device.
func uuidLabels(d device.Device) []device.Label {
	migUUID := ""
	if !d.WholeGPU() {
		migUUID = string(d.ID)
	}
	return []device.Label{{Name: "mig_uuid", Value: migUUID}, {Name: "uuid", Value: string(d.GPU)}}
}

func deviceIDLabels(d device.Device) []device.Label {
	return append(uuidLabels(d), device.Label{Name: "gpu", Value: strconv.Itoa(d.Index)})
}

// dcgmDeviceLabels returns dcgm-exporter's labels of a device.
func dcgmDeviceLabels(s device.Status, hostname string) []device.Label {
	labels := []device.Label{
		{Name: "gpu", Value: strconv.Itoa(s.Index)},
		{Name: "UUID", Value: string(s.GPU)},
		{Name: "pci_bus_id", Value: longPCIAddress(s.PCI)},
		{Name: "device", Value: "nvidia" + strconv.Itoa(s.Minor)},
		{Name: "modelName", Value: s.Model},
		{Name: "Hostname", Value: hostname},
	}
	for _, label := range s.InfoLabels {
		if label.Name == "driver_version" {
			labels = append(labels, device.Label{Name: "DCGM_FI_DRIVER_VERSION", Value: label.Value})
		}
	}
	if !s.WholeGPU() {
		labels = append(labels, device.Label{Name: "GPU_I_PROFILE", Value: s.Profile}, device.Label{Name: "GPU_I_ID", Value: strconv.Itoa(s.GI)})
	}
	return labels
}

// longPCIAddress returns an address in NVML's form: eight digits of domain, upper case.
func longPCIAddress(address string) string {
	domain, rest, ok := strings.Cut(address, ":")
	if !ok || len(domain) > 8 {
		return address
	}
	return strings.ToUpper(strings.Repeat("0", 8-len(domain)) + domain + ":" + rest)
}

// podLabels returns a pod's labels as kube-state-metrics names them: prefixed, in snake case, and numbered on conflict.
func podLabels(kubeLabels []device.Label) []device.Label {
	var labels []device.Label
	seen := map[string]bool{}
	for _, l := range kubeLabels {
		name := "label_" + snakeCase(l.Name)
		for plain, n := name, 2; seen[name]; n++ { // a pod may have a label with the number as well
			name = plain + "_conflict" + strconv.Itoa(n)
		}
		seen[name] = true
		labels = append(labels, device.Label{Name: name, Value: l.Value})
	}
	return labels
}

var (
	invalidLabelChar = regexp.MustCompile(`[^a-zA-Z0-9_]`)
	wordStart        = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// snakeCase returns "node_pool" for "node-pool" and for "nodePool".
func snakeCase(name string) string {
	return strings.ToLower(wordStart.ReplaceAllString(invalidLabelChar.ReplaceAllString(name, "_"), "${1}_$2"))
}

func sortLabels(labels []device.Label) {
	slices.SortFunc(labels, func(a, b device.Label) int { return cmp.Compare(a.Name, b.Name) })
}

// formatLabels returns the text between a series' name and value. Values come from drivers and the kubelet: a value other than
// UTF-8 would invalidate the whole scrape.
func formatLabels(labels []device.Label) []byte {
	var b bytes.Buffer
	for i, l := range labels {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(l.Name + `="` + labelEscaper.Replace(strings.ToValidUTF8(l.Value, "\uFFFD")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	return bytes.Clone(b.Bytes()) // drops the spare capacity
}
