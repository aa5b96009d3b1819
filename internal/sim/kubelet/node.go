package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// Options of a Kubelet. Only Dir is required.
type Options struct {
	// Dir is the kubelet's folder, created if needed. The path of a unix socket
	// has at most 107 bytes.
	Dir string
	// Version is V137 if empty.
	Version Version
	// Now is the clock of the grace period of a resource without a plugin;
	// time.Now if nil.
	Now func() time.Time
	// RunningSince back-dates the pod-resources socket of the first start, to
	// simulate a long uptime.
	RunningSince time.Time
	// ReadPodsAtOnce removes the delay of 80 to 140 ms after a restart before
	// List is complete.
	ReadPodsAtOnce bool
	// ExclusiveCPUs and Memory are returned by GetAllocatableResources; no CPU
	// or memory manager is simulated.
	ExclusiveCPUs []int64
	Memory        []MemoryBlock
}

// Faults are the current faults of a Kubelet. The zero value is a healthy
// kubelet. A channel blocks an operation until the channel is closed; nil does
// not block.
type Faults struct {
	RegisterErr  error           // returned by Register
	HoldRegister <-chan struct{} // blocks Register

	ListErr   error           // returned by List
	HoldList  <-chan struct{} // blocks List
	ListBytes int             // minimum size of List responses, by a pod "padding"
}

// ErrNoPod is the error for a missing pod.
var ErrNoPod = errors.New("no such pod")

// Registration is a Register call.
type Registration struct {
	Resource, Endpoint string
	Err                error // nil after a success
}

// nodeState is the state beyond a kubelet process.
type nodeState struct {
	options Options                // not written after New
	changes pubsub.Value[struct{}] // set at each change of the fields below mu

	mu            sync.Mutex // guards all below, and the state of the running process
	pods          []*pod     // in order of arrival
	faults        Faults
	watchers      podWatchers
	registrations []Registration
	lists         map[string]listCounter // by resource
	calls         map[string]int         // by method
}

// listCounter counts the device lists of a resource.
type listCounter struct{ updates, repeats int }

// locked calls do with mu held.
func (n *nodeState) locked(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
}

// update applies and publishes a change.
func (n *nodeState) update(change func()) {
	n.locked(func() {
		change()
		n.publish()
	})
}

// publish notifies watchers and waiters of a change. mu is held.
func (n *nodeState) publish() {
	for _, p := range n.managedPods() {
		n.watchers.announce(p)
	}
	n.changes.Set(struct{}{})
}

// waitUntil calls done, now and after each change, until done returns true.
func (n *nodeState) waitUntil(ctx context.Context, done func() bool) error {
	for {
		_, changed := n.changes.Get()
		if done() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *nodeState) currentFaults() (f Faults) {
	n.locked(func() { f = n.faults })
	return f
}

// waitRelease waits until a hold is released; nil is no hold.
func waitRelease(ctx context.Context, hold <-chan struct{}) error {
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// managedPods returns the pods of the kubelet's pod manager. mu is held.
func (n *nodeState) managedPods() (all []*pod) {
	for _, p := range n.pods {
		if p.isManaged() {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pod) int { return cmp.Compare(a.uid, b.uid) })
	return all
}

// findPod returns the pod with a full name, or nil. mu is held.
func (n *nodeState) findPod(namespace, name string) *pod {
	i := slices.IndexFunc(n.pods, func(p *pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return nil
	}
	return n.pods[i]
}

// removePod deletes a pod from the node. mu is held.
func (n *nodeState) removePod(p *pod) {
	wasManaged := p.isManaged()
	p.kill()
	p.known, p.removed = false, true
	if wasManaged {
		n.watchers.announce(p)
	}
	n.pods = slices.DeleteFunc(slices.Clone(n.pods), func(other *pod) bool { return other == p })
	p.wake()
}

// readPod calls read with the pod of a spec.
func (n *nodeState) readPod(spec PodSpec, read func(*pod)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := spec.fullName()
	p := n.findPod(full.Namespace, full.Name)
	if p == nil {
		return fmt.Errorf("%s/%s: %w", full.Namespace, full.Name, ErrNoPod)
	}
	read(p)
	return nil
}

func (n *nodeState) updatePod(spec PodSpec, change func(*pod)) error {
	return n.readPod(spec, func(p *pod) {
		change(p)
		p.wake()
		n.publish()
	})
}
