package config

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// SharingConfig configures the replicas of devices. At most one of the two methods has Resources.
type SharingConfig struct{ TimeSlicing, MPS SharingMethod }

// Active returns the method with Resources, and whether the method is MPS. Without Resources, no device is shared.
func (s SharingConfig) Active() (method SharingMethod, mps bool) {
	if len(s.MPS.Resources) > 0 {
		return s.MPS, true
	}
	return s.TimeSlicing, false
}

// SharingMethod has the shared resources of a method.
type SharingMethod struct {
	RenameByDefault            bool // adds ".shared" to the name
	FailRequestsGreaterThanOne bool
	Resources                  []SharedResource
}

// SharedResource makes replicas of a resource's devices.
type SharedResource struct {
	Name     string
	Rename   string // resource of the replicas; empty: Name
	Devices  DeviceSelection
	Replicas int // 2 or more
}

// DeviceSelection selects devices of a resource: All, the first Count, or the List. The zero value selects no device.
type DeviceSelection struct {
	All   bool
	Count int
	List  []DeviceSelector
}

// DeviceReplicas is the resource of a device, and the number of replicas.
type DeviceReplicas struct {
	Resource string
	Replicas int // 0: not shared
}

// maxReplicas is above the limit of any device: the kubelet reads lists of up to 4 MiB, and an id takes at least 62 bytes. The
// limit of a node depends on its devices (plugin/rules.go).
const maxReplicas = 1 << 16

// Precedence of an entry for a device: the closer the selection, the higher.
const (
	rankAll = iota + 1
	rankCount
	rankModel
	rankExact
)

// ReplicasFor returns the replicas of each device of a resource. The entry of the highest rank counts; of equal ranks, the entry with
// the most replicas, as in NVIDIA's plugin.
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
			if rank > ranks[i] || rank > 0 && rank == ranks[i] && r.Replicas > replicas[i].Replicas {
				ranks[i], replicas[i] = rank, DeviceReplicas{cmp.Or(r.Rename, resource), r.Replicas}
			}
		}
	}
	return replicas
}

// ranks returns how closely each device is selected; 0: not at all. The node may lack listed devices, because a file serves many
// nodes.
func (d DeviceSelection) ranks(devices []DeviceIdentity) []int {
	ranks := make([]int, len(devices))
	for n, i := range byIndex(devices) {
		switch {
		case d.All:
			ranks[i] = rankAll
		case n < d.Count:
			ranks[i] = rankCount
		}
		for _, selector := range d.List {
			if selector.Matches(devices[i]) && selector.isExact() {
				ranks[i] = rankExact
			} else if selector.Matches(devices[i]) {
				ranks[i] = max(ranks[i], rankModel)
			}
		}
	}
	return ranks
}

// byIndex orders devices by GPU, then by MIG index. NVIDIA's plugin counts in the random order of a Go map.
func byIndex(devices []DeviceIdentity) []int {
	order := make([]int, len(devices))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return slices.Compare(indexNumbers(devices[a].Index), indexNumbers(devices[b].Index))
	})
	return order
}

func indexNumbers(index string) (numbers []int) {
	for part := range strings.SplitSeq(index, ":") {
		n, _ := strconv.Atoi(part) //nolint:errcheck // an unknown index counts as 0
		numbers = append(numbers, n)
	}
	return numbers
}
