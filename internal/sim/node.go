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

// resource is what the workload's pods ask for.
const resource = "nvidia.com/gpu"

// kubeletUpFor is the age that the node's kubelet poses as having: holders of a
// kubelet that has just started are not to be trusted, and nobody should have to
// wait for that.
const kubeletUpFor = time.Hour

// Node is a whole node in this process: a machine, a kubelet on real sockets in a
// folder of its own, and a workload.
type Node struct {
	Machine *Machine
	Kubelet *kubelet.Kubelet
	Crowd   *Crowd
	// Script is what happens on the node; nil: what Workload makes up. Set before Run.
	Script *Script
	// held are devices that Script named by who holds them. It is written by Play.
	held map[string]device.ID
	log  *slog.Logger
}

// NewNode makes a node. Close removes its folder.
func NewNode(m *Machine, log *slog.Logger) (*Node, error) {
	dir, err := os.MkdirTemp("", "podgauge-node-")
	if err != nil {
		return nil, fmt.Errorf("make the simulated node's folder: %w", err)
	}
	k := kubelet.New(kubelet.Options{Dir: dir, Since: time.Now().Add(-kubeletUpFor)})
	return &Node{Machine: m, Kubelet: k, Crowd: NewCrowd(m), held: map[string]device.ID{}, log: log}, nil
}

// Dir is the kubelet's folder.
func (n *Node) Dir() string { return n.Kubelet.Dir() }

// DevicePluginDir is where its kubelet takes registrations.
func (n *Node) DevicePluginDir() string { return filepath.Dir(n.Kubelet.RegistrationSocket()) }

// Close removes the node's folder. Run must have returned.
func (n *Node) Close() {
	os.RemoveAll(n.Dir()) // what is left lies in the system's temporary folder
}

// Run is the node's life, until ctx is done.
func (n *Node) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.Kubelet.Run(ctx) })
	g.Go(func() error {
		if n.Script != nil {
			return n.Play(ctx, n.Script)
		}
		return n.Workload(ctx)
	})
	g.Go(func() error { return n.Load(ctx) })
	return g.Wait()
}

// The workload's pace.
const (
	firstPods   = 4
	podEvery    = 4 * time.Second  // a pod comes, or one goes
	failEvery   = 45 * time.Second // a GPU fails
	failsFor    = 20 * time.Second
	failsFirst  = 15 * time.Second
	podsWanted  = 5 // the node swings around this many
	mostPerPod  = 2 // GPUs of a pod
	graceOfPods = time.Second
)

// Workload makes pods come and go, and one GPU after another fail and recover, until ctx
// is done.
func (n *Node) Workload(ctx context.Context) error {
	if err := n.Kubelet.Wait(ctx, func(s kubelet.State) bool { return s.Resources[resource].Allocatable > 0 }); err != nil {
		return nil //nolint:nilerr // ctx is done
	}
	w := &workload{Node: n}
	for range firstPods {
		w.start(ctx)
	}
	pods := time.NewTicker(podEvery)
	defer pods.Stop()
	fail := time.NewTimer(failsFirst)
	defer fail.Stop()
	var failed device.ID
	fails := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pods.C:
			if len(w.pods) > 0 && rand.IntN(2*podsWanted) < len(w.pods) {
				w.stop()
			} else {
				w.start(ctx)
			}
		case <-fail.C:
			if failed == "" {
				ids := n.Machine.IDs()
				failed = ids[fails%len(ids)] // each in turn: one that flaps is tried for longer and longer
				fails++
				n.log.Info("simulated: a GPU fails", "device", failed)
				n.Machine.Fail(failed, "xid 95") // a reset clears it
				fail.Reset(failsFor)
				continue
			}
			n.log.Info("simulated: it was reset", "device", failed)
			n.Machine.Recover(failed)
			failed = ""
			fail.Reset(failEvery)
		}
	}
}

// workload is what runs on the node. It belongs to Workload's goroutine.
type workload struct {
	*Node
	pods []kubelet.Pod
	made int
}

// names are what people run on such nodes.
var names = []string{"train-llama", "serve-embeddings", "notebook", "finetune", "batch-inference"}

func (w *workload) start(ctx context.Context) {
	name := names[w.made%len(names)]
	w.made++
	containers := []kubelet.Container{{Name: "main", Limits: map[string]int{resource: 1 + w.made%mostPerPod}}}
	if w.made%3 == 0 {
		containers = []kubelet.Container{
			{Name: "trainer", Limits: map[string]int{resource: 1}},
			{Name: "evaluator", Limits: map[string]int{resource: 1}},
			{Name: "logger"},
		}
	}
	p := kubelet.Pod{
		Namespace: "team-" + string(rune('a'+w.made%3)), Name: fmt.Sprintf("%s-%d", name, w.made),
		Labels: map[string]string{"app.kubernetes.io/name": name}, Containers: containers, Grace: graceOfPods,
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

// Load has each container run a process on each device that it holds, until ctx is done.
func (n *Node) Load(ctx context.Context) error {
	for {
		var seen []kubelet.PodStatus
		err := n.Kubelet.Wait(ctx, func(s kubelet.State) bool {
			seen = s.Pods
			return true
		})
		if err != nil {
			return nil //nolint:nilerr // ctx is done
		}
		n.Crowd.follow(seen)
		if err := n.Kubelet.Wait(ctx, func(s kubelet.State) bool { return !slices.EqualFunc(s.Pods, seen, samePod) }); err != nil {
			return nil //nolint:nilerr // ctx is done
		}
	}
}

// samePod tells whether two states of a pod have the same devices in use.
func samePod(a, b kubelet.PodStatus) bool {
	return a.UID == b.UID && slices.EqualFunc(a.Containers, b.Containers, func(a, b kubelet.ContainerStatus) bool {
		return a.Running == b.Running && len(a.Devices) == len(b.Devices)
	})
}
