package exporter

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/device"
	dto "github.com/prometheus/client_model/go"
)

// labelSet says which labels a series has. They are a public contract
// (docs/adr/0002-label-contract.md).
type labelSet uint8

const (
	// deviceLabels are on every per-device series, always all six. The holder's
	// are present and empty where there is none, and not missing: honor_labels
	// fills a missing label with podgauge's own pod.
	deviceLabels labelSet = iota
	// allocationLabels are on the series that list holdings.
	allocationLabels
)

func (set labelSet) pairs(s device.Status, owner device.Owner) []*dto.LabelPair {
	slice := ""
	if !s.WholeGPU() {
		slice = string(s.ID)
	}
	pairs := []*dto.LabelPair{
		pair("container", owner.Container),
		pair("mig_uuid", slice),
		pair("namespace", owner.Namespace),
		pair("pod", owner.Pod),
		pair("uuid", string(s.GPU)),
	}
	if set == deviceLabels {
		pairs = slices.Insert(pairs, 1, pair("gpu", strconv.Itoa(s.Index)))
	}
	return pairs
}

// pair makes a label. Its value may come from a driver or a kubelet, and what is
// not UTF-8 would cost the whole scrape.
func pair(name, value string) *dto.LabelPair {
	value = strings.ToValidUTF8(value, "\uFFFD")
	return &dto.LabelPair{Name: &name, Value: &value}
}

func sortPairs(pairs []*dto.LabelPair) {
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
}
