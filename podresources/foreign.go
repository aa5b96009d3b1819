package podresources

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/device"
)

// maxForeignIDs is how many ids of a resource are kept, besides those of our devices. To some
// plugins each MiB of a GPU's memory is a device, so that a node has 65,000 ids and more.
const maxForeignIDs = 4096

// foreignIDs drops the ids of resources that have too many. All of a resource's ids go: the
// kubelet lists them in random order, and a part would be another one with each answer.
type foreignIDs struct {
	ours      map[string]bool // our devices; nil: all are
	resources map[string]*foreignResource
}

type foreignResource struct {
	ids     int  // in this answer
	dropped bool // since an answer had too many
}

// isOurs reports whether an id is of one of our devices.
func (f *foreignIDs) isOurs(id device.OfferedID) bool {
	return f.ours == nil || f.ours[string(id.Device())]
}

// begin starts an answer.
func (f *foreignIDs) begin() {
	for _, r := range f.resources {
		r.ids = 0
	}
}

// takes counts an id, and reports whether it is kept.
func (f *foreignIDs) takes(resource, id []byte) bool {
	if f.ours == nil {
		return true
	}
	if of, _, _ := bytes.Cut(id, []byte("::")); f.ours[string(of)] {
		return true
	}
	r := f.resources[string(resource)]
	if r == nil {
		r = &foreignResource{}
		if f.resources == nil {
			f.resources = map[string]*foreignResource{}
		}
		f.resources[string(resource)] = r
	}
	r.ids++
	return !r.dropped && r.ids <= maxForeignIDs
}

// end finishes an answer, and reports whether it has rows of resources that it was the first to
// have too many ids of.
func (f *foreignIDs) end() (newlyDropped bool) {
	for name, r := range f.resources {
		was := r.dropped
		if r.dropped = r.ids > maxForeignIDs; r.ids == 0 {
			delete(f.resources, name)
		}
		newlyDropped = newlyDropped || r.dropped && !was
	}
	return newlyDropped
}

// drops reports whether a row is of a resource whose ids are dropped.
func (f *foreignIDs) drops(resource string, id device.OfferedID) bool {
	r := f.resources[resource]
	return r != nil && r.dropped && !f.isOurs(id)
}

// dropped returns how many ids of each resource are dropped: old, if that says the same.
func (f *foreignIDs) dropped(old []device.DroppedIDs) []device.DroppedIDs {
	var now []device.DroppedIDs
	for name, r := range f.resources {
		if r.dropped {
			now = append(now, device.DroppedIDs{Resource: name, IDs: r.ids})
		}
	}
	slices.SortFunc(now, func(a, b device.DroppedIDs) int { return cmp.Compare(a.Resource, b.Resource) })
	if slices.Equal(now, old) {
		return old
	}
	return now
}

// know takes the ids of our devices; nil: they are not known yet.
func (f *foreignIDs) know(ids []device.ID) {
	if ids == nil {
		f.ours = nil
		return
	}
	if f.ours == nil {
		f.ours = map[string]bool{}
	}
	clear(f.ours)
	for _, id := range ids {
		f.ours[string(id)] = true
	}
}
