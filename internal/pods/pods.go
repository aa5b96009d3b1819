package pods

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// Pods are the node's at one moment. Nothing that can be reached from them changes.
type Pods struct {
	// At is when the kubelet last said something. While Synced they are true now, however
	// long ago that was.
	At time.Time
	// Synced tells whether the kubelet's list is followed without a gap. While it is not,
	// the last pods stand: what is looked up by uid or by container is as true as it was
	// at At, but the name of a pod may be another's by now.
	Synced bool
	// Err is why they are not Synced; it is ErrNoPodsAPI where the kubelet has no Pods API.
	Err error

	// All below are sorted, and copied where they change: a pod's change copies a pointer
	// for each pod, and no more.
	byUID       []*Pod
	byName      []*Pod // by namespace, name, and uid
	byContainer containerIndex
	deleted     []deletedPod // the latest that are gone, oldest first
}

// ByName returns the pod of a name. Of several, which there are while one that was made
// anew is there and the one before it not yet gone, it is one that has not ended, and
// of those the youngest.
func (ps *Pods) ByName(namespace, name string) (p Pod, ok bool) {
	for other := range ps.withName(namespace, name) {
		if !ok || supersedes(other, &p) {
			p, ok = *other, true
		}
	}
	return p, ok
}

// withName are the pods of a name.
func (ps *Pods) withName(namespace, name string) iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		i, _ := slices.BinarySearchFunc(ps.byName, Pod{Namespace: namespace, Name: name}, func(p *Pod, wanted Pod) int {
			return compareNames(p, &wanted)
		})
		for ; i < len(ps.byName) && ps.byName[i].Namespace == namespace && ps.byName[i].Name == name; i++ {
			if !yield(ps.byName[i]) {
				return
			}
		}
	}
}

// Meta is what else is known of the pod that has a name now. It is nothing while the pods
// are not Synced, nor of a pod that is over: the kubelet gives the next one of that name
// what it asks for before it says here that there is one, and before it says that the last
// one is deleted.
func (ps *Pods) Meta(namespace, name string) device.PodMeta {
	if !ps.Synced {
		return device.PodMeta{}
	}
	p, _ := ps.ByName(namespace, name)
	if p.Ended() {
		return device.PodMeta{}
	}
	return device.PodMeta{UID: p.UID, Labels: p.Labels}
}

// supersedes tells which of two pods of one name is that name's.
func supersedes(p, other *Pod) bool {
	if p.Terminal() != other.Terminal() {
		return other.Terminal()
	}
	return p.Created.After(other.Created)
}

// ByUID returns the pod of a uid.
func (ps *Pods) ByUID(uid string) (Pod, bool) {
	if p := ps.find(uid); p != nil {
		return *p, true
	}
	return Pod{}, false
}

// ByContainer returns the pod that a container is of, and the container's name, for the
// runtime's id of the container.
func (ps *Pods) ByContainer(id string) (p Pod, container string, ok bool) {
	uid, ok := ps.byContainer.podUID(id)
	if !ok {
		return Pod{}, "", false
	}
	pod := ps.find(uid)
	if pod == nil {
		return Pod{}, "", false
	}
	for _, c := range pod.Containers {
		if c.ID == id {
			return *pod, c.Name, true
		}
	}
	return Pod{}, "", false
}

// All are the pods by namespace and name.
func (ps *Pods) All() iter.Seq[Pod] {
	return func(yield func(Pod) bool) {
		for _, p := range ps.byName {
			if !yield(*p) {
				return
			}
		}
	}
}

// Len is how many there are.
func (ps *Pods) Len() int { return len(ps.byUID) }

func (ps *Pods) find(uid string) *Pod {
	if i, ok := ps.search(uid); ok {
		return ps.byUID[i]
	}
	return nil
}

func (ps *Pods) search(uid string) (int, bool) {
	return slices.BinarySearchFunc(ps.byUID, uid, func(p *Pod, uid string) int { return strings.Compare(p.UID, uid) })
}

func compareUIDs(a, b *Pod) int { return strings.Compare(a.UID, b.UID) }

func compareNames(a, b *Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
}

// setAll has these pods and no others. It takes the slice over.
func (ps *Pods) setAll(all []*Pod) {
	ps.byUID = all
	ps.byName = slices.Clone(all)
	ps.byContainer = newContainerIndex(all)
	slices.SortFunc(ps.byUID, compareUIDs)
	slices.SortFunc(ps.byName, compareNames)
}

// upsert has a pod, in place of the version before. It takes the pod over.
func (ps *Pods) upsert(p *Pod) {
	old := ps.find(p.UID)
	ps.byUID = withPod(ps.byUID, p, old, compareUIDs)
	ps.byName = withPod(ps.byName, p, old, compareNames)
	ps.byContainer = ps.byContainer.replacePod(old, p)
}

// remove has a pod no more.
func (ps *Pods) remove(p *Pod) {
	ps.byUID = withoutPod(ps.byUID, p, compareUIDs)
	ps.byName = withoutPod(ps.byName, p, compareNames)
	ps.byContainer = ps.byContainer.replacePod(p, nil)
}

// withPod is a copy of a sorted list that has p in place of old, which may be nil.
func withPod(list []*Pod, p, old *Pod, compare func(a, b *Pod) int) []*Pod {
	if old != nil && compare(old, p) != 0 { // a pod that has another name under its uid is nobody's work but a liar's
		list = withoutPod(list, old, compare)
	}
	i, found := slices.BinarySearchFunc(list, p, compare)
	inserted := make([]*Pod, 0, len(list)+1)
	inserted = append(append(inserted, list[:i]...), p)
	if found {
		i++
	}
	return append(inserted, list[i:]...)
}

func withoutPod(list []*Pod, p *Pod, compare func(a, b *Pod) int) []*Pod {
	i, found := slices.BinarySearchFunc(list, p, compare)
	if !found {
		return list
	}
	return slices.Concat(list[:i], list[i+1:])
}
