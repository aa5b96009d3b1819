package node

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// OwnerKey is a container that holds a device, as the kubelet's PodResources names it.
type OwnerKey struct{ Namespace, Pod, Container string }

// ListPodResources asks the kubelet which pods hold what.
func (n *RealNode) ListPodResources(ctx context.Context) ([]*podresources.PodResources, error) {
	return callPodResources(ctx, n, func(ctx context.Context, c podresources.PodResourcesListerClient) ([]*podresources.PodResources, error) {
		answer, err := c.List(ctx, &podresources.ListPodResourcesRequest{})
		return answer.GetPodResources(), err
	})
}

// GetPodResources asks the kubelet what one pod holds.
func (n *RealNode) GetPodResources(ctx context.Context, p StaticPod) (*podresources.PodResources, error) {
	return callPodResources(ctx, n, func(ctx context.Context, c podresources.PodResourcesListerClient) (*podresources.PodResources, error) {
		answer, err := c.Get(ctx, &podresources.GetPodResourcesRequest{PodName: p.FullName(), PodNamespace: p.namespace()})
		return answer.GetPodResources(), err
	})
}

// Allocatable asks the kubelet for the healthy devices of a resource and returns their ids, sorted.
func (n *RealNode) Allocatable(ctx context.Context, resource string) ([]string, error) {
	all, err := n.AllAllocatable(ctx)
	if all[resource] == nil {
		return []string{}, err
	}
	return all[resource], err
}

// AllAllocatable asks the kubelet for the healthy devices of all resources and returns their ids by resource, sorted. A resource without a
// healthy device is not there.
func (n *RealNode) AllAllocatable(ctx context.Context) (map[string][]string, error) {
	answer, err := n.AllocatableResources(ctx)
	all := map[string][]string{}
	for _, devices := range answer.GetDevices() {
		all[devices.ResourceName] = append(all[devices.ResourceName], devices.DeviceIds...)
	}
	for resource, ids := range all {
		slices.Sort(ids) // the kubelet names a device once for each of its NUMA nodes, in any order
		all[resource] = slices.Compact(ids)
	}
	return all, err
}

// AllocatableResources asks the kubelet for all that it would give away.
func (n *RealNode) AllocatableResources(ctx context.Context) (*podresources.AllocatableResourcesResponse, error) {
	return callPodResources(ctx, n, func(ctx context.Context, c podresources.PodResourcesListerClient) (*podresources.AllocatableResourcesResponse, error) {
		return c.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	})
}

// Owners is List the other way round: who holds each device of a resource. An id's several entries, one for each NUMA node, are one.
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

// callPodResources makes one call on a connection of its own: one that is kept would wait a second before it tries a restarted kubelet again.
func callPodResources[A any](ctx context.Context, n *RealNode, call func(context.Context, podresources.PodResourcesListerClient) (A, error)) (answer A, err error) {
	conn, err := grpc.NewClient("unix:"+n.PodResourcesSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	if answer, err = call(ctx, podresources.NewPodResourcesListerClient(conn)); err != nil {
		return answer, fmt.Errorf("ask the kubelet's PodResources: %w", err)
	}
	return answer, nil
}
