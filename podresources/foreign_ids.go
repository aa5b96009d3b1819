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

// ownIDs are the ids of this node's devices; nil has all ids. Published, so replaced and never written.
type ownIDs map[device.ID]bool

// has reports whether an id is of this node's devices. Each UUID may be: before the first inventory, or of a device lost before this process
// began.
func (o ownIDs) has(id device.ID) bool {
	return o == nil || o[id] || uuidPattern.MatchString(string(id))
}

// foreignIDs drops all foreign ids of a resource with more than maxForeignIDs. The kubelet lists ids in random order, so a part would
// change with each response.
type foreignIDs struct {
	own       ownIDs
	ownIDs    int // in this response
	resources map[string]*foreignResource
}

type foreignResource struct {
	ids     int  // in this response
	dropped bool // the last reading of a response had too many
}

// setOwn sets the ids of this node's devices.
func (f *foreignIDs) setOwn(ids []device.ID) {
	if f.own != nil && len(ids) == len(f.own) && !slices.ContainsFunc(ids, func(id device.ID) bool { return !f.own[id] }) {
		return
	}
	f.own = make(ownIDs, len(ids))
	for _, id := range ids {
		f.own[id] = true
	}
}

// admit counts an id, and reports whether to keep the id.
func (f *foreignIDs) admit(resource, id []byte) bool {
	if own, _, _ := bytes.Cut(id, []byte("::")); f.own == nil || f.own[device.ID(own)] || uuidPattern.Match(own) { // own.has, without a copy
		f.ownIDs++
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

// finishResponse ends a response. It reports whether the limit begins or ceases to apply to a resource: the response must be read again.
func (f *foreignIDs) finishResponse() (again bool) {
	for name, r := range f.resources {
		if r.ids == 0 {
			delete(f.resources, name)
			continue
		}
		tooMany := r.ids > maxForeignIDs
		again = again || tooMany != r.dropped
		r.dropped = tooMany
	}
	return again
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
