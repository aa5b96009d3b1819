package config

import "slices"

// Sharing says which devices are offered several times over, and how their
// holders get along. At most one of the two has Resources.
type Sharing struct{ TimeSlicing, MPS Shared }

// Active is what is shared, and whether through MPS. With no Resources, nothing
// is.
func (s Sharing) Active() (shared Shared, mps bool) {
	if len(s.MPS.Resources) > 0 {
		return s.MPS, true
	}
	return s.TimeSlicing, false
}

// Shared says what is shared in one way.
type Shared struct {
	RenameByDefault            bool // ".shared" after the name
	FailRequestsGreaterThanOne bool
	Resources                  []SharedResource
}

// SharedResource makes replicas of devices that are offered as one resource.
type SharedResource struct {
	Name     string
	Rename   string // what the replicas are offered as; empty: Name
	Devices  Devices
	Replicas int // 2 or more
}

// Devices says which devices of a resource are meant: All, the Count first ones,
// or those on the List. The zero Devices means none.
type Devices struct {
	All   bool
	Count int
	List  []Ref
}

// Share is how one device is offered.
type Share struct {
	Resource string
	Replicas int // 0: it is not shared
}

// mostReplicas is more than any device can have: the kubelet reads lists of up to 4 MiB, and
// an id takes at least 62 bytes. How many fit is known only with the node's devices
// (plugin/rules.go).
const mostReplicas = 1 << 16

// Shares says how each of the devices is offered that have this resource, in
// their order. An entry that names a device beats one that names its model, that
// one which counts devices, and that one which takes all. Among equals the most
// replicas hold: so does the union that NVIDIA's plugin makes of them.
func (s Shared) Shares(resource string, devices []Device) []Share {
	shares := make([]Share, len(devices))
	ranks := make([]int, len(devices))
	for i := range shares {
		shares[i].Resource = resource
	}
	for _, r := range s.Resources {
		if r.Name != resource {
			continue
		}
		for i, rank := range r.Devices.ranks(devices) {
			if rank == 0 || rank < ranks[i] || rank == ranks[i] && r.Replicas <= shares[i].Replicas {
				continue
			}
			ranks[i] = rank
			shares[i] = Share{Resource: resource, Replicas: r.Replicas}
			if r.Rename != "" {
				shares[i].Resource = r.Rename
			}
		}
	}
	return shares
}

// How closely an entry means a device.
const (
	rankAll = iota + 1
	rankCount
	rankModel
	rankNamed
)

// ranks says how closely each device is meant, 0 being not at all. A device that
// is listed and not there is none of this node's: one file serves many nodes.
func (d Devices) ranks(devices []Device) []int {
	ranks := make([]int, len(devices))
	order := byIndex(devices)
	for i, device := range devices {
		switch {
		case d.All:
			ranks[i] = rankAll
		case slices.Contains(order[:min(d.Count, len(order))], i):
			ranks[i] = rankCount
		}
		for _, ref := range d.List {
			if ref.Matches(device) && ref.names() {
				ranks[i] = rankNamed
			} else if ref.Matches(device) {
				ranks[i] = max(ranks[i], rankModel)
			}
		}
	}
	return ranks
}

// byIndex orders devices as a count takes them: by GPU, then by slice. (To
// NVIDIA's plugin the first ones are whichever a Go map has first.)
func byIndex(devices []Device) []int {
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return compareIndex(devices[a].Index, devices[b].Index)
	})
	return order
}
