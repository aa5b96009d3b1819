package kubelet

import (
	"context"
	"fmt"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The PodResources service (pkg/kubelet/apis/podresources/server_v1.go) returns
// rows in random order, except for the containers of a pod.

// List returns all active pods, with or without devices.
func (kp *kubeletProcess) List(
	ctx context.Context, _ *podresources.ListPodResourcesRequest,
) (*podresources.ListPodResourcesResponse, error) {
	faults := kp.currentFaults()
	if err := waitRelease(ctx, faults.HoldList); err != nil {
		return nil, err
	}
	if faults.ListErr != nil {
		return nil, faults.ListErr
	}
	kp.mu.Lock()
	defer kp.mu.Unlock()
	kp.releaseEnded()
	var pods []*podresources.PodResources
	for _, p := range kp.pods {
		if p.isListed() {
			pods = append(pods, kp.podResources(p))
		}
	}
	return &podresources.ListPodResourcesResponse{PodResources: append(shuffled(pods),
		paddingPods(faults.ListBytes)...)}, nil
}

// GetAllocatableResources returns the healthy devices, allocated or not. A
// device with an empty Topology is lost
// (pkg/kubelet/cm/container_manager.go:304).
func (kp *kubeletProcess) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	var rows []*podresources.ContainerDevices
	for resource, healthy := range kp.healthy {
		for id := range healthy {
			topology := kp.devices[resource][id].GetTopology()
			if topology == nil {
				rows = append(rows, deviceRow(resource, id))
			}
			for _, node := range topology.GetNodes() {
				rows = append(rows, deviceRow(resource, id, node.ID))
			}
		}
	}
	return &podresources.AllocatableResourcesResponse{
		Devices: shuffled(rows), CpuIds: shuffled(kp.options.ExclusiveCPUs), Memory: memoryRows(kp.options.Memory),
	}, nil
}

// Get returns a pod. The error for a missing pod has no status.
func (kp *kubeletProcess) Get(
	_ context.Context, r *podresources.GetPodResourcesRequest,
) (*podresources.GetPodResourcesResponse, error) {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	p := kp.findPod(r.PodNamespace, r.PodName)
	if p == nil || !p.isListed() {
		return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
	}
	return &podresources.GetPodResourcesResponse{PodResources: kp.podResources(p)}, nil
}

// podResources returns a pod's sidecars and then the containers, without
// regular init containers. mu is held.
func (kp *kubeletProcess) podResources(p *pod) *podresources.PodResources {
	response := &podresources.PodResources{
		Name: p.Name, Namespace: p.Namespace, CpuIds: shuffled(p.ExclusiveCPUs),
		Memory: memoryRows(p.Memory),
	}
	for _, c := range p.orderedContainers() {
		if c.reusable() {
			continue
		}
		container := &podresources.ContainerResources{
			Name: c.Name, CpuIds: shuffled(c.ExclusiveCPUs),
			Memory: memoryRows(c.Memory),
		}
		if p.claimsPrepared {
			container.DynamicResources = claimRows(p.Namespace, c.Claims)
		}
		for resource := range c.Limits {
			for node, ids := range kp.allocations[allocatedTo{p.uid, c.Name, resource}].devices {
				for _, id := range ids {
					if node == noNUMANode {
						container.Devices = append(container.Devices, deviceRow(resource, id))
					} else {
						container.Devices = append(container.Devices, deviceRow(resource, id, node))
					}
				}
			}
		}
		container.Devices = shuffled(container.Devices)
		response.Containers = append(response.Containers, container)
	}
	return response
}

// deviceRow returns the row of a device, or of a NUMA node of the device.
func deviceRow(resource, id string, node ...int64) *podresources.ContainerDevices {
	row := &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
	if len(node) > 0 {
		row.Topology = topologyOf(node)
	}
	return row
}

func topologyOf(nodes []int64) *podresources.TopologyInfo {
	t := &podresources.TopologyInfo{}
	for _, node := range nodes {
		t.Nodes = append(t.Nodes, &podresources.NUMANode{ID: node})
	}
	return t
}

func memoryRows(blocks []MemoryBlock) (rows []*podresources.ContainerMemory) {
	for _, b := range blocks {
		rows = append(rows, &podresources.ContainerMemory{
			MemoryType: b.Type, Size: b.Bytes,
			Topology: topologyOf(b.NUMANodes),
		})
	}
	return shuffled(rows)
}

// claimRows returns the devices of claims. Rows of the same driver keep the
// order, and include the CDI names of the rows before (GetDynamicResources in
// pkg/kubelet/cm/container_manager_linux.go).
func claimRows(podNamespace string, claims []ClaimSpec) (rows []*podresources.DynamicResource) {
	for _, claim := range claims {
		row := &podresources.DynamicResource{ClaimName: claim.Name, ClaimNamespace: claim.Namespace}
		if row.ClaimNamespace == "" {
			row.ClaimNamespace = podNamespace
		}
		cdi := map[string][]*podresources.CDIDevice{} // by driver
		for range max(1, claim.PreparedCount) {
			for _, d := range claim.Devices {
				for _, name := range d.CDI {
					cdi[d.Driver] = append(cdi[d.Driver], &podresources.CDIDevice{Name: name})
				}
				r := &podresources.ClaimResource{
					CdiDevices: cdi[d.Driver], DriverName: d.Driver, PoolName: d.Pool,
					DeviceName: d.Device,
				}
				if d.Share != "" {
					r.ShareId = &d.Share
				}
				row.ClaimResources = append(row.ClaimResources, r)
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// paddingPods returns a pod of about this size, or no pod for 0.
func paddingPods(bytes int) []*podresources.PodResources {
	if bytes == 0 {
		return nil
	}
	c := &podresources.ContainerResources{Name: "padding"}
	const rowBytes = 64
	for i := range bytes / rowBytes {
		c.Devices = append(c.Devices, deviceRow("example.com/padding", fmt.Sprintf("padding-%031d", i)))
	}
	return []*podresources.PodResources{{
		Name: "padding", Namespace: "default",
		Containers: []*podresources.ContainerResources{c},
	}}
}
