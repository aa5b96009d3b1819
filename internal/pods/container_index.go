package pods

import (
	"cmp"
	"slices"
	"strings"
)

// containerIndex say whose each container is. They are in buckets by their ids, so that of
// a container that starts only its bucket is copied: on a node of 500 pods a copy of
// all costs the garbage collector more than all else. The zero value has none.
type containerIndex struct {
	buckets *containerBuckets // not written once it is published
}

// containerBuckets are sorted.
type containerBuckets [64][]indexEntry

// indexEntry says whose a container is. It has the uid and not the pod, so that it
// stays as it is when the pod changes, and not its containers.
type indexEntry struct{ id, uid string }

func compareEntries(a, b indexEntry) int {
	return cmp.Or(strings.Compare(a.id, b.id), strings.Compare(a.uid, b.uid))
}

// bucketOf is where an id is. Real ids are random digits.
func bucketOf(id string) int {
	hash := 0
	for _, digit := range []byte(id[max(0, len(id)-4):]) {
		hash = 31*hash + int(digit)
	}
	return hash % len(containerBuckets{})
}

// podUID returns the uid of the pod that a container is of.
func (x containerIndex) podUID(id string) (uid string, ok bool) {
	if x.buckets == nil {
		return "", false
	}
	refs := x.buckets[bucketOf(id)]
	i, ok := slices.BinarySearchFunc(refs, id, func(r indexEntry, id string) int { return strings.Compare(r.id, id) })
	if !ok {
		return "", false
	}
	return refs[i].uid, true
}

// newContainerIndex are those of these pods and no others.
func newContainerIndex(pods []*Pod) containerIndex {
	all := &containerBuckets{}
	for _, p := range pods {
		for r := range p.indexEntries {
			b := bucketOf(r.id)
			all[b] = append(all[b], r)
		}
	}
	for b, refs := range all {
		slices.SortFunc(refs, compareEntries)
		all[b] = slices.Compact(refs)
	}
	return containerIndex{all}
}

// replacePod has the containers of p in place of those of old. Either may be nil.
func (x containerIndex) replacePod(old, p *Pod) containerIndex {
	if old != nil && p != nil && slices.EqualFunc(old.Containers, p.Containers, func(a, b Container) bool { return a.ID == b.ID }) {
		return x
	}
	changed := containerBuckets{}
	if x.buckets != nil {
		changed = *x.buckets
	}
	for r := range old.indexEntries {
		b := bucketOf(r.id)
		if i, found := slices.BinarySearchFunc(changed[b], r, compareEntries); found {
			changed[b] = slices.Concat(changed[b][:i], changed[b][i+1:])
		}
	}
	for r := range p.indexEntries {
		b := bucketOf(r.id)
		if i, found := slices.BinarySearchFunc(changed[b], r, compareEntries); !found {
			changed[b] = slices.Concat(changed[b][:i], []indexEntry{r}, changed[b][i:])
		}
	}
	return containerIndex{&changed}
}

// indexEntries are those of a pod's containers that have an id; nil has none.
func (p *Pod) indexEntries(yield func(indexEntry) bool) {
	if p == nil {
		return
	}
	for _, c := range p.Containers {
		if c.ID != "" && !yield(indexEntry{c.ID, p.UID}) {
			return
		}
	}
}
