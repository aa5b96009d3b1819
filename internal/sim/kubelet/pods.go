package kubelet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PodSpec is a pod to run. All that identifies it to the methods of Kubelet is its namespace and
// name.
type PodSpec struct {
	// Namespace is "default" when empty.
	Namespace string
	Name      string
	// Labels are the API server's; the Pods API has them.
	Labels map[string]string
	// Static pods come from a manifest on the node, the others from the API server. The kubelet
	// appends its node's name to theirs.
	Static bool
	// InitContainers are its init containers, sidecars among them; they start one after the other, before
	// Containers.
	InitContainers []ContainerSpec
	Containers     []ContainerSpec
	// ExclusiveCPUs and Memory are the pod's own, as the gate PodLevelResourceManagers of 1.37 has them.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
	// RunOnce is restartPolicy Never: the pod has ended when its containers have. It is for real
	// kubelets: here EndPod ends any pod.
	RunOnce bool
	// GracePeriod is how long its containers outlive the pod's deletion.
	GracePeriod time.Duration
}

// ContainerSpec of a Pod.
type ContainerSpec struct {
	Name string
	// Limits are the resources that it asks for: {"nvidia.com/gpu": 1}.
	Limits map[string]int
	// ExclusiveCPUs and Memory are listed as this container's. A real kubelet gives them to the
	// containers of Guaranteed pods.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
	// Claims are those that it uses.
	Claims []ClaimSpec
	// Sidecar is an init container with restartPolicy Always.
	Sidecar bool
}

// AdmissionError is the error of a pod that was not admitted. It failed for good: nobody tries again.
type AdmissionError struct {
	Pod string // namespace/name
	// Reason and Message are those of the pod's status.
	Reason, Message string
}

func (r *AdmissionError) Error() string {
	return fmt.Sprintf("pod %s: %s: %s", r.Pod, r.Reason, r.Message)
}

// ErrNoPod is the error where the node has no such pod.
var ErrNoPod = errors.New("no such pod")

