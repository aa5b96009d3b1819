package config

import "slices"

// SharingConfig says which devices are offered several times over, and how their
// holders get along. At most one of the two has Resources.
type SharingConfig struct{ TimeSlicing, MPS SharingMethod }

// Active is what is shared, and whether through MPS. With no Resources, nothing
// is.
func (s SharingConfig) Active() (shared SharingMethod, mps bool) {
	if len(s.MPS.Resources) > 0 {
		return s.MPS, true
	}
	return s.TimeSlicing, false
}

// SharingMethod says what is shared in one way.
type SharingMethod struct {
	RenameByDefault            bool // ".shared" after the name
	FailRequestsGreaterThanOne bool
	Resources                  []SharedResource
}

// SharedResource makes replicas of devices that are offered as one resource.
type SharedResource struct {
	Name     string
	Rename   string // what the replicas are offered as; empty: Name
	Devices  DeviceSelection
	Replicas int // 2 or more
}

// DeviceSelection says which devices of a resource are meant: All, the Count first ones,
// or those on the List. The zero Devices means none.
type DeviceSelection struct {
	All   bool
	Count int
	List  []DeviceSelector
}

// DeviceReplicas is how one device is offered.
type DeviceReplicas struct {
	Resource string
	Replicas int // 0: it is not shared
}

// maxReplicas is more than any device can have: the kubelet reads lists of up to 4 MiB, and
// an id takes at least 62 bytes. How many fit is known only with the node's devices
// (plugin/rules.go).
const maxReplicas = 1 << 16

// ReplicasFor says how each of the devices is offered that have this resource, in
// their order. An entry that names a device beats one that names its model, that
// one which counts devices, and that one which takes all. Among equals the most
// replicas hold: so does the union that NVIDIA's plugin makes of them.
func (s SharingMethod) ReplicasFor(resource string, devices []DeviceIdentity) []DeviceReplicas {
	replicas := make([]DeviceReplicas, len(devices))
	ranks := make([]int, len(devices))
	for i := range replicas {
		replicas[i].Resource = resource
	}
	for _, r := range s.Resources {
		if r.Name != resource {
			continue
		}
		for i, rank := range r.Devices.ranks(devices) {
			if rank == 0 || rank < ranks[i] || rank == ranks[i] && r.Replicas <= replicas[i].Replicas {
				continue
			}
			ranks[i] = rank
			replicas[i] = DeviceReplicas{Resource: resource, Replicas: r.Replicas}
			if r.Rename != "" {
				replicas[i].Resource = r.Rename
			}
		}
	}
	return replicas
}

// How closely an entry means a device.
const (
	rankAll = iota + 1
	rankCount
	rankModel
	rankExact
)

// ranks says how closely each device is meant, 0 being not at all. A device that
// is listed and not there is none of this node's: one file serves many nodes.
func (d DeviceSelection) ranks(devices []DeviceIdentity) []int {
	ranks := make([]int, len(devices))
	order := byIndex(devices)
	for i, device := range devices {
		switch {
		case d.All:
			ranks[i] = rankAll
		case slices.Contains(order[:min(d.Count, len(order))], i):
			ranks[i] = rankCount
		}
		for _, selector := range d.List {
			if selector.Matches(device) && selector.isExact() {
				ranks[i] = rankExact
			} else if selector.Matches(device) {
				ranks[i] = max(ranks[i], rankModel)
			}
		}
	}
	return ranks
}

// byIndex orders devices as a count takes them: by GPU, then by slice. (To
// NVIDIA's plugin the first ones are whichever a Go map has first.)
func byIndex(devices []DeviceIdentity) []int {
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return compareIndex(devices[a].Index, devices[b].Index)
	})
	return order
}
