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

func (r *resourceFamilies) make(add func(description) *family) {
	r.allocatable = add(gauge("podgauge_resource_allocatable_devices",
		"Healthy devices of any plugin that the kubelet would give away, held ones included; absent while it does not answer.", "resource", "numa_node"))
	r.deviceInfo = add(gauge("podgauge_resource_device_info",
		"A healthy device of any plugin that the kubelet would give away, held or not; always 1.", "resource", "device_id", "numa_node"))
	r.allocationInfo = add(gauge("podgauge_resource_allocation_info",
		"A device of any plugin that a container holds; always 1.", "resource", "device_id", "numa_node"))
	r.droppedIDs = add(gauge("podgauge_resource_dropped_ids",
		"Ids of a resource that has more than 4096 besides those of podgauge's devices: such a resource has no other series. List: allocatable or allocated.", "resource", "list"))
	r.cpus = add(gauge("podgauge_allocatable_cpus",
		"CPUs that the kubelet would give away one by one, held ones included: with the CPU manager's static policy."))
	r.sharedCPUs = add(gauge("podgauge_shared_cpus",
		"CPUs of those that are no container's alone: the pool that all other containers share."))
	r.containerCPUs = add(gauge("podgauge_container_exclusive_cpus", "CPUs that the container has for itself."))
	r.containerCPUID = add(gauge("podgauge_container_exclusive_cpus_info", "Which CPUs the container has for itself, as Linux lists them: \"2-3,7\"; always 1.", "cpus"))
	r.memory = add(gauge("podgauge_allocatable_memory_bytes",
		"Memory or huge pages that the kubelet would reserve: with the memory manager's Static policy.", "type", "numa_node"))
	r.containerMemory = add(gauge("podgauge_container_reserved_memory_bytes",
		"Memory or huge pages that are reserved for the container.", "type", "numa_node"))
	r.claimInfo = add(gauge("podgauge_claim_info", "A device that a container has by Dynamic Resource Allocation; always 1.",
		"claim_namespace", "claim", "driver", "pool", "device", "share"))
}

// nodeSeries are the series of resources, and what they were made of. The kubelet says
// the same thousand things each time, so nothing is made anew while it does.
type nodeSeries struct {
	of device.Resources
	standing
}

// standing are series that stay as they are for as long as what they were made of does.
type standing struct {
	series []placed
	// limit is how many there may be, and dropped how many more there would be.
	limit, dropped int
}

type placed struct {
	family *family
	*series
}

// renderResources writes what the kubelet gives away, and to whom.
func (p *page) renderResources(r device.Resources) {
	if !sameResources(p.node.of, r) {
		p.node = nodeSeries{r, standing{limit: p.options.SeriesLimit}}
		p.makeAllocatable(r)
		p.makeHeld(r)
	}
	p.putAll(&p.node.standing)
}

// putAll puts them on the page, as far as there is room.
func (p *page) putAll(s *standing) {
	for _, one := range s.series {
		if p.takes(one.family) {
			p.put(one.family, one.series)
		}
	}
	p.dropped += s.dropped
}

// sameResources tells whether two answers are one: an answer that says nothing new has
// the slices of the one before.
func sameResources(a, b device.Resources) bool {
	return a.Known == b.Known && same(a.Devices, b.Devices) && same(a.CPUs, b.CPUs) && same(a.Memory, b.Memory) &&
		same(a.HeldDevices, b.HeldDevices) && same(a.HeldCPUs, b.HeldCPUs) && same(a.HeldMemory, b.HeldMemory) && same(a.Claims, b.Claims) &&
		same(a.Dropped, b.Dropped) && same(a.DroppedHeld, b.DroppedHeld)
}

