package kubelet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// countCall counts the calls of PodResources and the Pods API.
func (kp *kubeletProcess) countCall(ctx context.Context, request any, method *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	kp.k.update(func() { kp.k.calls[path.Base(method.FullMethod)]++ })
	return handle(ctx, request)
}

// lister is the PodResources service (pkg/kubelet/apis/podresources/server_v1.go). Nothing in
// its answers has an order but the containers of a pod.
type lister struct {
	podresources.UnimplementedPodResourcesListerServer
	process *kubeletProcess
}

// List names every pod that is active, with or without devices.
func (s *lister) List(ctx context.Context, _ *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	trouble := s.process.k.currentFaults()
	if err := waitRelease(ctx, trouble.HoldList); err != nil {
		return nil, err
	}
	if trouble.ListErr != nil {
		return nil, trouble.ListErr
	}
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	s.process.releaseEnded()
	pods := []*podresources.PodResources{}
	for _, p := range s.process.k.pods {
		if s.process.isListed(p) {
			pods = append(pods, s.process.podResourcesOf(p))
		}
	}
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	return &podresources.ListPodResourcesResponse{PodResources: append(pods, paddingPods(trouble.ListBytes)...)}, nil
}

// GetAllocatableResources names the healthy devices, held or not, and the configured CPUs and
// memory. A device with a Topology that has no nodes is lost on the way (pkg/kubelet/cm/container_manager.go:304).
func (s *lister) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	o := s.process.k.options
	answer := &podresources.AllocatableResourcesResponse{CpuIds: shuffledCopy(o.ExclusiveCPUs), Memory: marshalMemory(o.Memory)}
	for resource, healthy := range s.process.healthy {
		for id := range healthy {
			if device := s.process.devices[resource][id]; device.GetTopology() == nil {
				answer.Devices = append(answer.Devices, newEntry(resource, id))
			} else {
				answer.Devices = append(answer.Devices, entriesByNode(resource, device)...)
			}
		}
	}
	shuffleEntries(answer.Devices)
	return answer, nil
}

// Get names one pod. It has no status of its own for a pod that is not there.
func (s *lister) Get(_ context.Context, r *podresources.GetPodResourcesRequest) (*podresources.GetPodResourcesResponse, error) {
	if err := s.process.k.currentFaults().GetErr; err != nil {
		return nil, err
	}
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	p := s.process.k.findPod(PodSpec{Namespace: r.PodNamespace, Name: r.PodName})
	if p == nil || !s.process.isListed(p) {
		return nil, fmt.Errorf("pod %s in namespace %s not found", r.PodName, r.PodNamespace)
	}
	return &podresources.GetPodResourcesResponse{PodResources: s.process.podResourcesOf(p)}, nil
}

// podResourcesOf names a pod's sidecars and then its containers. Its other init containers are left
// out, whatever they hold. mu is held.
func (kp *kubeletProcess) podResourcesOf(p *pod) *podresources.PodResources {
	d := &podresources.PodResources{Name: p.Name, Namespace: p.Namespace, CpuIds: shuffledCopy(p.ExclusiveCPUs), Memory: marshalMemory(p.Memory)}
	for _, c := range p.orderedContainers() {
		if c.init && !c.Sidecar {
			continue
		}
		described := &podresources.ContainerResources{Name: c.Name, CpuIds: shuffledCopy(c.ExclusiveCPUs), Memory: marshalMemory(c.Memory)}
		if p.claimsPrepared {
			described.DynamicResources = p.claimResources(c.ContainerSpec)
		}
		for resource, h := range kp.allocations[p.uid][c.Name] {
			described.Devices = append(described.Devices, allocatedEntries(resource, h)...)
		}
		shuffleEntries(described.Devices)
		d.Containers = append(d.Containers, described)
	}
	return d
}

// allocatedEntries has an entry for each device and each of its NUMA nodes, as they were when it was
// allocated, healthy or not.
func allocatedEntries(resource string, h containerAllocation) []*podresources.ContainerDevices {
	all, nodes := []*podresources.ContainerDevices{}, h.numaNodes()
	for _, id := range h.deviceIDs() {
		if len(nodes[id]) == 0 {
			all = append(all, newEntry(resource, id))
		}
		for _, node := range nodes[id] {
			all = append(all, newEntry(resource, id, node))
		}
	}
	return all
}

func entriesByNode(resource string, device *pluginapi.Device) []*podresources.ContainerDevices {
	all := []*podresources.ContainerDevices{}
	for _, node := range device.GetTopology().GetNodes() {
		all = append(all, newEntry(resource, device.ID, node.ID))
	}
	return all
}

func newEntry(resource, id string, nodes ...int64) *podresources.ContainerDevices {
	e := &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
	for _, node := range nodes {
		e.Topology = &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: node}}}
	}
	return e
}

func shuffleEntries(list []*podresources.ContainerDevices) {
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

// paddingPods is a pod of that many bytes, or none.
func paddingPods(bytes int) []*podresources.PodResources {
	if bytes == 0 {
		return nil
	}
	c := &podresources.ContainerResources{Name: "padding"}
	const size = 64 // of an entry on the wire
	for i := range bytes / size {
		c.Devices = append(c.Devices, newEntry("example.com/padding", fmt.Sprintf("padding-%031d", i)))
	}
	return []*podresources.PodResources{{Name: "padding", Namespace: "default", Containers: []*podresources.ContainerResources{c}}}
}
