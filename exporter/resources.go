package exporter

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
)

// resourceFamilies are what the kubelet says of all that it gives away piece by piece,
// GPUs among it.
type resourceFamilies struct {
	allocatable, deviceInfo, allocationInfo         *family
	cpus, sharedCPUs, containerCPUs, containerCPUID *family
	memory, containerMemory, claimInfo, droppedIDs  *family
}

func (f *resourceFamilies) register(add func(familyDesc) *family) {
	f.allocatable = add(gaugeDesc("podgauge_resource_allocatable_devices",
		"Healthy devices of any plugin that the kubelet would give away, held ones included; absent while it does not answer.", "resource", "numa_node"))
	f.deviceInfo = add(gaugeDesc("podgauge_resource_device_info",
		"A healthy device of any plugin that the kubelet would give away, held or not; always 1.", "resource", "device_id", "numa_node"))
	f.allocationInfo = add(gaugeDesc("podgauge_resource_allocation_info",
		"A device of any plugin that a container holds; always 1.", "resource", "device_id", "numa_node"))
	f.droppedIDs = add(gaugeDesc("podgauge_resource_dropped_ids",
		"Ids of a resource that has more than 4096 besides those of podgauge's devices: such a resource has no other series. List: allocatable or allocated.", "resource", "list"))
	f.cpus = add(gaugeDesc("podgauge_allocatable_cpus",
		"CPUs that the kubelet would give away one by one, held ones included: with the CPU manager's static policy."))
	f.sharedCPUs = add(gaugeDesc("podgauge_shared_cpus",
		"CPUs of those that are no container's alone: the pool that all other containers share."))
	f.containerCPUs = add(gaugeDesc("podgauge_container_exclusive_cpus", "CPUs that the container has for itself."))
	f.containerCPUID = add(gaugeDesc("podgauge_container_exclusive_cpus_info", "Which CPUs the container has for itself, as Linux lists them: \"2-3,7\"; always 1.", "cpus"))
	f.memory = add(gaugeDesc("podgauge_allocatable_memory_bytes",
		"Memory or huge pages that the kubelet would reserve: with the memory manager's Static policy.", "type", "numa_node"))
	f.containerMemory = add(gaugeDesc("podgauge_container_reserved_memory_bytes",
		"Memory or huge pages that are reserved for the container.", "type", "numa_node"))
	f.claimInfo = add(gaugeDesc("podgauge_claim_info", "A device that a container has by Dynamic Resource Allocation; always 1.",
		"claim_namespace", "claim", "driver", "pool", "device", "share"))
}

// resourceSeries are the series of resources, and what they were made of. The kubelet says
// the same thousand things each time, so nothing is made anew while it does.
type resourceSeries struct {
	resources device.NodeResources
	cachedSeries
}

// cachedSeries are series that stay as they are for as long as what they were made of does.
type cachedSeries struct {
	series []cachedEntry
	// limit is how many there may be, and dropped how many more there would be.
	limit, dropped int
}

type cachedEntry struct {
	family *family
	*series
}

// renderResources writes what the kubelet gives away, and to whom.
func (rm *renderedMetrics) renderResources(r device.NodeResources) {
	if !sameResources(rm.resources.resources, r) {
		rm.resources = resourceSeries{r, cachedSeries{limit: rm.options.SeriesLimit}}
		rm.buildAllocatable(r)
		rm.buildAllocated(r)
	}
	rm.addCached(&rm.resources.cachedSeries)
}

// addCached puts them on the page, as far as there is room.
func (rm *renderedMetrics) addCached(s *cachedSeries) {
	for _, entry := range s.series {
		if rm.admit(entry.family) {
			rm.addSeries(entry.family, entry.series)
		}
	}
	rm.seriesDropped += s.dropped
}

// sameResources tells whether two answers are one: an answer that says nothing new has
// the slices of the one before.
func sameResources(a, b device.NodeResources) bool {
	return a.AllocatableKnown == b.AllocatableKnown && sameSlice(a.AllocatableDevices, b.AllocatableDevices) && sameSlice(a.AllocatableCPUs, b.AllocatableCPUs) && sameSlice(a.AllocatableMemory, b.AllocatableMemory) &&
		sameSlice(a.AllocatedDevices, b.AllocatedDevices) && sameSlice(a.AllocatedCPUs, b.AllocatedCPUs) && sameSlice(a.AllocatedMemory, b.AllocatedMemory) && sameSlice(a.Claims, b.Claims) &&
		sameSlice(a.Dropped, b.Dropped) && sameSlice(a.DroppedAllocated, b.DroppedAllocated)
}

