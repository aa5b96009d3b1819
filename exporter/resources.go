package exporter

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/text"
)

// renderAllocatable renders the resources that the kubelet can allocate, of any device plugin.
func (r *snapshotSeries) renderAllocatable(n allocation.NodeResources) {
	if !n.AllocatableKnown {
		return
	}
	node := r.group(nil)
	for _, d := range n.Allocatable.Dropped {
		node.set("podgauge_resource_dropped_ids", float64(d.IDs), d.Resource, "allocatable")
	}
	counts := map[[2]string]int{}
	for _, d := range n.Allocatable.Devices {
		counts[[2]string{d.Resource, formatNUMANodes(d.NUMANodes)}]++
	}
	byName := func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }
	for _, key := range slices.SortedFunc(maps.Keys(counts), byName) {
		node.set("podgauge_resource_allocatable_devices", float64(counts[key]), key[:]...)
	}
	for _, cpus := range n.Allocatable.CPUs { // a single row
		node.set("podgauge_allocatable_cpus", float64(len(cpus.CPUs)))
		node.set("podgauge_shared_cpus", float64(countSharedCPUs(cpus.CPUs, n.Allocated.CPUs)))
	}
	for _, m := range n.Allocatable.Memory {
		node.set("podgauge_allocatable_memory_bytes", float64(m.Bytes), m.Type, formatNUMANodes(m.NUMANodes))
	}
	for _, d := range n.Allocatable.Devices { // after the counts: at the limit, devices are left out first
		node.set("podgauge_resource_device_info", 1, d.Resource, d.ID, formatNUMANodes(d.NUMANodes))
	}
}

// renderAllocated renders the resources of containers.
func (r *snapshotSeries) renderAllocated(s *allocation.ResourceSet) {
	for _, d := range s.Dropped {
		r.group(nil).set("podgauge_resource_dropped_ids", float64(d.IDs), d.Resource, "allocated")
	}
	for _, d := range s.Devices {
		r.group(ownerLabels(d.Owner)).set("podgauge_resource_allocation_info", 1,
			d.Resource, d.ID, formatNUMANodes(d.NUMANodes))
	}
	for _, cpus := range s.CPUs {
		group := r.group(ownerLabels(cpus.Owner))
		group.set("podgauge_container_exclusive_cpus", float64(len(cpus.CPUs)))
		group.set("podgauge_container_exclusive_cpus_info", 1, formatCPURanges(cpus.CPUs))
	}
	for _, m := range s.Memory {
		r.group(ownerLabels(m.Owner)).set("podgauge_container_reserved_memory_bytes", float64(m.Bytes),
			m.Type, formatNUMANodes(m.NUMANodes))
	}
	for _, claim := range s.Claims {
		r.group(ownerLabels(claim.Owner)).set("podgauge_claim_info", 1,
			claim.ClaimNamespace, claim.ClaimName, claim.Driver, claim.Pool, claim.Device, claim.ShareID)
	}
}

// formatNUMANodes returns "" if no node is known.
func formatNUMANodes(nodes []int) string {
	return strings.Join(text.Each(nodes, strconv.Itoa), ",")
}

// countSharedCPUs counts the CPUs that are not exclusive to a container
// (https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/).
func countSharedCPUs(allocatable []int64, allocated []allocation.ExclusiveCPUs) int {
	exclusive := map[int64]bool{}
	for _, c := range allocated {
		for _, cpu := range c.CPUs {
			exclusive[cpu] = true
		}
	}
	n := 0
	for _, cpu := range allocatable {
		if !exclusive[cpu] {
			n++
		}
	}
	return n
}

// formatCPURanges returns "2-3,7" for 7, 3 and 2.
func formatCPURanges(cpus []int64) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(cpus)))
	var ranges []string
	for i := 0; i < len(sorted); {
		n := i
		for n+1 < len(sorted) && sorted[n+1] == sorted[n]+1 {
			n++
		}
		first := strconv.FormatInt(sorted[i], 10)
		if n > i {
			first += "-" + strconv.FormatInt(sorted[n], 10)
		}
		ranges = append(ranges, first)
		i = n + 1
	}
	return strings.Join(ranges, ",")
}
