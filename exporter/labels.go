package exporter

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// labelSet says which labels a series has. They are a public contract
// (docs/adr/0002-label-contract.md).
type labelSet uint8

const (
	// deviceLabels are on every per-device series, always all six. The holder's
	// are present and empty where there is none, and not missing: honor_labels
	// fills a missing label with podgauge's own pod.
	deviceLabels labelSet = iota
	// allocationSeenLabels are on the series that list who held a device.
	allocationSeenLabels
	// allocationInfoLabels are on those that list who holds one: with what else is known of
	// the pod, where that is asked for.
	allocationInfoLabels
	// dcgmLabels are dcgm-exporter's.
	dcgmLabels
)

// labels are a set's, ordered by name.
func (set labelSet) labels(s device.Status, owner device.Owner, meta device.PodMeta, o *Options) []device.Label {
	if set == dcgmLabels {
		labels := dcgmLabelsOf(s, owner, o.Hostname)
		sortLabels(labels)
		return labels
	}
	labels := append(ownerLabels(owner), uuidLabels(s.Device)...)
	if set == deviceLabels {
		labels = append(labels, indexLabel(s.Device))
	}
	if set == allocationInfoLabels {
		if o.PodUID {
			labels = append(labels, device.Label{Name: "pod_uid", Value: meta.UID})
		}
		labels = append(labels, podLabels(meta.Labels)...)
	}
	sortLabels(labels)
	return labels
}

// uuidLabels are a device's names that no other has.
func uuidLabels(d device.Device) []device.Label {
	migUUID := ""
	if !d.WholeGPU() {
		migUUID = string(d.ID)
	}
	return []device.Label{{Name: "mig_uuid", Value: migUUID}, {Name: "uuid", Value: string(d.GPU)}}
}

func indexLabel(d device.Device) device.Label {
	return device.Label{Name: "gpu", Value: strconv.Itoa(d.Index)}
}

func ownerLabels(o device.Owner) []device.Label {
	return []device.Label{{Name: "container", Value: o.Container}, {Name: "namespace", Value: o.Namespace}, {Name: "pod", Value: o.Pod}}
}

// podLabels are a pod's labels as kube-state-metrics writes them: a prefix, what
// Prometheus does not take replaced, and words told apart by underscores and not by
// capitals. Of two that become one the later has a number.
func podLabels(kubeLabels []device.Label) []device.Label {
	var labels []device.Label
	seen := map[string]bool{}
	for _, l := range kubeLabels {
		name := "label_" + snakeCase(l.Name)
		for plain, n := name, 2; seen[name]; n++ { // which a label may have for its own
			name = plain + "_conflict" + strconv.Itoa(n)
		}
		seen[name] = true
		labels = append(labels, device.Label{Name: name, Value: l.Value})
	}
	return labels
}

// snakeCase is "node_pool" of "node-pool" and of "nodePool".
func snakeCase(name string) string {
	var b strings.Builder
	lower := false // whether the character before was no capital
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			lower = true
		case r >= 'A' && r <= 'Z':
			if lower {
				b.WriteByte('_')
			}
			r, lower = r-'A'+'a', false
		default:
			r, lower = '_', false
		}
		b.WriteRune(r)
	}
	return b.String()
}

// podMeta is what is known of a pod besides its name.
func (rm *renderedMetrics) podMeta(owner device.Owner) device.PodMeta {
	if owner == (device.Owner{}) {
		return device.PodMeta{}
	}
	return rm.sources.Node.PodMeta(owner.Namespace, owner.Pod)
}

func equalPodMeta(a, b device.PodMeta) bool {
	return a.UID == b.UID && slices.Equal(a.Labels, b.Labels)
}

func sortLabels(labels []device.Label) {
	slices.SortFunc(labels, func(a, b device.Label) int { return cmp.Compare(a.Name, b.Name) })
}
