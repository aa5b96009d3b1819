package podresources

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// maxForeignIDs is how many ids of a resource are kept, besides those of our devices. To some
// plugins each MiB of a GPU's memory is a device, so that a node has 65,000 ids and more.
const maxForeignIDs = 4096

// uuidPattern is that of NVML's UUIDs of GPUs and MIG devices, also of drivers before R470. Plugins
// that divide a GPU's memory make ids of a GPU's UUID and more.
var uuidPattern = regexp.MustCompile(`^(GPU|MIG|MIG-GPU)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(/[0-9]+/[0-9]+)?$`)

// ownIDs are the ids of our devices. The map is replaced and never written, since several
// parts share it. The zero value has all ids.
type ownIDs struct {
	known map[device.ID]bool
	// matchUUIDs stands in until the inventory is known: the ids of UUIDs may be ours.
	matchUUIDs bool
}

// has reports whether an id is, or may be, of one of our devices.
func (o ownIDs) has(id device.ID) bool {
	if o.matchUUIDs {
		return uuidPattern.MatchString(string(id))
	}
	return o.known == nil || o.known[id]
}

// hasOrHad is has that counts devices that were lost before this process began.
func (o ownIDs) hasOrHad(id device.ID) bool { return o.has(id) || uuidPattern.MatchString(string(id)) }

// foreignIDs drops the ids of resources that have too many. All of a resource's ids go: the
// kubelet lists them in random order, and a part would be another one with each answer.
type foreignIDs struct {
	own       ownIDs
	resources map[string]*foreignResource
}

type foreignResource struct {
	ids     int  // in this answer
	dropped bool // since an answer had too many
}

// isOwn is own.has of an id as it was received. It copies nothing.
func (f *foreignIDs) isOwn(received []byte) bool {
	id, _, _ := bytes.Cut(received, []byte("::"))
	if f.own.matchUUIDs {
		return uuidPattern.Match(id)
	}
	return f.own.known == nil || f.own.known[device.ID(id)]
}

// startResponse starts an answer.
func (f *foreignIDs) startResponse() {
	for _, r := range f.resources {
		r.ids = 0
	}
}

// admit counts an id, and reports whether it is kept.
func (f *foreignIDs) admit(resource, id []byte) bool {
	if f.isOwn(id) {
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

// finishResponse finishes an answer, and reports whether it has rows of resources that it was the first to
// have too many ids of.
func (f *foreignIDs) finishResponse() (newlyDropped bool) {
	for name, r := range f.resources {
		wasDropped := r.dropped
		if r.dropped = r.ids > maxForeignIDs; r.ids == 0 {
			delete(f.resources, name)
		}
		newlyDropped = newlyDropped || r.dropped && !wasDropped
	}
	return newlyDropped
}

// isDropped reports whether a row is of a resource whose ids are dropped.
func (f *foreignIDs) isDropped(resource string, id device.AdvertisedID) bool {
	r := f.resources[resource]
	return r != nil && r.dropped && !f.own.has(id.Device())
}

// droppedIDs returns how many ids of each resource are dropped: old, if that says the same.
func (f *foreignIDs) droppedIDs(old []device.DroppedIDs) []device.DroppedIDs {
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

// setOwn takes the ids of our devices; nil: the inventory is not known yet.
func (f *foreignIDs) setOwn(ids []device.ID) {
	known := f.own.known
	if ids != nil && len(ids) == len(known) && !slices.ContainsFunc(ids, func(id device.ID) bool { return !known[id] }) {
		return
	}
	f.own = ownIDs{matchUUIDs: ids == nil}
	if ids == nil {
		return
	}
	f.own.known = make(map[device.ID]bool, len(ids))
	for _, id := range ids {
		f.own.known[id] = true
	}
}
