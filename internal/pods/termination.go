package pods

import (
	"cmp"
	"slices"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
)

const (
	// deletedRetention is the time for which the end of a deleted pod stays
	// known: an incident may look up the end late.
	deletedRetention = 10 * time.Minute
	maxDeletedPods   = 256
	// maxClockSkew is the allowed lead of the API server's clock, the source of
	// Pod.Created, over the node's clock.
	maxClockSkew = 10 * time.Second
	// maxDetectionDelay is the allowed time from a container's end to the fault
	// that caused the end: health checks find a fault some seconds late, and
	// the kubelet's times have whole seconds.
	maxDetectionDelay = 6 * time.Second
)

// recordDeleted adds p to the deleted pods. Published slices stay unchanged.
func (ps *Pods) recordDeleted(p *Pod) {
	deleted := slices.DeleteFunc(slices.Clone(ps.deleted), func(d deletedPod) bool {
		return ps.updatedAt.Sub(d.deletedAt) > deletedRetention
	})
	if len(deleted) == maxDeletedPods {
		deleted = slices.Delete(deleted, 0, 1)
	}
	deleted = append(deleted, deletedPod{p, ps.updatedAt})
	ps.deleted = deleted
}

// findDeleted returns the index in deleted of a UID, or -1.
func (ps *Pods) findDeleted(uid string) int {
	return slices.IndexFunc(ps.deleted, func(d deletedPod) bool { return d.pod.UID == uid })
}

// Termination returns how an assignment's container ended, if the pod is known
// or was deleted within the last ten minutes.
func (ps *Pods) Termination(a allocation.Assignment) (allocation.Termination, bool) {
	d, ok := ps.findAssigned(a)
	if !ok {
		return allocation.Termination{}, false
	}
	p := d.pod
	t := allocation.Termination{
		PodUID: p.UID, Workload: p.Workload, PodPhase: p.Phase, PodEnded: !d.deletedAt.IsZero() || p.Ended(),
	}
	var c Container
	if i := slices.IndexFunc(p.Containers, func(c Container) bool { return c.Name == a.Owner.Container }); i >= 0 {
		c = p.Containers[i]
	}
	t.Restarts = c.Restarts
	switch end, ended := c.terminationAfter(a.ObservedAt, t.PodEnded); {
	case ended:
		t.Ended, t.EndedAt, t.Reason, t.ExitCode = true, end.Finished, cmp.Or(p.Reason, end.Reason), &end.ExitCode
	case t.PodEnded: // without a known state
		t.Ended, t.EndedAt, t.Reason = true, d.deletedAt, p.Reason
	}
	return t, true
}

// terminationAfter returns the end of the run in progress at a time; of an
// ended pod, the end of the last run.
func (c *Container) terminationAfter(at time.Time, podEnded bool) (end ContainerState, ended bool) {
	switch {
	case c.State.Type == Terminated:
		return c.State, podEnded || !c.State.Finished.Before(at.Add(-maxDetectionDelay))
	case c.LastState.Type != Terminated:
		return ContainerState{}, false
	case c.State.Type == Running:
		return c.LastState, !podEnded && !c.LastState.Finished.Before(at.Truncate(time.Second))
	default: // between two runs
		return c.LastState, podEnded || !c.LastState.Finished.Before(at.Add(-maxDetectionDelay))
	}
}

// findAssigned returns the pod of an assignment: by UID if known, otherwise the
// youngest pod of the name that was created before the assignment and not
// deleted by then. A pod created within maxClockSkew after the assignment is
// the second choice.
func (ps *Pods) findAssigned(a allocation.Assignment) (best deletedPod, ok bool) {
	if a.PodUID != "" {
		if p := ps.find(a.PodUID); p != nil {
			return deletedPod{pod: p}, true
		}
		if i := ps.findDeleted(a.PodUID); i >= 0 {
			return ps.deleted[i], true
		}
		return deletedPod{}, false
	}
	var late deletedPod // the second choice: the oldest
	consider := func(d deletedPod) {
		switch created := d.pod.Created; {
		case created.After(a.Since.Add(maxClockSkew)):
		case created.After(a.Since):
			if late.pod == nil || created.Before(late.pod.Created) {
				late = d
			}
		case !ok || created.After(best.pod.Created):
			best, ok = d, true
		}
	}
	for _, d := range ps.deleted {
		if d.pod.Namespace == a.Owner.Namespace && d.pod.Name == a.Owner.Pod && !d.deletedAt.Before(a.Since) {
			consider(d)
		}
	}
	for _, p := range ps.withName(a.Owner.Namespace, a.Owner.Pod) {
		consider(deletedPod{pod: p})
	}
	if !ok {
		best = late
	}
	return best, best.pod != nil
}
