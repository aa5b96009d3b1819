package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"golang.org/x/sync/errgroup"
)

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
