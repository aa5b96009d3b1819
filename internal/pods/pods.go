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
