package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"golang.org/x/sync/errgroup"
)

// gpuResource is what the workload's pods ask for.
const gpuResource = "nvidia.com/gpu"

// kubeletUptime is the age that the node's kubelet poses as having: holders of a
// kubelet that has just started are not to be trusted, and nobody should have to
// wait for that.
const kubeletUptime = time.Hour

// VirtualNode is a whole node in this process: a machine, a kubelet on real sockets in a
// folder of its own, and a workload.
type VirtualNode struct {
	Machine      *Machine
	Kubelet      *kubelet.Kubelet
	ProcessTable *ProcessTable
	// Script is what happens on the node; nil: what Workload makes up. Set before Run.
	Script *Script
	// deviceByPod are devices that Script named by who holds them. It is written by Play.
	deviceByPod map[string]device.ID
	log         *slog.Logger
}

// NewVirtualNode makes a node. Close removes its folder.
func NewVirtualNode(m *Machine, log *slog.Logger) (*VirtualNode, error) {
	dir, err := os.MkdirTemp("", "podgauge-node-")
	if err != nil {
		return nil, fmt.Errorf("make the simulated node's folder: %w", err)
	}
	k := kubelet.New(kubelet.Options{Dir: dir, RunningSince: time.Now().Add(-kubeletUptime)})
	return &VirtualNode{Machine: m, Kubelet: k, ProcessTable: NewProcessTable(m), deviceByPod: map[string]device.ID{}, log: log}, nil
}

// Dir is the kubelet's folder.
func (n *VirtualNode) Dir() string { return n.Kubelet.Dir() }

// DevicePluginDir is where its kubelet takes registrations.
func (n *VirtualNode) DevicePluginDir() string { return filepath.Dir(n.Kubelet.RegistrationSocket()) }

// Close removes the node's folder. Run must have returned.
func (n *VirtualNode) Close() {
	os.RemoveAll(n.Dir()) // what is left lies in the system's temporary folder
}

// Run is the node's life, until ctx is done.
func (n *VirtualNode) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.Kubelet.Run(ctx) })
	g.Go(func() error {
		if n.Script != nil {
			return n.RunScript(ctx, n.Script)
		}
		return n.RunWorkload(ctx)
	})
	g.Go(func() error { return n.RunProcesses(ctx) })
	return g.Wait()
}

// The workload's pace.
const (
	initialPods       = 4
	podInterval       = 4 * time.Second  // a pod comes, or one goes
	failureInterval   = 45 * time.Second // a GPU fails
	failureDuration   = 20 * time.Second
	firstFailureDelay = 15 * time.Second
	targetPods        = 5 // the node swings around this many
	maxGPUsPerPod     = 2 // GPUs of a pod
	podGracePeriod    = time.Second
)

// RunWorkload makes pods come and go, and one GPU after another fail and recover, until ctx
// is done.
func (n *VirtualNode) RunWorkload(ctx context.Context) error {
	if err := n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable > 0 }); err != nil {
		return nil //nolint:nilerr // ctx is done
	}
	w := &workload{VirtualNode: n}
	for range initialPods {
		w.start(ctx)
	}
	pods := time.NewTicker(podInterval)
	defer pods.Stop()
	fail := time.NewTimer(firstFailureDelay)
	defer fail.Stop()
	var failed device.ID
	fails := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pods.C:
			if len(w.pods) > 0 && rand.IntN(2*targetPods) < len(w.pods) {
				w.stop()
			} else {
				w.start(ctx)
			}
		case <-fail.C:
			if failed == "" {
				ids := n.Machine.AllocatableIDs()
				failed = ids[fails%len(ids)] // each in turn: one that flaps is tried for longer and longer
				fails++
				n.log.Info("simulated: a GPU fails", "device", failed)
				n.Machine.Fail(failed, "xid 95") // a reset clears it
				fail.Reset(failureDuration)
				continue
			}
			n.log.Info("simulated: it was reset", "device", failed)
			n.Machine.ResetGPU(failed)
			failed = ""
			fail.Reset(failureInterval)
		}
	}
}

// workload is what runs on the node. It belongs to Workload's goroutine.
type workload struct {
	*VirtualNode
	pods    []kubelet.PodSpec
	created int
}

// workloadNames are what people run on such nodes.
var workloadNames = []string{"train-llama", "serve-embeddings", "notebook", "finetune", "batch-inference"}

func (w *workload) start(ctx context.Context) {
	name := workloadNames[w.created%len(workloadNames)]
	w.created++
	containers := []kubelet.ContainerSpec{{Name: "main", Limits: map[string]int{gpuResource: 1 + w.created%maxGPUsPerPod}}}
	if w.created%3 == 0 {
		containers = []kubelet.ContainerSpec{
			{Name: "trainer", Limits: map[string]int{gpuResource: 1}},
			{Name: "evaluator", Limits: map[string]int{gpuResource: 1}},
			{Name: "logger"},
		}
	}
	p := kubelet.PodSpec{
		Namespace: "team-" + string(rune('a'+w.created%3)), Name: fmt.Sprintf("%s-%d", name, w.created),
		Labels: map[string]string{"app.kubernetes.io/name": name}, Containers: containers, GracePeriod: podGracePeriod,
	}
	if err := w.Kubelet.RunPod(ctx, p); err != nil {
		w.log.Info("simulated: a pod does not run", "pod", p.Name, "err", err)
		w.Kubelet.DeletePod(p) //nolint:errcheck // it has left the node already
		return
	}
	w.pods = append(w.pods, p)
}

func (w *workload) stop() {
	i := rand.IntN(len(w.pods))
	w.Kubelet.DeletePod(w.pods[i]) //nolint:errcheck // it has left the node already
	w.pods = slices.Delete(w.pods, i, i+1)
}

// RunProcesses has each container run a process on each device that it holds, until ctx is done.
func (n *VirtualNode) RunProcesses(ctx context.Context) error {
	for {
		var seen []kubelet.PodStatus
		err := n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool {
			seen = s.Pods
			return true
		})
		if err != nil {
			return nil //nolint:nilerr // ctx is done
		}
		n.ProcessTable.sync(seen)
		if err := n.Kubelet.Wait(ctx, func(s kubelet.KubeletState) bool { return !slices.EqualFunc(s.Pods, seen, sameDeviceUse) }); err != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

// sameDeviceUse tells whether two states of a pod have the same devices in use.
func sameDeviceUse(a, b kubelet.PodStatus) bool {
	return a.UID == b.UID && slices.EqualFunc(a.Containers, b.Containers, func(a, b kubelet.PodContainerStatus) bool {
		return a.Running == b.Running && len(a.Devices) == len(b.Devices)
	})
}
