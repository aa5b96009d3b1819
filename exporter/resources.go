package exporter

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// resourceSeries renders the resources that the kubelet allocates, of any device plugin. The kubelet repeats thousands of rows in
// each answer, so the series are kept while the rows stay the same.
type resourceSeries struct {
	resources device.NodeResources
	cachedSeries
}

func (c *resourceSeries) render(st *seriesStore, r device.NodeResources) {
	if c.store == nil || !sameResources(c.resources, r) {
		*c = resourceSeries{r, cachedSeries{store: st}}
		c.addAllocatable()
		c.addAllocated()
	}
	c.show()
}

// sameResources reports whether two answers have the same slices.
func sameResources(a, b device.NodeResources) bool {
	return a.AllocatableKnown == b.AllocatableKnown && sameRows(a.Allocatable, b.Allocatable) && sameRows(a.Allocated, b.Allocated)
}

func sameRows(a, b device.ResourceSet) bool {
	return sameSlice(a.Devices, b.Devices) && sameSlice(a.CPUs, b.CPUs) && sameSlice(a.Memory, b.Memory) &&
		sameSlice(a.Claims, b.Claims) && sameSlice(a.Dropped, b.Dropped)
}

func (c *resourceSeries) addAllocatable() {
	if !c.resources.AllocatableKnown {
		return
	}
	r := &c.resources.Allocatable
	for _, d := range r.Dropped {
		c.add("podgauge_resource_dropped_ids", float64(d.IDs), nil, nil, d.Resource, "allocatable")
	}
	counts := map[[2]string]int{}
	for _, d := range r.Devices {
		counts[[2]string{d.Resource, formatNUMANodes(d.NUMANodes)}]++
	}
	for _, key := range slices.SortedFunc(maps.Keys(counts), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		c.add("podgauge_resource_allocatable_devices", float64(counts[key]), nil, nil, key[:]...)
	}
	for _, cpus := range r.CPUs { // a single row
		c.add("podgauge_allocatable_cpus", float64(len(cpus.CPUs)), nil, nil)
		c.add("podgauge_shared_cpus", float64(countSharedCPUs(cpus.CPUs, c.resources.Allocated.CPUs)), nil, nil)
	}
	for _, m := range r.Memory {
		c.add("podgauge_allocatable_memory_bytes", float64(m.Bytes), nil, nil, m.Type, formatNUMANodes(m.NUMANodes))
	}
	for _, d := range r.Devices { // after the counts: at the limit, devices are left out first
		c.add("podgauge_resource_device_info", 1, nil, nil, d.Resource, d.ID, formatNUMANodes(d.NUMANodes))
	}
}

func (c *resourceSeries) addAllocated() {
	r := &c.resources.Allocated
	for _, d := range r.Dropped {
		c.add("podgauge_resource_dropped_ids", float64(d.IDs), nil, nil, d.Resource, "allocated")
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		c.add("podgauge_resource_allocation_info", 1, &d.Owner, nil, d.Resource, d.ID, formatNUMANodes(d.NUMANodes))
	}
	for i := range r.CPUs {
		cpus := &r.CPUs[i]
		c.add("podgauge_container_exclusive_cpus", float64(len(cpus.CPUs)), &cpus.Owner, nil)
		c.add("podgauge_container_exclusive_cpus_info", 1, &cpus.Owner, nil, formatCPURanges(cpus.CPUs))
	}
	for i := range r.Memory {
		m := &r.Memory[i]
		c.add("podgauge_container_reserved_memory_bytes", float64(m.Bytes), &m.Owner, nil, m.Type, formatNUMANodes(m.NUMANodes))
	}
	for i := range r.Claims {
		claim := &r.Claims[i]
		c.add("podgauge_claim_info", 1, &claim.Owner, nil, claim.ClaimNamespace, claim.ClaimName, claim.Driver, claim.Pool, claim.Device, claim.ShareID)
	}
}

// formatNUMANodes returns "" if no node is known.
func formatNUMANodes(nodes []int) string {
	text := make([]string, len(nodes))
	for i, n := range nodes {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// countSharedCPUs counts the CPUs that are not exclusive to a container
// (https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/).
func countSharedCPUs(allocatable []int64, allocated []device.ExclusiveCPUs) int {
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
	var text []string
	for i := 0; i < len(sorted); {
		n := i
		for n+1 < len(sorted) && sorted[n+1] == sorted[n]+1 {
			n++
		}
		first := strconv.FormatInt(sorted[i], 10)
		if n > i {
			first += "-" + strconv.FormatInt(sorted[n], 10)
		}
		text = append(text, first)
		i = n + 1
	}
	return strings.Join(text, ",")
}
