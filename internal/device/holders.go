package device

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Owner is the container that holds a device. The zero Owner is nobody.
type Owner struct{ Namespace, Pod, Container string }

// CompareHoldings is the order of Holders.Held.
func CompareHoldings(a, b Holding) int {
	return cmp.Or(cmp.Compare(a.Offered.Device(), b.Offered.Device()), cmp.Compare(a.Offered, b.Offered),
		cmp.Compare(a.Resource, b.Resource), a.Owner.Compare(b.Owner))
}

// Compare orders owners by namespace, pod and container.
func (o Owner) Compare(p Owner) int {
	return cmp.Or(cmp.Compare(o.Namespace, p.Namespace), cmp.Compare(o.Pod, p.Pod), cmp.Compare(o.Container, p.Container))
}

// Common returns what two owners share: the container, its pod without a container, or
// nothing.
func (o Owner) Common(p Owner) Owner {
	switch {
	case o == p:
		return o
	case o.Namespace == p.Namespace && o.Pod == p.Pod:
		return Owner{Namespace: o.Namespace, Pod: o.Pod}
	}
	return Owner{}
}

// Holding says that a container holds an offered id. An Owner without a name is
// an allocation that the kubelet has not named: that of an init container never
// is.
type Holding struct {
	// Resource is the plugin's, "nvidia.com/gpu", or, where the device was claimed, the
	// claim's driver, "gpu.nvidia.com": the name of a plugin's resource has a slash, and
	// that of a driver has none.
	Resource string
	Offered  OfferedID
	Owner    Owner
}

// Claimed reports whether a container has the device by Dynamic Resource Allocation: the
// resource is then the name of a driver, a DNS name, and that of a device plugin has a slash
// (IsExtendedResourceName in pkg/apis/core/v1/helper/helpers.go).
func (h Holding) Claimed() bool { return !strings.Contains(h.Resource, "/") }

// Seen says when a container was first and last seen to hold a device. One that had it,
// lost it and has it again is seen anew.
type Seen struct {
	Device ID
	Owner  Owner
	// First is when it was allocated, where that was told, and else when it was first named:
	// it held the device from then on for sure. Last is when it was named last.
	First, Last time.Time
	// Ended is when it was first known to hold the device no more; zero while it does.
	Ended time.Time
}

// Holders is what is known of who holds what, at one moment. It is never written
// after it was published.
type Holders struct {
	// At is when the kubelet gave the answer that the rest is drawn from. Zero
	// is never: then nothing is known.
	At time.Time
	// Err is why the newest question was not answered; nil when it was.
	Err error
	// Held has one row per offered id and container, ordered by device, id and
	// owner.
	Held []Holding
	// Settled says that an id which no row names is held by nobody. Until it
	// first is, such an id is unknown.
	Settled bool
	// Recent are the last containers of each device, those of now included.
	Recent []Seen
	// Resources are of the same answer, but for what is allocatable, which is asked for
	// more seldom. As long as nothing in one of its slices changes, it is the same slice.
	Resources Resources
}

// Hold is the state of one device.
type Hold uint8

// The states of a device.
const (
	Unknown Hold = iota // nobody can say yet: not shown at all
	Idle                // held by nobody
	Held                // held by one container
	Shared              // held by several
	Unnamed             // allocated, and the kubelet names nobody
)

// Of returns the state of a device and its owner. The Owner of a Shared device is what its
// owners share: their pod, or nothing. Allocations by a device plugin decide, and claims only where there are none:
// the PodResources API does not show whether a claim has admin access, as that of a
// monitoring pod on all GPUs, so a claim takes no device from its owner.
func (h Holders) Of(id ID) (Hold, Owner) {
	rows := h.Rows(id)
	if len(rows) == 0 {
		if h.Settled {
			return Idle, Owner{}
		}
		return Unknown, Owner{}
	}
	claims := !slices.ContainsFunc(rows, func(r Holding) bool { return !r.Claimed() })
	state := Unknown
	var owner Owner
	for _, r := range rows {
		switch {
		case r.Claimed() != claims:
		case state == Unknown:
			state, owner = Held, r.Owner
		case r.Owner != owner:
			state, owner = Shared, owner.Common(r.Owner)
		}
	}
	if state == Held && owner == (Owner{}) {
		return Unnamed, owner
	}
	return state, owner
}

// Offered are the ids of a resource that containers hold.
func (h Holders) Offered(resource string) (ids []OfferedID) {
	for _, r := range h.Held {
		if r.Resource == resource {
			ids = append(ids, r.Offered)
		}
	}
	return ids
}

// Rows are the holdings of a device.
func (h Holders) Rows(id ID) []Holding {
	start, _ := slices.BinarySearchFunc(h.Held, id, func(r Holding, id ID) int {
		return cmp.Compare(r.Offered.Device(), id)
	})
	end := start
	for end < len(h.Held) && h.Held[end].Offered.Device() == id {
		end++
	}
	return h.Held[start:end]
}
