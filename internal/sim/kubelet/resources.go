package kubelet

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// MemoryBlock is memory of one NUMA node that containers may have reserved.
type MemoryBlock struct {
	Type     string // "memory", "hugepages-2Mi"
	Bytes    uint64
	NUMANode int64
}

// ClaimSpec is a resource claim that the API server's side of Dynamic Resource Allocation has
// given devices. Containers that name the same claim share them.
type ClaimSpec struct {
	// Namespace is the pod's when empty.
	Namespace string
	Name      string
	Devices   []ClaimedDevice
	// PreparedCount is how often the driver has prepared the claim, 0 meaning once. A kubelet tries
	// again where another driver of the claim failed, and without the fix of
	// kubernetes#141335 it keeps the devices of each time.
	PreparedCount int
}

// ClaimedDevice is a device as a DRA driver's NodePrepareResources answers.
type ClaimedDevice struct {
	Driver, Pool, Device string
	Share                string // set where the device is one of several shares
	CDI                  []string
}

// reservation is what a container, or a pod as a whole, has of CPUs and memory.
type reservation struct {
	cpus   []int64
	memory []reservedMemory
}

// reservedMemory is memory of one or more NUMA nodes.
type reservedMemory struct {
	memoryType string
	bytes      uint64
	blocks     []MemoryBlock // by node
}

// reservations are by pod uid and container; "" is the pod. They are the state files of the CPU
// and the memory manager, and so outlive the kubelet's process.
type reservations map[string]map[string]reservation

// reserve gives a container what it asks for, unless it has it, after its devices
// (pkg/kubelet/cm/container_manager_linux.go: the order of the hint providers). Regular init
// containers get nothing: in a real kubelet they use what the others will have. With the
// policies none nobody gets anything, and everybody runs. mu is held.
func (k *Kubelet) reserve(p *pod, container string, cpus int, memory map[string]uint64) error {
	if _, has := k.reservations[p.uid][container]; has {
		return nil
	}
	var got reservation
	if len(k.options.ExclusiveCPUs) > 0 && cpus > 0 {
		free := k.freeCPUs()
		if len(free) < cpus { // pkg/kubelet/cm/cpumanager/policy_static.go
			return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", cpus, len(free))
		}
		got.cpus = free[:cpus]
	}
	for _, kind := range slices.Sorted(maps.Keys(memory)) {
		if len(k.options.Memory) == 0 {
			break
		}
		r, ok := k.reserveMemory(kind, memory[kind])
		if !ok { // pkg/kubelet/cm/memorymanager/policy_static.go
			return errors.New("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
		}
		got.memory = append(got.memory, r)
	}
	if got.cpus == nil && got.memory == nil {
		return nil
	}
	if k.reservations[p.uid] == nil {
		k.reservations[p.uid] = map[string]reservation{}
	}
	k.reservations[p.uid][container] = got
	return nil
}

// freeCPUs are those that nobody has for himself, the lowest first. mu is held.
func (k *Kubelet) freeCPUs() []int64 {
	taken := map[int64]bool{}
	for _, containers := range k.reservations {
		for _, had := range containers {
			for _, cpu := range had.cpus {
				taken[cpu] = true
			}
		}
	}
	free := slices.DeleteFunc(slices.Clone(k.options.ExclusiveCPUs), func(cpu int64) bool { return taken[cpu] })
	slices.Sort(free)
	return free
}

// reserveMemory takes memory of the first NUMA node that has enough, or else of as many as it
// takes, together. mu is held.
func (k *Kubelet) reserveMemory(kind string, bytes uint64) (reservedMemory, bool) {
	free := k.freeMemory(kind)
	for _, block := range free {
		if block.Bytes >= bytes {
			block.Bytes = bytes
			return reservedMemory{kind, bytes, []MemoryBlock{block}}, true
		}
	}
	r := reservedMemory{memoryType: kind, bytes: bytes}
	for _, block := range free {
		if block.Bytes = min(block.Bytes, bytes); block.Bytes > 0 {
			r.blocks = append(r.blocks, block)
		}
		if bytes -= block.Bytes; bytes == 0 {
			return r, true
		}
	}
	return reservedMemory{}, false
}

// freeMemory is by node, in the options' order. mu is held.
func (k *Kubelet) freeMemory(kind string) (free []MemoryBlock) {
	for _, block := range k.options.Memory {
		if block.Type != kind {
			continue
		}
		for _, containers := range k.reservations {
			for _, had := range containers {
				for _, r := range had.memory {
					for _, part := range r.blocks {
						if part.Type == kind && part.NUMANode == block.NUMANode {
							block.Bytes -= part.Bytes
						}
					}
				}
			}
		}
		free = append(free, block)
	}
	return free
}

// cpuIDs are in no order (pkg/kubelet/cm/container_manager.go: UnsortedList).
func (res reservation) cpuIDs() []int64 { return shuffledCopy(res.cpus) }

func (res reservation) containerMemory() (blocks []*podresources.ContainerMemory) {
	for _, r := range res.memory {
		m := &podresources.ContainerMemory{MemoryType: r.memoryType, Size: r.bytes, Topology: &podresources.TopologyInfo{}}
		for _, part := range r.blocks {
			m.Topology.Nodes = append(m.Topology.Nodes, &podresources.NUMANode{ID: part.NUMANode})
		}
		blocks = append(blocks, m)
	}
	return shuffledCopy(blocks)
}

// allocatableMemory has an entry for each type and node.
func (o Options) allocatableMemory() (blocks []*podresources.ContainerMemory) {
	for _, b := range o.Memory {
		blocks = append(blocks, reservation{memory: []reservedMemory{{b.Type, b.Bytes, []MemoryBlock{b}}}}.containerMemory()...)
	}
	return shuffledCopy(blocks)
}

// claimResources are a container's claims, once the drivers have prepared them: before its
// first start, and not at admission. The rows of one driver follow each other in its order,
// and each has the CDI names of those before it too: the kubelet makes one list for all of
// them (GetDynamicResources in pkg/kubelet/cm/container_manager_linux.go).
func (p *pod) claimResources(c ContainerSpec) (list []*podresources.DynamicResource) {
	for _, claim := range c.Claims {
		d := &podresources.DynamicResource{ClaimName: claim.Name, ClaimNamespace: claim.Namespace}
		if d.ClaimNamespace == "" {
			d.ClaimNamespace = p.Namespace
		}
		for driver, devices := range claim.byDriver() { // in no order
			var cdi []*podresources.CDIDevice
			for _, of := range slices.Repeat(devices, max(1, claim.PreparedCount)) {
				for _, name := range of.CDI {
					cdi = append(cdi, &podresources.CDIDevice{Name: name})
				}
				r := &podresources.ClaimResource{CdiDevices: cdi, DriverName: driver, PoolName: of.Pool, DeviceName: of.Device}
				if of.Share != "" {
					r.ShareId = &of.Share
				}
				d.ClaimResources = append(d.ClaimResources, r)
			}
		}
		list = append(list, d)
	}
	return list
}

func (c ClaimSpec) byDriver() map[string][]ClaimedDevice {
	devices := map[string][]ClaimedDevice{}
	for _, d := range c.Devices {
		devices[d.Driver] = append(devices[d.Driver], d)
	}
	return devices
}

// shuffledCopy is a copy in any order, nil where there is nothing.
func shuffledCopy[T any](list []T) []T {
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}
