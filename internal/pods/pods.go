package pods

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
)

// Pods are the pods of the node at one moment. A published value never changes.
type Pods struct {
	// Synced is true while the client follows the kubelet's pods without a gap.
	// Otherwise the last known pods stay: lookups by UID or container id still
	// hold, but the name of a pod may belong to a newer pod.
	Synced bool
	// Err is the reason if Synced is false: ErrNoPodsAPI if the kubelet has no
	// Pods API; nil before the first attempt.
	Err error

	updatedAt time.Time    // of the newest event
	list      []*Pod       // by namespace, name and UID
	deleted   []deletedPod // the newest deleted pods, oldest first
}

// deletedPod is a deleted pod in the last known version.
type deletedPod struct {
	pod       *Pod
	deletedAt time.Time
}

// NewPods returns synced pods.
func NewPods(all ...*Pod) Pods {
	return Pods{Synced: true, list: slices.SortedFunc(slices.Values(all), compareNames)}
}

// Len returns the number of pods.
func (ps *Pods) Len() int { return len(ps.list) }

// ByName returns the pod with a name. Of several pods, a pod that is not
// Terminal takes precedence, then the youngest: the kubelet may report a
// recreated pod before the end of the previous pod.
func (ps *Pods) ByName(namespace, name string) (p Pod, ok bool) {
	for _, other := range ps.withName(namespace, name) {
		newer := p.Terminal() == other.Terminal() && other.Created.After(p.Created)
		if !ok || p.Terminal() && !other.Terminal() || newer {
			p, ok = *other, true
		}
	}
	return p, ok
}

// withName returns the pods with a name.
func (ps *Pods) withName(namespace, name string) []*Pod {
	first, _ := slices.BinarySearchFunc(ps.list, name, func(p *Pod, name string) int {
		// before the first of the name
		return cmp.Or(strings.Compare(p.Namespace, namespace), strings.Compare(p.Name, name), 1)
	})
	end := first
	for end < len(ps.list) && ps.list[end].Namespace == namespace && ps.list[end].Name == name {
		end++
	}
	return ps.list[first:end]
}

// Meta returns UID, labels and workload of the pod with a name. It returns the zero
// PodMeta unless Synced, and for a pod that has Ended: the kubelet allocates to
// the next pod of that name before the Pods API reports the next pod, or the
// deletion of the previous one.
func (ps *Pods) Meta(namespace, name string) allocation.PodMeta {
	p, ok := ps.ByName(namespace, name)
	if !ok || !ps.Synced || p.Ended() {
		return allocation.PodMeta{}
	}
	return allocation.PodMeta{UID: p.UID, Labels: p.Labels, Workload: p.Workload}
}

// ByContainer returns the pod and the name of the container with a runtime's
// id.
func (ps *Pods) ByContainer(id string) (p Pod, container string, ok bool) {
	if id == "" {
		return Pod{}, "", false
	}
	for _, p := range ps.list {
		for i := range p.Containers {
			if p.Containers[i].ID == id {
				return *p, p.Containers[i].Name, true
			}
		}
	}
	return Pod{}, "", false
}

// find returns the pod with a UID, or nil.
func (ps *Pods) find(uid string) *Pod {
	if i := slices.IndexFunc(ps.list, func(p *Pod) bool { return p.UID == uid }); i >= 0 {
		return ps.list[i]
	}
	return nil
}

func compareNames(a, b *Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
		strings.Compare(a.UID, b.UID))
}

// upsert replaces the pod with p's UID by p, or adds p. The list may be
// published, so changes go to a copy.
func (ps *Pods) upsert(p *Pod) {
	ps.remove(p.UID)
	i, _ := slices.BinarySearchFunc(ps.list, p, compareNames)
	ps.list = slices.Insert(ps.list, i, p)
}

// remove replaces the list by a copy without the pod.
func (ps *Pods) remove(uid string) {
	list := make([]*Pod, len(ps.list), len(ps.list)+1)
	copy(list, ps.list)
	ps.list = slices.DeleteFunc(list, func(p *Pod) bool { return p.UID == uid })
}

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
