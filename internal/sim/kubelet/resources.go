package kubelet

import (
	"math/rand/v2"
	"slices"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// MemoryBlock is memory that a container has reserved, or that containers may reserve.
type MemoryBlock struct {
	Type      string // "memory", "hugepages-2Mi"
	Bytes     uint64
	NUMANodes []int64
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

// marshalMemory returns the rows of PodResources, in no order.
func marshalMemory(blocks []MemoryBlock) []*podresources.ContainerMemory {
	var list []*podresources.ContainerMemory
	for _, b := range blocks {
		m := &podresources.ContainerMemory{MemoryType: b.Type, Size: b.Bytes, Topology: &podresources.TopologyInfo{}}
		for _, node := range b.NUMANodes {
			m.Topology.Nodes = append(m.Topology.Nodes, &podresources.NUMANode{ID: node})
		}
		list = append(list, m)
	}
	return shuffledCopy(list)
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
