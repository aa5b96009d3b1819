package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// StaticPodStatus is the kubelet's status of a pod.
type StaticPodStatus struct {
	Namespace, Name, UID   string
	Phase, Reason, Message string
	InitContainers         []StaticContainerStatus
	Containers             []StaticContainerStatus
}

// StaticContainerStatus is the kubelet's status of a container.
type StaticContainerStatus struct {
	Name string
	// ID is the runtime's container id without scheme; empty before creation.
	ID string
	// State is waiting, running or terminated, with a one-word Reason. Message
	// is only set for waiting containers.
	State, Reason, Message string
	Restarts               int
	// Devices is the kubelet's allocatedResourcesStatus.
	Devices []DeviceHealth
}

// DeviceHealth is the kubelet's health of a container's device.
type DeviceHealth struct{ Resource, ID, Health string }

// hasStarted reports whether all containers have started once, or the pod has
// ended.
func (s StaticPodStatus) hasStarted(p StaticPod) bool {
	if s.Phase == "Failed" || s.Phase == "Succeeded" {
		return true
	}
	return len(s.Containers) == len(p.Containers) &&
		!slices.ContainsFunc(s.Containers, func(c StaticContainerStatus) bool {
			return c.State == "waiting" && c.Restarts == 0
		})
}

// Container returns the status of a container or init container.
func (s StaticPodStatus) Container(name string) (StaticContainerStatus, error) {
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		if c.Name == name {
			return c, nil
		}
	}
	return StaticContainerStatus{}, fmt.Errorf("pod %s has no container %s", s.Name, name)
}

// Pod returns the kubelet's status of a pod.
func (n *RealNode) Pod(ctx context.Context, p StaticPod) (StaticPodStatus, error) {
	all, err := n.Pods(ctx)
	if err != nil {
		return StaticPodStatus{}, err
	}
	for _, s := range all {
		if s.Namespace == p.namespace() && s.Name == p.FullName() {
			return s, nil
		}
	}
	return StaticPodStatus{}, fmt.Errorf("the kubelet has no pod %s/%s", p.namespace(), p.FullName())
}

// Pods returns the status of all pods from the kubelet's read-only port.
func (n *RealNode) Pods(ctx context.Context) ([]StaticPodStatus, error) {
	var list v1.PodList
	if err := GetJSON(ctx, n.URL(podsPort)+"/pods", &list); err != nil {
		return nil, err
	}
	all := []StaticPodStatus{}
	for _, item := range list.Items {
		all = append(all, podStatus(item))
	}
	return all, nil
}

func podStatus(p v1.Pod) StaticPodStatus {
	s := StaticPodStatus{
		Namespace: p.Namespace, Name: p.Name, UID: string(p.UID),
		Phase: string(p.Status.Phase), Reason: p.Status.Reason, Message: p.Status.Message,
	}
	for _, c := range p.Status.InitContainerStatuses {
		s.InitContainers = append(s.InitContainers, containerStatus(c))
	}
	for _, c := range p.Status.ContainerStatuses {
		s.Containers = append(s.Containers, containerStatus(c))
	}
	return s
}

func containerStatus(c v1.ContainerStatus) StaticContainerStatus {
	_, id, _ := strings.Cut(c.ContainerID, "://")
	s := StaticContainerStatus{Name: c.Name, ID: id, Restarts: int(c.RestartCount), State: "waiting"}
	switch state := c.State; {
	case state.Running != nil:
		s.State = "running"
	case state.Terminated != nil:
		s.State, s.Reason = "terminated", state.Terminated.Reason
	case state.Waiting != nil:
		s.Reason, s.Message = state.Waiting.Reason, state.Waiting.Message
	}
	for _, resource := range c.AllocatedResourcesStatus {
		for _, device := range resource.Resources {
			s.Devices = append(s.Devices, DeviceHealth{
				string(resource.Name), string(device.ResourceID),
				string(device.Health),
			})
		}
	}
	return s
}
