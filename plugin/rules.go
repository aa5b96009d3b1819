package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/answer"
	"github.com/podgauge/podgauge/plugin/preferred"
)

// MIG says how GPUs that are partitioned are offered. The words are those of
// NVIDIA's device plugin.
type MIG uint8

// What becomes of GPUs whose MIG mode is on.
const (
	// MIGNone offers GPUs that are whole, and no slice. (NVIDIA's plugin offers a
	// partitioned GPU as a whole too: docs/adr/0008-mig-on-the-board.md.)
	MIGNone MIG = iota
	// MIGSingle offers slices under the name of whole GPUs, on a node whose slices
	// are all of one profile and where no GPU is left whole.
	MIGSingle
	// MIGMixed offers each profile under a name of its own, beside the GPUs that
	// are whole.
	MIGMixed
)

// wholeGPU is what every workload asks for.
const wholeGPU = "nvidia.com/gpu"

// Share is how a device is shared. The zero Share is not at all.
type Share struct {
	Resource string // under which it is offered then; empty: the one it has
	Replicas int    // how often; below 1: once, under its own id
	// OnlyOne refuses a container that asks for more than one replica.
	OnlyOne bool
}

// Rules say under which names devices are offered, how often, and what a
// container gets with them. The zero Rules offer every whole GPU once, as
// nvidia.com/gpu. Rules are not written once they are handed over.
type Rules struct {
	MIG MIG
	// Selected tells whether a device is offered at all. Nil: each is.
	Selected func(device.Device) bool
	// Name is the resource that a device is offered as. Nil: nvidia.com/gpu, and a
	// slice under MIGMixed by its profile.
	Name func(d device.Device) string
	// Share says how the devices of one resource are shared, one answer for each,
	// in the node's order. Nil: not at all.
	Share func(resource string, devices []device.Device) []Share
	// Down says, in one word, why the replicas of a resource cannot be used though
	// their devices can; empty: they can. Nil: they always can.
	Down func(resource string) (reason string)
	// Answer says how the devices of a resource are passed on to the container's
	// runtime. Nil: by the zero Options.
	Answer func(resource string) answer.Options
	// Policy chooses among replicas and slices. With preferred.Distinct a container
	// that would get two replicas of one GPU is refused.
	Policy preferred.Policy
	// ReserveClaimed has a device that a container has by a claim (Dynamic Resource
	// Allocation) count as allocated. The PodResources API does not show whether a claim
	// has admin access, so it does not by default.
	ReserveClaimed bool
	// PreStart has a container's devices asked before each of its starts.
	PreStart bool
}

// apply says what is offered of the devices, by resource, and in words what
// cannot be.
func (r Rules) apply(statuses []device.Status) (offers map[string]*offer, cannot []string) {
	byName := map[string][]device.Status{}
	chosen, cannot := r.choose(statuses)
	for _, s := range chosen {
		name := r.name(s.Device)
		byName[name] = append(byName[name], s)
	}
	offers = map[string]*offer{}
	for name, all := range byName {
		r.share(offers, name, all)
	}
	for _, name := range slices.Sorted(maps.Keys(offers)) {
		o := offers[name]
		if o.bytes > mostBytes {
			delete(offers, name)
			cannot = append(cannot, fmt.Sprintf("%s would have %d ids, and the kubelet reads a list of %d MiB, which is %d of these ids: use fewer replicas",
				name, o.ids, maxMessage>>20, o.ids*mostBytes/o.bytes))
			continue
		}
		o.sort()
	}
	return offers, cannot
}

func (r Rules) name(d device.Device) string {
	switch {
	case r.Name != nil:
		return r.Name(d)
	case !d.WholeGPU() && r.MIG == MIGMixed:
		return "nvidia.com/mig-" + strings.ReplaceAll(d.Profile, "+", ".")
	default:
		return wholeGPU
	}
}

// Offered is a resource and the ids of it.
type Offered struct {
	Resource string
	IDs      []device.OfferedID
}

// Preview says what would be offered of these devices, by resource, and in words
// what cannot be.
func (r Rules) Preview(statuses []device.Status) (all []Offered, cannot []string) {
	offers, cannot := r.apply(statuses)
	for _, resource := range slices.Sorted(maps.Keys(offers)) {
		o := Offered{Resource: resource}
		for _, i := range offers[resource].items {
			o.IDs = append(o.IDs, i.id)
		}
		all = append(all, o)
	}
	return all, cannot
}

// choose leaves out what is not offered: a GPU and its own slices never are at
// the same time.
func (r Rules) choose(statuses []device.Status) (chosen []device.Status, cannot []string) {
	profiles := map[string]bool{}
	whole := false
	for _, s := range statuses {
		switch {
		case r.Selected != nil && !r.Selected(s.Device):
		case s.Unallocatable(statuses) == device.NoMIGDevices:
			cannot = append(cannot, fmt.Sprintf("%s has MIG mode on and no MIG device: create MIG devices, or turn MIG mode off", s.ID))
		case s.MIG && r.MIG == MIGNone:
			cannot = append(cannot, fmt.Sprintf("%s is partitioned, and the MIG strategy none offers neither it nor its slices", s.ID))
		case s.MIG || !s.WholeGPU() && r.MIG == MIGNone:
		default:
			chosen = append(chosen, s)
			if whole = whole || s.WholeGPU(); !s.WholeGPU() {
				profiles[s.Profile] = true
			}
		}
	}
	if r.MIG != MIGSingle || len(profiles) == 0 || len(profiles) == 1 && !whole {
		return chosen, cannot
	}
	why := fmt.Sprintf("MIG slices with the strategy single want one profile on the whole node, and it has %d", len(profiles))
	if whole {
		why = "MIG slices with the strategy single want every GPU partitioned, and some are whole"
	}
	return slices.DeleteFunc(chosen, func(s device.Status) bool { return !s.WholeGPU() }), append(cannot, why)
}

// share adds the devices of one resource to what is offered.
func (r Rules) share(offers map[string]*offer, name string, all []device.Status) {
	shares := make([]Share, len(all))
	if r.Share != nil {
		devices := make([]device.Device, len(all))
		for i, s := range all {
			devices[i] = s.Device
		}
		shares = r.Share(name, devices)
	}
	for i, s := range all {
		share := shares[i]
		if share.Resource == "" || share.Replicas < 1 {
			share.Resource = name
		}
		o := offers[share.Resource]
		if o == nil {
			o = &offer{rules: r}
			offers[share.Resource] = o
		}
		if o.ids, o.bytes = o.ids+max(share.Replicas, 1), o.bytes+listed(s.Device, share.Replicas); o.bytes > mostBytes {
			o.items = nil // it is not offered, however many ids come yet
			continue
		}
		if share.Replicas < 1 {
			o.items = append(o.items, item{id: s.ID.Offered(), device: &all[i].Device, healthy: s.Healthy})
			continue
		}
		o.items = slices.Grow(o.items, share.Replicas)
		replica := item{device: &all[i].Device, onlyOne: share.OnlyOne, shared: true}
		if r.Down != nil {
			replica.down = r.Down(share.Resource)
		}
		replica.healthy = s.Healthy && replica.down == ""
		for n := range share.Replicas {
			replica.id = s.ID.Replica(n)
			o.items = append(o.items, replica)
		}
	}
}
