package e2e

import (
	"context"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/test/e2e/node"
)

// TestConformance runs the cases of test/kubelet/conformance with a real kubelet. If a case fails, internal/sim/kubelet is wrong.
// PODGAUGE_CASE selects cases as -run does.
func TestConformance(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	n := node.ForTest(ctx, t, node.Options{})
	startKubelet(ctx, t, n)
	server := rpc.NewServer()
	if err := server.RegisterName("Kubelet", &servedKubelet{ctx, n}); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", n.Path("kubelet.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { // ends with go test, or with the listener
		if conn, err := listener.Accept(); err == nil {
			server.ServeConn(conn)
		}
	}()
	cases := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run=TestRealKubelet/"+os.Getenv("PODGAUGE_CASE"), "./test/kubelet/conformance")
	cases.Dir, cases.Env = "../..", append(os.Environ(), "PODGAUGE_KUBELET="+listener.Addr().String())
	out, err := cases.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRealKubelet (") {
		t.Error(err)
	}
}

// servedKubelet exports the node to the cases, with methods for net/rpc.
type servedKubelet struct {
	ctx context.Context
	n   *node.RealNode
}

// KubeletRequest is realKubeletRequest in test/kubelet/conformance. The package net/rpc requires an exported type.
type KubeletRequest struct {
	Pod       kubelet.PodSpec
	Container string
	Signal    syscall.Signal
	Deadline  time.Time // zero: none
}

func (k *servedKubelet) until(deadline time.Time) (context.Context, context.CancelFunc) {
	if deadline.IsZero() {
		return k.ctx, func() {}
	}
	return context.WithDeadline(k.ctx, deadline)
}

func (k *servedKubelet) Dir(_ KubeletRequest, dir *string) error {
	*dir = k.n.KubeletDir()
	return nil
}

// Version returns the newest simulated version for newer kubelets.
func (k *servedKubelet) Version(_ KubeletRequest, version *kubelet.Version) error {
	if *version = kubelet.V137; strings.HasPrefix(k.n.KubeletVersion, "v1.36.") {
		*version = kubelet.V136
	}
	return nil
}

func (k *servedKubelet) RunPod(r KubeletRequest, status *kubelet.PodStatus) error {
	ctx, cancel := k.until(r.Deadline)
	defer cancel()
	real, err := k.n.RunPod(ctx, toStaticPod(r.Pod))
	*status = toSimStatus(real)
	return err
}

func (k *servedKubelet) Pod(r KubeletRequest, status *kubelet.PodStatus) error {
	real, err := k.n.Pod(k.ctx, toStaticPod(r.Pod))
	*status = toSimStatus(real)
	return err
}

// EndPod sends SIGTERM: testcmd exits 0, once it handles signals.
func (k *servedKubelet) EndPod(r KubeletRequest, _ *bool) error {
	ctx, cancel := k.until(r.Deadline)
	defer cancel()
	for _, c := range r.Pod.Containers {
		if err := node.Until(ctx, "the container handles signals", func(ctx context.Context) error {
			pid, err := k.n.ContainerPID(ctx, toStaticPod(r.Pod), c.Name)
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
		if err := k.kill(r.Pod, c.Name, syscall.SIGTERM); err != nil {
			return err
		}
	}
	return nil
}

func (k *servedKubelet) kill(p kubelet.PodSpec, container string, signal syscall.Signal) error {
	pid, err := k.n.ContainerPID(k.ctx, toStaticPod(p), container)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, signal); err != nil {
		return fmt.Errorf("kill container %s: %w", container, err)
	}
	return nil
}

func (k *servedKubelet) RemovePod(r KubeletRequest, _ *bool) error {
	return k.n.DeletePod(toStaticPod(r.Pod))
}

func (k *servedKubelet) RestartContainer(r KubeletRequest, _ *bool) error {
	ctx, cancel := k.until(r.Deadline)
	defer cancel()
	before, err := k.container(ctx, r)
	if err != nil {
		return err
	}
	if err := k.kill(r.Pod, r.Container, syscall.SIGKILL); err != nil {
		return err
	}
	return node.Until(ctx, "the container runs again", func(ctx context.Context) error {
		now, err := k.container(ctx, r)
		if err != nil || now.State != "running" || now.Restarts == before.Restarts {
			return fmt.Errorf("container status: got %+v, %w", now, err)
		}
		return nil
	})
}

func (k *servedKubelet) container(ctx context.Context, r KubeletRequest) (node.StaticContainerStatus, error) {
	status, err := k.n.Pod(ctx, toStaticPod(r.Pod))
	if err != nil {
		return node.StaticContainerStatus{}, err
	}
	return status.Container(r.Container)
}

func (k *servedKubelet) Stop(r KubeletRequest, _ *bool) error {
	return k.n.StopKubelet(k.ctx, r.Signal)
}

func (k *servedKubelet) Start(r KubeletRequest, _ *bool) error {
	ctx, cancel := k.until(r.Deadline)
	defer cancel()
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
