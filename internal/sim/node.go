package sim

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// gpuResource is the resource of the workload's pods.
const gpuResource = "nvidia.com/gpu"

// kubeletUptime is the simulated age of the kubelet: allocations are incomplete
// for a minute after a start.
const kubeletUptime = time.Hour

// VirtualNode is a node in this process: a machine, a kubelet on real sockets
// in a temporary folder, and a workload.
type VirtualNode struct {
	Machine      *Machine
	Kubelet      *kubelet.Kubelet
	ProcessTable *ProcessTable

	script      *Script              // nil: random workload
	deviceByPod map[string]device.ID // named by the script; only for runScript
	log         *slog.Logger
}

// NewVirtualNode returns a node with a script, or with a random workload if
// script is nil. Close removes the node's folder.
func NewVirtualNode(m *Machine, script *Script, log *slog.Logger) (*VirtualNode, error) {
	dir, err := os.MkdirTemp("", "podgauge-node-")
	if err != nil {
		return nil, fmt.Errorf("create the simulated node's folder: %w", err)
	}
	return &VirtualNode{
		Machine: m, Kubelet: kubelet.New(kubelet.Options{Dir: dir, RunningSince: time.Now().Add(-kubeletUptime)}),
		ProcessTable: NewProcessTable(m),
		script:       script, deviceByPod: map[string]device.ID{}, log: log,
	}, nil
}

// Dir returns the kubelet's folder.
func (n *VirtualNode) Dir() string { return n.Kubelet.Dir() }

// DevicePluginDir returns the folder of the registration socket.
func (n *VirtualNode) DevicePluginDir() string { return filepath.Dir(n.Kubelet.RegistrationSocket()) }

// Close removes the node's folder. Run must have returned.
func (n *VirtualNode) Close() {
	os.RemoveAll(n.Dir()) // in the temporary folder
}

// Run runs the node until ctx is done.
func (n *VirtualNode) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.Kubelet.Run(ctx) })
	g.Go(func() error {
		if err := n.Kubelet.Wait(ctx,
			func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable > 0 }); err != nil {
			return nil //nolint:nilerr // ctx is done
		}
		if n.script != nil {
			return n.runScript(ctx)
		}
		(&workload{VirtualNode: n}).run(ctx)
		return nil
	})
	g.Go(func() error { n.runProcesses(ctx); return nil })
	return g.Wait()
}

// runScript runs the actions of the script until ctx is done.
func (n *VirtualNode) runScript(ctx context.Context) error {
	start := time.Now()
	for _, step := range n.script.Steps {
		if retry.Sleep(ctx, time.Until(start.Add(step.At))) != nil {
			return nil
		}
		n.log.Info("simulated: "+step.Action, "args", strings.Join(step.Args, " "))
		if err := scriptActions[step.Action].run(ctx, n, step.Args); err != nil && ctx.Err() == nil {
			return fmt.Errorf("run the script: %s: %w", step, err)
		}
	}
	<-ctx.Done()
	return nil
}

// runProcesses keeps the process table in step with the pods, until ctx is
// done.
func (n *VirtualNode) runProcesses(ctx context.Context) {
	var synced []kubelet.PodStatus
	for first := true; ; first = false {
		var pods []kubelet.PodStatus
		err := n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool {
			pods = s.Pods
			return first || !slices.EqualFunc(pods, synced, sameDeviceUse)
		})
		if err != nil { // ctx is done
			return
		}
		n.ProcessTable.sync(pods)
		synced = pods
	}
}

// sameDeviceUse reports whether two states of a pod use the same devices.
func sameDeviceUse(a, b kubelet.PodStatus) bool {
	return a.UID == b.UID && slices.EqualFunc(a.Containers, b.Containers, func(a, b kubelet.PodContainerStatus) bool {
		return a.Running == b.Running && len(a.Devices) == len(b.Devices)
	})
}
