package node

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// OwnerKey identifies the container of an allocation, as in the pod-resources
// API.
type OwnerKey struct{ Namespace, Pod, Container string }

// ListPodResources returns the kubelet's allocations of all pods.
func (n *RealNode) ListPodResources(ctx context.Context) ([]*podresources.PodResources, error) {
	conn, err := n.dialPodResources()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := podresources.NewPodResourcesListerClient(conn)
	response, err := client.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	return response.GetPodResources(), nil
}

// dialPodResources returns a new connection, because a kept connection retries
// only a second after a kubelet restart.
func (n *RealNode) dialPodResources() (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+n.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// Allocatable returns the ids of the resource's healthy devices from the
// kubelet, sorted.
func (n *RealNode) Allocatable(ctx context.Context, resource string) ([]string, error) {
	all, err := n.AllAllocatable(ctx)
	if all[resource] == nil {
		return []string{}, err
	}
	return all[resource], err
}

// AllAllocatable returns the sorted ids of healthy devices by resource, without
// resources that have no healthy device.
func (n *RealNode) AllAllocatable(ctx context.Context) (map[string][]string, error) {
	conn, err := n.dialPodResources()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := podresources.NewPodResourcesListerClient(conn)
	response, err := client.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("get allocatable resources: %w", err)
	}
	all := map[string][]string{}
	for _, devices := range response.GetDevices() {
		all[devices.ResourceName] = append(all[devices.ResourceName], devices.DeviceIds...)
	}
	for resource, ids := range all {
		slices.Sort(ids) // the kubelet lists a device once per NUMA node, in any order
		all[resource] = slices.Compact(ids)
	}
	return all, nil
}

// Owners returns the container of each allocated device of a resource, from
// List. Entries of an id for several NUMA nodes are merged.
func (n *RealNode) Owners(ctx context.Context, resource string) (map[string]OwnerKey, error) {
	pods, err := n.ListPodResources(ctx)
	if err != nil {
		return nil, err
	}
	owners := map[string]OwnerKey{}
	for _, pod := range pods {
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				for _, id := range devices.DeviceIds {
					if devices.ResourceName == resource {
						owners[id] = OwnerKey{pod.Namespace, pod.Name, container.Name}
					}
				}
			}
		}
	}
	return owners, nil
}
