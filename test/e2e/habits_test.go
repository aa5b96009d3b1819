package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/habits"

	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestHabits plays the table that internal/sim/kubelet passes against a real kubelet: where the two differ, this fails, and internal/sim/kubelet is to be mended.
func TestHabits(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	habits.Run(t, realKubelet{n})
}

// realKubelet is a habits.Kubelet.
type realKubelet struct{ n *node.Node }

func (k realKubelet) Dir() string { return k.n.KubeletDir() }

// Version is that of the table's columns: a kubelet that is newer than the last is expected to have its habits.
func (k realKubelet) Version() kubelet.Version {
	if strings.HasPrefix(k.n.KubeletVersion, "v1.36.") {
		return kubelet.V136
	}
	return kubelet.V137
}

func (k realKubelet) RunPod(ctx context.Context, p kubelet.Pod) (kubelet.PodStatus, error) {
	status, err := k.n.Run(ctx, nodePod(p))
	return simStatus(status), err
}

func (k realKubelet) Pod(ctx context.Context, p kubelet.Pod) (kubelet.PodStatus, error) {
	status, err := k.n.Pod(ctx, nodePod(p))
	return simStatus(status), err
}

// EndPod: box exits 0 when it is told to end.
func (k realKubelet) EndPod(ctx context.Context, p kubelet.Pod) error {
	for _, c := range p.Containers {
		pid, err := k.n.ContainerPID(ctx, nodePod(p), c.Name)
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return fmt.Errorf("end container %s: %w", c.Name, err)
		}
	}
	return nil
}

func (k realKubelet) RemovePod(_ context.Context, p kubelet.Pod) error { return k.n.Delete(nodePod(p)) }

func (k realKubelet) RestartContainer(ctx context.Context, p kubelet.Pod, container string) error {
	before, err := k.container(ctx, p, container)
	if err != nil {
		return err
	}
	pid, err := k.n.ContainerPID(ctx, nodePod(p), container)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill container %s: %w", container, err)
	}
	return node.Until(ctx, "the container runs again", func(ctx context.Context) error {
		now, err := k.container(ctx, p, container)
		if err != nil || now.State != "running" || now.Restarts == before.Restarts {
			return fmt.Errorf("it is %+v: %w", now, err)
		}
		return nil
	})
}

func (k realKubelet) container(ctx context.Context, p kubelet.Pod, name string) (node.ContainerStatus, error) {
	status, err := k.n.Pod(ctx, nodePod(p))
	if err != nil {
		return node.ContainerStatus{}, err
	}
	return status.Container(name)
}

func (k realKubelet) Restart(ctx context.Context, signal syscall.Signal, while func()) error {
	if err := k.n.StopKubelet(ctx, signal); err != nil {
		return err
	}
	while()
	_, err := k.n.StartKubelet(ctx)
	return err
}

// nodePod is the pod as the node runs it.
func nodePod(p kubelet.Pod) node.Pod {
	pod := node.Pod{Name: p.Name, Namespace: p.Namespace, Grace: p.Grace, Labels: p.Labels}
	if p.Once {
		pod.RestartPolicy = "Never"
	}
	for _, c := range p.Containers {
		pod.Containers = append(pod.Containers, node.Container{Name: c.Name, Limits: c.Limits, Args: argsOf(p)})
	}
	for _, c := range p.Init {
		container := node.Container{Name: c.Name, Limits: c.Limits, Args: []string{"exit", "0"}}
		if c.Sidecar {
			container.RestartPolicy, container.Args = "Always", argsOf(p)
		}
		pod.InitContainers = append(pod.InitContainers, container)
	}
	return pod
}

// argsOf is what the containers of a pod do: those with a grace make use of it.
func argsOf(p kubelet.Pod) []string {
	if p.Grace > 0 {
		return []string{"stubborn"}
	}
	return []string{"pause"}
}

func simStatus(s node.PodStatus) kubelet.PodStatus {
	status := kubelet.PodStatus{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Phase: s.Phase, Reason: s.Reason, Message: s.Message}
	for _, c := range s.Containers {
		container := kubelet.ContainerStatus{Name: c.Name, Running: c.State == "running", Starts: c.Restarts}
		if c.State == "waiting" {
			container.Waiting = c.Reason
		} else {
			container.Starts++
		}
		for _, d := range c.Devices {
			container.Devices = append(container.Devices, kubelet.DeviceHealth(d))
		}
		slices.SortFunc(container.Devices, func(a, b kubelet.DeviceHealth) int { return strings.Compare(a.ID, b.ID) })
		status.Containers = append(status.Containers, container)
	}
	return status
}
