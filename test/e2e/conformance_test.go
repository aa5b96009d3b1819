package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/e2e/node"
	"github.com/podgauge/podgauge/test/kubelet/conformance"
)

// TestConformance runs the cases of test/kubelet/conformance with a real
// kubelet. If a case fails, internal/sim/kubelet is wrong.
func TestConformance(t *testing.T) {
	conformance.Run(t, realKubelet{startNode(t, node.Options{})})
}

// realKubelet implements conformance.Kubelet.
type realKubelet struct{ n *node.RealNode }

func (k realKubelet) Dir() string { return k.n.KubeletDir() }

// Version returns the newest simulated version for newer kubelets.
func (k realKubelet) Version() kubelet.Version {
	if strings.HasPrefix(k.n.KubeletVersion, "v1.36.") {
		return kubelet.V136
	}
	return kubelet.V137
}

func (k realKubelet) RunPod(ctx context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	status, err := k.n.RunPod(ctx, toStaticPod(p))
	return toSimStatus(status), err
}

func (k realKubelet) Pod(ctx context.Context, p kubelet.PodSpec) (kubelet.PodStatus, error) {
	status, err := k.n.Pod(ctx, toStaticPod(p))
	return toSimStatus(status), err
}

// EndPod sends SIGTERM: testcmd exits 0, once it handles signals.
func (k realKubelet) EndPod(ctx context.Context, p kubelet.PodSpec) error {
	for _, c := range p.Containers {
		if err := node.Until(ctx, "the container handles signals", func(ctx context.Context) error {
			pid, err := k.n.ContainerPID(ctx, toStaticPod(p), c.Name)
			if err != nil {
				return err
			}
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if err == nil && string(name) != "box-ready\n" {
				err = fmt.Errorf("process name: got %q, want box-ready", name)
			}
			return err
		}); err != nil {
			return err
		}
		if err := k.kill(ctx, p, c.Name, syscall.SIGTERM); err != nil {
			return err
		}
	}
	return nil
}

func (k realKubelet) kill(ctx context.Context, p kubelet.PodSpec, container string, signal syscall.Signal) error {
	pid, err := k.n.ContainerPID(ctx, toStaticPod(p), container)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("kill container %s: %w", container, err)
	}
	return nil
}

func (k realKubelet) RemovePod(_ context.Context, p kubelet.PodSpec) error {
	return k.n.DeletePod(toStaticPod(p))
}

func (k realKubelet) RestartContainer(ctx context.Context, p kubelet.PodSpec, container string) error {
	before, err := k.container(ctx, p, container)
	if err != nil {
		return err
	}
	if err := k.kill(ctx, p, container, syscall.SIGKILL); err != nil {
		return err
	}
	return node.Until(ctx, "the container runs again", func(ctx context.Context) error {
		now, err := k.container(ctx, p, container)
		if err != nil || now.State != "running" || now.Restarts == before.Restarts {
			return fmt.Errorf("container status: got %+v, %w", now, err)
		}
		return nil
	})
}

func (k realKubelet) container(ctx context.Context, p kubelet.PodSpec, name string) (node.StaticContainerStatus, error) {
	status, err := k.n.Pod(ctx, toStaticPod(p))
	if err != nil {
		return node.StaticContainerStatus{}, err
	}
	return status.Container(name)
}

func (k realKubelet) Restart(ctx context.Context, signal syscall.Signal, whileDown func()) error {
	if err := k.n.StopKubelet(ctx, signal); err != nil {
		return err
	}
	whileDown()
	_, err := k.n.StartKubelet(ctx)
	return err
}

// toStaticPod converts a simulated pod into a static pod of the node.
func toStaticPod(p kubelet.PodSpec) node.StaticPod {
	pod := node.StaticPod{Name: p.Name, Namespace: p.Namespace, Grace: p.GracePeriod, Labels: p.Labels}
	if p.RunOnce {
		pod.RestartPolicy = "Never"
	}
	for _, c := range p.Containers {
		pod.Containers = append(pod.Containers, node.StaticContainer{Name: c.Name, Limits: c.Limits, Args: containerArgs(p)})
	}
	for _, c := range p.InitContainers {
		container := node.StaticContainer{Name: c.Name, Limits: c.Limits, Args: []string{"exit", "0"}}
		if c.Sidecar {
			container.RestartPolicy, container.Args = "Always", containerArgs(p)
		}
		pod.InitContainers = append(pod.InitContainers, container)
	}
	return pod
}

// containerArgs returns the arguments of testcmd: containers with a grace period use all of it.
func containerArgs(p kubelet.PodSpec) []string {
	if p.GracePeriod > 0 {
		return []string{"stubborn"}
	}
	return []string{"pause"}
}

func toSimStatus(s node.StaticPodStatus) kubelet.PodStatus {
	status := kubelet.PodStatus{Namespace: s.Namespace, Name: s.Name, UID: s.UID, Phase: s.Phase, Reason: s.Reason, Message: s.Message}
	for _, c := range s.Containers {
		container := kubelet.PodContainerStatus{Name: c.Name, Running: c.State == "running", Starts: c.Restarts}
		if c.State == "waiting" {
			container.WaitingReason = c.Reason
		} else {
			container.Starts++
		}
		for _, device := range c.Devices {
			container.Devices = append(container.Devices, kubelet.AllocatedDeviceHealth(device))
		}
		slices.SortFunc(container.Devices, func(a, b kubelet.AllocatedDeviceHealth) int { return strings.Compare(a.ID, b.ID) })
		status.Containers = append(status.Containers, container)
	}
	return status
}
