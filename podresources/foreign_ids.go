package podresources

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
)

// maxForeignIDs is the limit of ids of a resource, apart from this node's devices. Some plugins advertise each MiB of memory as a device,
// 65,000 and more per node.
const maxForeignIDs = 4096

// uuidPattern matches NVML's UUIDs of GPUs and MIG devices, also of drivers before R470. Memory-sharing plugins append to a UUID.
var uuidPattern = regexp.MustCompile(`^(GPU|MIG|MIG-GPU)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(/[0-9]+/[0-9]+)?$`)

// ownIDs are the ids of this node's devices. The zero value has all ids.
type ownIDs struct {
	known      map[device.ID]bool // shared, so replaced and never written
	matchUUIDs bool               // before the first inventory: each UUID may be a device of this node
}

// has reports whether an id is, or may be, of this node's devices.
func (o ownIDs) has(id device.ID) bool {
	if o.matchUUIDs {
		return uuidPattern.MatchString(string(id))
	}
	return o.known == nil || o.known[id]
}

// hasOrHad also includes devices lost before this process began.
func (o ownIDs) hasOrHad(id device.ID) bool { return o.has(id) || uuidPattern.MatchString(string(id)) }

// foreignIDs drops all foreign ids of a resource above maxForeignIDs. The kubelet lists ids in random order, so a part would change with
// each response.
type foreignIDs struct {
	own       ownIDs
	resources map[string]*foreignResource
}

type foreignResource struct {
	ids     int  // in this response
	dropped bool // the last response had too many
}

// setOwn sets the ids of this node's devices; nil before the first inventory.
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

// startResponse begins a response.
func (f *foreignIDs) startResponse() {
	for _, r := range f.resources {
		r.ids = 0
	}
}

// isOwn is own.has for an id as received, without an allocation.
func (f *foreignIDs) isOwn(received []byte) bool {
	id, _, _ := bytes.Cut(received, []byte("::"))
	if f.own.matchUUIDs {
		return uuidPattern.Match(id)
	}
	return f.own.known == nil || f.own.known[device.ID(id)]
}

// admit counts an id, and reports whether to keep the id.
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

// finishResponse ends a response, and reports whether a resource newly exceeds maxForeignIDs.
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

// isDropped reports whether an id is dropped.
func (f *foreignIDs) isDropped(resource string, id device.AdvertisedID) bool {
	r := f.resources[resource]
	return r != nil && r.dropped && !f.own.has(id.Device())
}

// droppedIDs returns the number of dropped ids per resource; old, possibly published, if equal.
func (f *foreignIDs) droppedIDs(old []device.DroppedIDs) []device.DroppedIDs {
	var dropped []device.DroppedIDs
	for name, r := range f.resources {
		if r.dropped {
			dropped = append(dropped, device.DroppedIDs{Resource: name, IDs: r.ids})
		}
	}
	slices.SortFunc(dropped, func(a, b device.DroppedIDs) int { return cmp.Compare(a.Resource, b.Resource) })
	if slices.Equal(dropped, old) {
		return old
	}
	return dropped
}
