package kubelet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Pod is a pod to run. All that identifies it to the methods of Kubelet is its namespace and
// name.
type Pod struct {
	// Namespace is "default" when empty.
	Namespace string
	Name      string
	// Labels are the API server's; the Pods API has them.
	Labels map[string]string
	// Static pods come from a manifest on the node, the others from the API server. The kubelet
	// appends its node's name to theirs.
	Static bool
	// Init are its init containers, sidecars among them; they start one after the other, before
	// Containers.
	Init       []Container
	Containers []Container
	// CPUs and Memory, in bytes by type, are what it asks for as a whole, where
	// Options.PodLevel lets it.
	CPUs   int
	Memory map[string]uint64
	// Once is restartPolicy Never: the pod has ended when its containers have. It is for real
	// kubelets: here EndPod ends any pod.
	Once bool
	// Grace is how long its containers outlive the pod's deletion.
	Grace time.Duration
}

// Container of a Pod.
type Container struct {
	Name string
	// Limits are the resources that it asks for: {"nvidia.com/gpu": 1}.
	Limits map[string]int
	// CPUs are how many it asks for as its own, and Memory what it asks to be reserved, in
	// bytes by type. A real kubelet gives them to the containers of Guaranteed pods.
	CPUs   int
	Memory map[string]uint64
	// Claims are those that it uses.
	Claims []Claim
	// Sidecar is an init container with restartPolicy Always.
	Sidecar bool
}

// Rejected is the error of a pod that was not admitted. It failed for good: nobody tries again.
type Rejected struct {
	Pod string // namespace/name
	// Reason and Message are those of the pod's status.
	Reason, Message string
}

func (r *Rejected) Error() string { return fmt.Sprintf("pod %s: %s: %s", r.Pod, r.Reason, r.Message) }

// ErrNoPod is the error where the node has no such pod.
var ErrNoPod = errors.New("no such pod")

