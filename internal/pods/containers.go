package pods

import (
	"cmp"
	"slices"
	"strings"
)

// containers say whose each container is. They are in buckets by their ids, so that of
// a container that starts only its bucket is copied: on a node of 500 pods a copy of
// all costs the garbage collector more than all else. The zero value has none.
type containers struct {
	buckets *buckets // not written once it is published
}

// buckets are sorted.
type buckets [64][]containerRef

// containerRef says whose a container is. It has the uid and not the pod, so that it
// stays as it is when the pod changes, and not its containers.
type containerRef struct{ id, uid string }

func compareRefs(a, b containerRef) int {
	return cmp.Or(strings.Compare(a.id, b.id), strings.Compare(a.uid, b.uid))
}

// bucket is where an id is. Real ids are random digits.
func bucket(id string) int {
	hash := 0
	for _, digit := range []byte(id[max(0, len(id)-4):]) {
		hash = 31*hash + int(digit)
	}
	return hash % len(buckets{})
}

// owner returns the uid of the pod that a container is of.
func (c containers) owner(id string) (uid string, ok bool) {
	if c.buckets == nil {
		return "", false
	}
	refs := c.buckets[bucket(id)]
	i, ok := slices.BinarySearchFunc(refs, id, func(r containerRef, id string) int { return strings.Compare(r.id, id) })
	if !ok {
		return "", false
	}
	return refs[i].uid, true
}

// containersOf are those of these pods and no others.
func containersOf(pods []*Pod) containers {
	all := &buckets{}
	for _, p := range pods {
		for r := range p.refs {
			b := bucket(r.id)
			all[b] = append(all[b], r)
		}
	}
	for b, refs := range all {
		slices.SortFunc(refs, compareRefs)
		all[b] = slices.Compact(refs)
	}
	return containers{all}
}

// with has the containers of p in place of those of old. Either may be nil.
func (c containers) with(old, p *Pod) containers {
	if old != nil && p != nil && slices.EqualFunc(old.Containers, p.Containers, func(a, b Container) bool { return a.ID == b.ID }) {
		return c
	}
	changed := buckets{}
	if c.buckets != nil {
		changed = *c.buckets
	}
	for r := range old.refs {
		b := bucket(r.id)
		if i, found := slices.BinarySearchFunc(changed[b], r, compareRefs); found {
			changed[b] = slices.Concat(changed[b][:i], changed[b][i+1:])
		}
	}
	for r := range p.refs {
		b := bucket(r.id)
		if i, found := slices.BinarySearchFunc(changed[b], r, compareRefs); !found {
			changed[b] = slices.Concat(changed[b][:i], []containerRef{r}, changed[b][i:])
		}
	}
	return containers{&changed}
}

// refs are those of a pod's containers that have an id; nil has none.
func (p *Pod) refs(yield func(containerRef) bool) {
	if p == nil {
		return
	}
	for _, c := range p.Containers {
		if c.ID != "" && !yield(containerRef{c.ID, p.UID}) {
			return
		}
	}
}