// same tells whether two slices are the same memory.
func same[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// make adds a series. None is made where the family is unwanted, nor where no page has
// room for it: a plugin may have some hundred thousand devices.
func (n *standing) make(f *family, value float64, owner *device.Owner, labels ...device.Label) {
	if f.unwanted {
		return
	}
	if len(n.series) == n.limit {
		n.dropped++
		return
	}
	if owner != nil {
		labels = append(ownerLabels(*owner), labels...)
	}
	sortLabels(labels)
	n.series = append(n.series, placed{f, &series{labels: labelText(labels), value: value}})
}

func (p *page) makeAllocatable(r device.Resources) {
	if !r.Known {
		return
	}
	n, own := &p.node, &p.own.resources
	for _, d := range r.Dropped {
		n.make(own.droppedIDs, float64(d.IDs), nil, device.Label{Name: "resource", Value: d.Resource}, device.Label{Name: "list", Value: "allocatable"})
	}
	counts := map[[2]string]int{}
	for _, d := range r.Devices {
		counts[[2]string{d.Resource, numaNodes(d.NUMANodes)}]++
	}
	for _, at := range slices.SortedFunc(maps.Keys(counts), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		n.make(own.allocatable, float64(counts[at]), nil,
			device.Label{Name: "resource", Value: at[0]}, device.Label{Name: "numa_node", Value: at[1]})
	}
	if len(r.CPUs) > 0 {
		n.make(own.cpus, float64(len(r.CPUs)), nil)
		n.make(own.sharedCPUs, float64(shared(r)), nil)
	}
	for _, m := range r.Memory {
		n.make(own.memory, float64(m.Bytes), nil, memoryLabels(m)...)
	}
	for _, d := range r.Devices { // after the counts: where there are too many, these are left out
		n.make(own.deviceInfo, 1, nil, resourceLabels(d)...)
	}
}

func (p *page) makeHeld(r device.Resources) {
	n, own := &p.node, &p.own.resources
	for _, d := range r.DroppedHeld {
		n.make(own.droppedIDs, float64(d.IDs), nil, device.Label{Name: "resource", Value: d.Resource}, device.Label{Name: "list", Value: "allocated"})
	}
	for i := range r.HeldDevices {
		d := &r.HeldDevices[i]
		n.make(own.allocationInfo, 1, &d.Owner, resourceLabels(d.ResourceDevice)...)
	}
	for i := range r.HeldCPUs {
		c := &r.HeldCPUs[i]
		n.make(own.containerCPUs, float64(len(c.CPUs)), &c.Owner)
		n.make(own.containerCPUID, 1, &c.Owner, device.Label{Name: "cpus", Value: ranges(c.CPUs)})
	}
	for i := range r.HeldMemory {
		m := &r.HeldMemory[i]
		n.make(own.containerMemory, float64(m.Bytes), &m.Owner, memoryLabels(m.Memory)...)
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		n.make(own.claimInfo, 1, &c.Owner,
			device.Label{Name: "claim_namespace", Value: c.ClaimNamespace}, device.Label{Name: "claim", Value: c.ClaimName},
			device.Label{Name: "driver", Value: c.Driver}, device.Label{Name: "pool", Value: c.Pool},
			device.Label{Name: "device", Value: c.Device}, device.Label{Name: "share", Value: c.Share})
	}
}

func resourceLabels(d device.ResourceDevice) []device.Label {
	return []device.Label{{Name: "resource", Value: d.Resource}, {Name: "device_id", Value: d.ID}, {Name: "numa_node", Value: numaNodes(d.NUMANodes)}}
}

func memoryLabels(m device.Memory) []device.Label {
	return []device.Label{{Name: "type", Value: m.Type}, {Name: "numa_node", Value: numaNodes(m.NUMANodes)}}
}

// numaNodes is empty where no node is known.
func numaNodes(nodes []int) string {
	text := make([]string, len(nodes))
	for i, n := range nodes {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// shared counts the CPUs that no container has for itself
// (https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/device-plugins/).
func shared(r device.Resources) int {
	exclusive := map[int64]bool{}
	for _, c := range r.HeldCPUs {
		for _, cpu := range c.CPUs {
			exclusive[cpu] = true
		}
	}
	n := 0
	for _, cpu := range r.CPUs {
		if !exclusive[cpu] {
			n++
		}
	}
	return n
}

// ranges lists CPUs as Linux does.
func ranges(cpus []int64) string {
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