// RunPod gives the node a pod and returns when each of its containers was started, or with a
// *Rejected. While no kubelet runs it waits for one. When ctx is done before, the pod stays
// where it has got to.
func (k *Kubelet) RunPod(ctx context.Context, p Pod) error {
	added, err := k.addPod(p)
	if err != nil {
		return err
	}
	var outcome error
	err = k.until(ctx, func() bool {
		switch {
		case added.phase == failed:
			outcome = &Rejected{Pod: added.key(), Reason: added.reason, Message: added.message}
		case added.phase == pending && slices.Contains(k.pods, added):
			return false
		case added.phase == pending:
			outcome = fmt.Errorf("run pod %s: it was deleted: %w", added.key(), ErrNoPod)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("run pod %s: %w", added.key(), err)
	}
	return outcome
}

// EndPod ends a pod's containers as if they had exited: the pod leaves List and Get, its
// devices are free, and the API server remembers it until it is deleted or its name is used
// again.
func (k *Kubelet) EndPod(p Pod) error { return k.EndPodAs(p, End{}) }

// DeletePod takes a pod away as its owner would. One of the API server's stays listed, with its
// devices, until its grace is over. A static one leaves List at once, while its containers
// still run: the same device may then be given to the next pod.
func (k *Kubelet) DeletePod(p Pod) error {
	return k.changePod(p, func(p *pod) {
		if p.Static || p.Grace == 0 || p.phase == succeeded || p.phase == failed {
			k.removePod(p)
		} else if p.ends.IsZero() {
			p.ends = time.Now().Add(p.Grace)
		}
	})
}

// RestartContainer kills a container and returns when it has been started again.
func (k *Kubelet) RestartContainer(ctx context.Context, p Pod, container string) error {
	return k.Crash(ctx, p, container, Exit{Code: sigkilled, Reason: "Error"})
}

// Crash has a container exit, and returns when it has been started again.
func (k *Kubelet) Crash(ctx context.Context, p Pod, container string, exit Exit) error {
	var state *containerState
	starts := 0
	err := k.changePod(p, func(p *pod) {
		if state = p.state[container]; state != nil {
			state.exited(exit)
			starts, state.running, state.done = state.starts, false, false
		}
	})
	if err != nil {
		return err
	}
	if state == nil {
		return fmt.Errorf("restart container %s of pod %s: no such container", container, p.Name)
	}
	if err := k.until(ctx, func() bool { return state.starts > starts }); err != nil {
		return fmt.Errorf("restart container %s of pod %s: %w", container, p.Name, err)
	}
	return nil
}

// pod is a pod of the node. Its containers run whether or not a kubelet does.
type pod struct {
	Pod            // as given, with its full name and a namespace; not written after addPod
	uid  string    // likewise
	came time.Time // likewise: when that was
	kick chan struct{}

	// All below are guarded by Kubelet.mu.
	state           map[string]*containerState // by container; the map itself is not written after addPod
	phase           string
	reason, message string
	prepared        bool      // its claims
	ends            time.Time // when a pod that is being deleted will be gone; zero where it is not
}

type containerState struct {
	running bool
	done    bool   // a regular init container that has run
	waiting string // why it does not run
	starts  int
	record  containerRecord
}

// The phases of a pod.
const (
	pending   = "Pending"
	running   = "Running"
	succeeded = "Succeeded"
	failed    = "Failed"
)

// container is a Container in its place.
type container struct {
	Container
	init bool
}

// all containers, in the order of their start.
func (p *pod) all() []container {
	all := []container{}
	for _, c := range p.Init {
		all = append(all, container{Container: c, init: true})
	}
	for _, c := range p.Containers {
		all = append(all, container{Container: c})
	}
	return all
}

func (p *pod) key() string { return p.Namespace + "/" + p.Name }

// look makes the pod's worker look at the pod again.
func (p *pod) look() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *pod) end() {
	for _, s := range p.state {
		s.running = false
	}
}

// fullName is how the kubelet calls a pod.
func (k *Kubelet) fullName(p Pod) Pod {
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.Static {
		p.Name += "-" + k.options.Node
	}
	return p
}

func (k *Kubelet) addPod(given Pod) (*pod, error) {
	p := &pod{Pod: k.fullName(given), uid: newUID(given.Static), came: time.Now(), kick: make(chan struct{}, 1), phase: pending, state: map[string]*containerState{}}
	for _, c := range p.all() {
		p.state[c.Name] = &containerState{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.findPod(p.Pod); old != nil {
		if old.phase != succeeded && old.phase != failed {
			return nil, fmt.Errorf("run pod %s: there is one of that name", p.key())
		}
		k.removePod(old)
	}
	k.pods = append(k.pods, p)
	k.tell()
	return p, nil
}

// newUID has the form of the real ones: a static pod's is the hash of its manifest.
func newUID(static bool) string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	if static {
		return fmt.Sprintf("%x", b)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// findPod looks a pod up by its full name. mu is held.
func (k *Kubelet) findPod(p Pod) *pod {
	for _, other := range k.pods {
		if other.Namespace == p.Namespace && other.Name == p.Name {
			return other
		}
	}
	return nil
}

// removePod makes the node forget a pod. mu is held.
func (k *Kubelet) removePod(p *pod) {
	p.killed()
	p.end()
	if k.life != nil {
		delete(k.life.read, p)
	}
	k.pods = slices.DeleteFunc(slices.Clone(k.pods), func(other *pod) bool { return other == p })
	p.look()
}

func (k *Kubelet) changePod(given Pod, change func(*pod)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.findPod(k.fullName(given))
	if p == nil {
		return fmt.Errorf("%s: %w", given.Name, ErrNoPod)
	}
	change(p)
	p.look()
	k.tell()
	return nil
}

// endContainers is the node's reboot. mu is held.
func (k *Kubelet) endContainers() {
	for _, p := range k.pods {
		for _, s := range p.state {
			s.running, s.done = false, false
		}
		if p.phase == running {
			p.phase = pending
		}
	}
}

func (k *Kubelet) hasPods() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.pods) > 0
}