// sameSlice tells whether two slices are the same memory.
func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// add adds a series. None is made where the family is unwanted, nor where no page has
// room for it: a plugin may have some hundred thousand devices.
func (c *cachedSeries) add(f *family, value float64, owner *device.Owner, labels ...device.Label) {
	if f.excluded {
		return
	}
	if len(c.series) == c.limit {
		c.dropped++
		return
	}
	if owner != nil {
		labels = append(ownerLabels(*owner), labels...)
	}
	sortLabels(labels)
	c.series = append(c.series, cachedEntry{f, &series{labels: formatLabels(labels), value: value}})
}

func (rm *renderedMetrics) buildAllocatable(r device.NodeResources) {
	if !r.AllocatableKnown {
		return
	}
	cached, families := &rm.resources, &rm.builtin.resources
	for _, d := range r.Dropped {
		cached.add(families.droppedIDs, float64(d.IDs), nil, device.Label{Name: "resource", Value: d.Resource}, device.Label{Name: "list", Value: "allocatable"})
	}
	counts := map[[2]string]int{}
	for _, d := range r.AllocatableDevices {
		counts[[2]string{d.Resource, formatNUMANodes(d.NUMANodes)}]++
	}
	for _, key := range slices.SortedFunc(maps.Keys(counts), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		cached.add(families.allocatable, float64(counts[key]), nil,
			device.Label{Name: "resource", Value: key[0]}, device.Label{Name: "numa_node", Value: key[1]})
	}
	if len(r.AllocatableCPUs) > 0 {
		cached.add(families.cpus, float64(len(r.AllocatableCPUs)), nil)
		cached.add(families.sharedCPUs, float64(countSharedCPUs(r)), nil)
	}
	for _, m := range r.AllocatableMemory {
		cached.add(families.memory, float64(m.Bytes), nil, memoryLabels(m)...)
	}
	for _, d := range r.AllocatableDevices { // after the counts: where there are too many, these are left out
		cached.add(families.deviceInfo, 1, nil, resourceLabels(d)...)
	}
}

func (rm *renderedMetrics) buildAllocated(r device.NodeResources) {
	cached, families := &rm.resources, &rm.builtin.resources
	for _, d := range r.DroppedAllocated {
		cached.add(families.droppedIDs, float64(d.IDs), nil, device.Label{Name: "resource", Value: d.Resource}, device.Label{Name: "list", Value: "allocated"})
	}
	for i := range r.AllocatedDevices {
		d := &r.AllocatedDevices[i]
		cached.add(families.allocationInfo, 1, &d.Owner, resourceLabels(d.ResourceDevice)...)
	}
	for i := range r.AllocatedCPUs {
		c := &r.AllocatedCPUs[i]
		cached.add(families.containerCPUs, float64(len(c.CPUs)), &c.Owner)
		cached.add(families.containerCPUID, 1, &c.Owner, device.Label{Name: "cpus", Value: formatCPURanges(c.CPUs)})
	}
	for i := range r.AllocatedMemory {
		m := &r.AllocatedMemory[i]
		cached.add(families.containerMemory, float64(m.Bytes), &m.Owner, memoryLabels(m.Memory)...)
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		cached.add(families.claimInfo, 1, &c.Owner,
			device.Label{Name: "claim_namespace", Value: c.ClaimNamespace}, device.Label{Name: "claim", Value: c.ClaimName},
			device.Label{Name: "driver", Value: c.Driver}, device.Label{Name: "pool", Value: c.Pool},
			device.Label{Name: "device", Value: c.Device}, device.Label{Name: "share", Value: c.ShareID})
	}
}

func resourceLabels(d device.ResourceDevice) []device.Label {
	return []device.Label{{Name: "resource", Value: d.Resource}, {Name: "device_id", Value: d.ID}, {Name: "numa_node", Value: formatNUMANodes(d.NUMANodes)}}
}

func memoryLabels(m device.Memory) []device.Label {
	return []device.Label{{Name: "type", Value: m.Type}, {Name: "numa_node", Value: formatNUMANodes(m.NUMANodes)}}
}

// formatNUMANodes is empty where no node is known.
func formatNUMANodes(nodes []int) string {
	text := make([]string, len(nodes))
	for i, n := range nodes {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// countSharedCPUs counts the CPUs that no container has for itself
// (https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/).
func countSharedCPUs(r device.NodeResources) int {
	exclusive := map[int64]bool{}
	for _, c := range r.AllocatedCPUs {
		for _, cpu := range c.CPUs {
			exclusive[cpu] = true
		}
	}
	n := 0
	for _, cpu := range r.AllocatableCPUs {
		if !exclusive[cpu] {
			n++
		}
	}
	return n
}

// formatCPURanges lists CPUs as Linux does.
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
