package exporter

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/dcgm"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/text"
	dto "github.com/prometheus/client_model/go"
)

// The sets of labels are a public contract (docs/contributing/adr/0002-label-contract.md). Owner labels are present
// and empty without an owner: honor_labels would fill a missing label with podgauge's own pod.

// deviceLabels returns the six labels of each per-device series.
func deviceLabels(d device.Device, o allocation.Owner) []device.Label {
	return append(allocationLabels(d, o), device.Label{Name: "gpu", Value: strconv.Itoa(d.Index)})
}

// allocationLabels returns the labels of current and past allocations.
func allocationLabels(d device.Device, o allocation.Owner) []device.Label {
	migUUID := ""
	if !d.WholeGPU() {
		migUUID = string(d.ID)
	}
	return append(ownerLabels(o),
		device.Label{Name: "mig_uuid", Value: migUUID},
		device.Label{Name: "uuid", Value: string(d.GPU)})
}

func ownerLabels(o allocation.Owner) []device.Label {
	return []device.Label{
		{Name: "container", Value: o.Container},
		{Name: "namespace", Value: o.Namespace},
		{Name: "pod", Value: o.Pod},
	}
}

// dcgmDeviceLabels returns dcgm-exporter's labels of a device, with those of the given generations.
func dcgmDeviceLabels(s device.Status, hostname string, generations []dcgm.Generation) []device.Label {
	labels := []device.Label{
		{Name: "gpu", Value: strconv.Itoa(s.Index)},
		{Name: "UUID", Value: string(s.GPU)},
		{Name: "pci_bus_id", Value: longPCIAddress(s.PCI)},
		{Name: "device", Value: "nvidia" + strconv.Itoa(s.Minor)},
		{Name: "modelName", Value: s.Model},
		{Name: "hostname", Value: hostname},
	}
	if slices.Contains(generations, dcgm.V48) { // 4.8.3 renamed the label
		labels = append(labels, device.Label{Name: "Hostname", Value: hostname})
	}
	if !s.WholeGPU() {
		labels = append(labels,
			device.Label{Name: "GPU_I_PROFILE", Value: s.Profile},
			device.Label{Name: "GPU_I_ID", Value: strconv.Itoa(s.GI)})
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
		name := "label_" + text.SnakeCase(l.Name)
		for plain, n := name, 2; seen[name]; n++ { // a pod may have a label with the number as well
			name = plain + "_conflict" + strconv.Itoa(n)
		}
		seen[name] = true
		labels = append(labels, device.Label{Name: name, Value: l.Value})
	}
	return labels
}

// labelPairs returns pairs ordered by name, which take over the labels. Values come from drivers and the kubelet: a
// value other than UTF-8 would invalidate the whole scrape.
func labelPairs(labels []device.Label) []*dto.LabelPair {
	pairs, array := make([]*dto.LabelPair, len(labels)), make([]dto.LabelPair, len(labels))
	for i := range labels {
		labels[i].Value = strings.ToValidUTF8(labels[i].Value, "\uFFFD")
		array[i].Name, array[i].Value, pairs[i] = &labels[i].Name, &labels[i].Value, &array[i]
	}
	sortPairs(pairs)
	return pairs
}

func sortPairs(pairs []*dto.LabelPair) {
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(*a.Name, *b.Name) })
}