// RunPod gives the node a pod and returns when each of its containers was started, or with a
// *Rejected. While no kubelet runs it waits for one. When ctx is done before, the pod stays
// where it has got to.
func (k *Kubelet) RunPod(ctx context.Context, p PodSpec) error {
	added, err := k.addPod(p)
	if err != nil {
		return err
	}
	var outcome error
	err = k.waitUntil(ctx, func() bool {
		switch {
		case added.phase == phaseFailed:
			outcome = &AdmissionError{Pod: added.key(), Reason: added.reason, Message: added.message}
		case added.phase == phasePending && slices.Contains(k.pods, added):
			return false
		case added.phase == phasePending:
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
func (k *Kubelet) EndPod(p PodSpec) error { return k.EndPodWith(p, PodEnd{}) }

// DeletePod takes a pod away as its owner would. One of the API server's stays listed, with its
// devices, until its grace is over. A static one leaves List at once, while its containers
// still run: the same device may then be given to the next pod.
func (k *Kubelet) DeletePod(p PodSpec) error {
	return k.updatePod(p, func(p *pod) {
		if p.Static || p.GracePeriod == 0 || p.phase == phaseSucceeded || p.phase == phaseFailed {
			k.removePod(p)
		} else if p.deleteAt.IsZero() {
			p.deleteAt = time.Now().Add(p.GracePeriod)
		}
	})
}

// RestartContainer kills a container and returns when it has been started again.
func (k *Kubelet) RestartContainer(ctx context.Context, p PodSpec, container string) error {
	return k.CrashContainer(ctx, p, container, ContainerExit{Code: exitSIGKILL, Reason: "Error"})
}

// CrashContainer has a container exit, and returns when it has been started again.
func (k *Kubelet) CrashContainer(ctx context.Context, p PodSpec, container string, exit ContainerExit) error {
	var state *containerState
	starts := 0
	err := k.updatePod(p, func(p *pod) {
		if state = p.state[container]; state != nil {
			state.recordExit(exit)
			starts, state.running, state.completed = state.starts, false, false
		}
	})
	if err != nil {
		return err
	}
	if state == nil {
		return fmt.Errorf("restart container %s of pod %s: no such container", container, p.Name)
	}
	if err := k.waitUntil(ctx, func() bool { return state.starts > starts }); err != nil {
		return fmt.Errorf("restart container %s of pod %s: %w", container, p.Name, err)
	}
	return nil
}

// pod is a pod of the node. Its containers run whether or not a kubelet does.
type pod struct {
	PodSpec           // as given, with its full name and a namespace; not written after addPod
	uid     string    // likewise
	addedAt time.Time // likewise: when that was
	wakeup  chan struct{}

	// All below are guarded by Kubelet.mu.
	state           map[string]*containerState // by container; the map itself is not written after addPod
	phase           string
	reason, message string
	claimsPrepared  bool      // its claims
	deleteAt        time.Time // when a pod that is being deleted will be gone; zero where it is not
}

type containerState struct {
	running       bool
	completed     bool   // a regular init container that has run
	waitingReason string // why it does not run
	starts        int
	record        containerRecord
}

// The phases of a pod.
const (
	phasePending   = "Pending"
	phaseRunning   = "Running"
	phaseSucceeded = "Succeeded"
	phaseFailed    = "Failed"
)

// orderedContainer is a Container in its place.
type orderedContainer struct {
	ContainerSpec
	init bool
}

// orderedContainers containers, in the order of their start.
func (p *pod) orderedContainers() []orderedContainer {
	all := []orderedContainer{}
	for _, c := range p.InitContainers {
		all = append(all, orderedContainer{ContainerSpec: c, init: true})
	}
	for _, c := range p.Containers {
		all = append(all, orderedContainer{ContainerSpec: c})
	}
	return all
}

func (p *pod) key() string { return p.Namespace + "/" + p.Name }

// wake makes the pod's worker look at the pod again.
func (p *pod) wake() {
	select {
	case p.wakeup <- struct{}{}:
	default:
	}
}

func (p *pod) stopContainers() {
	for _, s := range p.state {
		s.running = false
	}
}

// fullName is how the kubelet calls a pod.
func (k *Kubelet) fullName(p PodSpec) PodSpec {
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.Static {
		p.Name += "-" + k.options.Node
	}
	return p
}

func (k *Kubelet) addPod(spec PodSpec) (*pod, error) {
	p := &pod{PodSpec: k.fullName(spec), uid: newUID(spec.Static), addedAt: time.Now(), wakeup: make(chan struct{}, 1), phase: phasePending, state: map[string]*containerState{}}
	for _, c := range p.orderedContainers() {
		p.state[c.Name] = &containerState{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if old := k.findPod(p.PodSpec); old != nil {
		if old.phase != phaseSucceeded && old.phase != phaseFailed {
			return nil, fmt.Errorf("run pod %s: there is one of that name", p.key())
		}
		k.removePod(old)
	}
	k.pods = append(k.pods, p)
	k.notify()
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
func (k *Kubelet) findPod(p PodSpec) *pod {
	for _, other := range k.pods {
		if other.Namespace == p.Namespace && other.Name == p.Name {
			return other
		}
	}
	return nil
}

// removePod makes the node forget a pod. mu is held.
func (k *Kubelet) removePod(p *pod) {
	p.markKilled()
	p.stopContainers()
	if k.process != nil {
		delete(k.process.knownPods, p)
	}
	k.pods = slices.DeleteFunc(slices.Clone(k.pods), func(other *pod) bool { return other == p })
	p.wake()
}

func (k *Kubelet) updatePod(spec PodSpec, change func(*pod)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.findPod(k.fullName(spec))
	if p == nil {
		return fmt.Errorf("%s: %w", spec.Name, ErrNoPod)
	}
	change(p)
	p.wake()
	k.notify()
	return nil
}

func (k *Kubelet) hasPods() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.pods) > 0
}
