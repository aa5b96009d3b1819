package pods

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	// deletedRetention is how long it is known how a pod ended that is gone: who is asked how a
	// container fared may hear late of what hit it.
	deletedRetention = 10 * time.Minute
	// maxDeletedPods bounds how many of those there are.
	maxDeletedPods = 256
	// maxClockSkew is how much the API server's clock, by which pods are created, may be
	// ahead of this node's.
	maxClockSkew = 10 * time.Second
	// maxDetectionDelay is how long before what hit it a container may be said to have ended:
	// what a check finds is found some seconds later, and the kubelet's times have whole
	// seconds.
	maxDetectionDelay = 6 * time.Second
)

// deletedPod is a pod that is gone, as it was last known.
type deletedPod struct {
	pod       *Pod
	deletedAt time.Time
}

// recordDeleted notes that a pod is gone.
func (ps *Pods) recordDeleted(p *Pod) {
	deleted := slices.DeleteFunc(slices.Clone(ps.deleted), func(d deletedPod) bool { return ps.At.Sub(d.deletedAt) > deletedRetention })
	if len(deleted) == maxDeletedPods {
		deleted = slices.Delete(deleted, 0, 1)
	}
	deleted = append(deleted, deletedPod{p, ps.At})
	ps.deleted = deleted // the old one was published
}

// TerminationLookup returns what tells how pods fared, and a channel that is closed when it would tell
// otherwise. It is nil while the pods are not followed: then a name may be another pod's.
func (c *Client) TerminationLookup() (func(device.Assignment) (device.Termination, bool), <-chan struct{}) {
	ps, changed := c.Snapshot()
	if !ps.Synced {
		return nil, changed
	}
	return ps.Termination, changed
}

// Termination tells how a container's stay with a device went on, where its pod is known, or was
// until some minutes ago.
func (ps *Pods) Termination(assignment device.Assignment) (device.Termination, bool) {
	d, ok := ps.findAssigned(assignment)
	if !ok {
		return device.Termination{}, false
	}
	p, deleted := d.pod, !d.deletedAt.IsZero()
	termination := device.Termination{PodUID: p.UID, PodPhase: p.Phase, PodEnded: deleted || p.Ended()}
	var c Container
	if i := slices.IndexFunc(p.Containers, func(c Container) bool { return c.Name == assignment.Owner.Container }); i >= 0 {
		c = p.Containers[i]
	}
	termination.Restarts = c.Restarts
	switch end, terminated := c.terminationAfter(assignment.ObservedAt, termination.PodEnded); {
	case terminated:
		termination.Ended, termination.EndedAt, termination.Reason, termination.ExitCode = true, end.Finished, cmp.Or(p.Reason, end.Reason), &end.ExitCode
	case termination.PodEnded: // nobody has seen how
		termination.Ended, termination.EndedAt, termination.Reason = true, d.deletedAt, p.Reason
	}
	return termination, true
}

// terminationAfter is how the container's run ended that was under way at a time. Of a pod that is
// over it is the last one's end.
func (c *Container) terminationAfter(at time.Time, podEnded bool) (end ContainerState, ended bool) {
	switch {
	case c.State.Type == Terminated:
		return c.State, podEnded || !c.State.Finished.Before(at.Add(-maxDetectionDelay))
	case c.LastState.Type != Terminated:
		return ContainerState{}, false
	case c.State.Type == Running:
		return c.LastState, !podEnded && !c.LastState.Finished.Before(at.Truncate(time.Second))
	default: // it waits to be started again
		return c.LastState, podEnded || !c.LastState.Finished.Before(at.Add(-maxDetectionDelay))
	}
}

// findAssigned finds the pod that had a stay. Of those of its name it is the youngest of the ones
// that were created before, and not gone by then.
func (ps *Pods) findAssigned(assignment device.Assignment) (d deletedPod, ok bool) {
	if assignment.PodUID != "" {
		if p := ps.find(assignment.PodUID); p != nil {
			return deletedPod{pod: p}, true
		}
		i := slices.IndexFunc(ps.deleted, func(d deletedPod) bool { return d.pod.UID == assignment.PodUID })
		if i < 0 {
			return deletedPod{}, false
		}
		return ps.deleted[i], true
	}
	var late deletedPod // the first of those that were created a little after, by another clock
	consider := func(other deletedPod) {
		switch created := other.pod.Created; {
		case created.After(assignment.Since.Add(maxClockSkew)):
		case created.After(assignment.Since):
			if late.pod == nil || created.Before(late.pod.Created) {
				late = other
			}
		case !ok || created.After(d.pod.Created):
			d, ok = other, true
		}
	}
	for _, other := range ps.deleted {
		if other.pod.Namespace == assignment.Owner.Namespace && other.pod.Name == assignment.Owner.Pod && !other.deletedAt.Before(assignment.Since) {
			consider(other)
		}
	}
	for p := range ps.withName(assignment.Owner.Namespace, assignment.Owner.Pod) {
		consider(deletedPod{pod: p})
	}
	if !ok && late.pod != nil {
		return late, true
	}
	return d, ok
}
