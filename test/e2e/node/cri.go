package node

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerAnnotations returns the kubelet's annotations of a container, from containerd.
func (n *RealNode) ContainerAnnotations(ctx context.Context, p StaticPod, container string) (map[string]string, error) {
	pod, err := n.Pod(ctx, p)
	if err != nil {
		return nil, err
	}
	c, err := pod.Container(container)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix:"+n.runtimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := cri.NewRuntimeServiceClient(conn).ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		return nil, fmt.Errorf("query containerd: %w", err)
	}
	return answer.GetStatus().GetAnnotations(), nil
}
