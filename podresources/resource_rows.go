package podresources

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// resourceRows is what an answer has of resources, a row each. The next answer is read into the
// same memory, so nothing of it outlasts the next.
type resourceRows struct {
	devices []device.AllocatedDevice
	cpus    []device.AllocatedCPUs
	memory  []device.AllocatedMemory
	claims  []device.Claim
	foreign foreignIDs

	// The rows' slices are parts of these. Where one of these grows, parts that were cut
	// before stay where they are.
	numaNodes []int
	cpuIDs    []int64
	cdiNames  []string
}

func (r *resourceRows) reset() {
	r.devices, r.cpus, r.memory, r.claims = r.devices[:0], r.cpus[:0], r.memory[:0], r.claims[:0]
	r.numaNodes, r.cpuIDs, r.cdiNames = r.numaNodes[:0], r.cpuIDs[:0], r.cdiNames[:0]
	r.foreign.startResponse()
}

// rowOffsets is how far a given has been filled.
type rowOffsets struct{ devices, cpuIDs, memory, claims int }

func (r *resourceRows) offsets() rowOffsets {
	return rowOffsets{len(r.devices), len(r.cpuIDs), len(r.memory), len(r.claims)}
}

// setOwner says whose the rows are that came since the mark.
func (r *resourceRows) setOwner(owner device.Owner, start rowOffsets) {
	for i := range r.devices[start.devices:] {
		r.devices[start.devices+i].Owner = owner
	}
	for i := range r.memory[start.memory:] {
		r.memory[start.memory+i].Owner = owner
	}
	for i := range r.claims[start.claims:] {
		r.claims[start.claims+i].Owner = owner
	}
	if cpus := tail(r.cpuIDs, start.cpuIDs); cpus != nil {
		slices.Sort(cpus)
		r.cpus = append(r.cpus, device.AllocatedCPUs{Owner: owner, CPUs: slices.Compact(cpus)})
	}
}

// tail is what was appended since, as a slice that no append writes to; nil where that is
// nothing.
func tail[T any](all []T, start int) []T {
	if len(all) == start {
		return nil
	}
	return all[start:len(all):len(all)]
}

// The fields of what is given.
const (
	devicesResource = 1<<3 | wire.Length
	devicesIDs      = 2<<3 | wire.Length
	devicesTopology = 3<<3 | wire.Length

	topologyNodes = 1<<3 | wire.Length
	nodeID        = 1<<3 | wire.Varint

	memoryType     = 1<<3 | wire.Length
	memorySize     = 2<<3 | wire.Varint
	memoryTopology = 3<<3 | wire.Length

	claimName      = 2<<3 | wire.Length
	claimNamespace = 3<<3 | wire.Length
	claimResources = 4<<3 | wire.Length

	resourceCDI    = 1<<3 | wire.Length
	resourceDriver = 2<<3 | wire.Length
	resourcePool   = 3<<3 | wire.Length
	resourceDevice = 4<<3 | wire.Length
	resourceShare  = 5<<3 | wire.Length

	cdiName = 1<<3 | wire.Length
)

// addDevices adds a row for each id.
func (r *resourceRows) addDevices(b []byte, interner wire.Interner) error {
	var resource []byte
	start, nodesStart := len(r.devices), len(r.numaNodes)
	err := wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == devicesResource { // it may come after the ids, and again: the last one counts
			resource = f.Bytes
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case devicesIDs:
			if r.foreign.admit(resource, f.Bytes) {
				r.devices = append(r.devices, device.AllocatedDevice{ResourceDevice: device.ResourceDevice{ID: interner.Intern(f.Bytes)}})
			}
		case devicesTopology:
			return r.addNodes(f.Bytes)
		}
		return nil
	})
	if start == len(r.devices) {
		return err
	}
	name, nodes := interner.Intern(resource), r.nodesSince(nodesStart)
	for i := range r.devices[start:] {
		d := &r.devices[start+i]
		d.Resource, d.NUMANodes = name, nodes
	}
	return err
}

func (r *resourceRows) addNodes(b []byte) error {
	return wire.WalkFields(b, func(node wire.Field) error {
		if node.Tag != topologyNodes {
			return nil
		}
		id := 0 // of a node without a number
		err := wire.WalkFields(node.Bytes, func(f wire.Field) error {
			if f.Tag == nodeID {
				id = int(int64(f.Value))
			}
			return nil
		})
		r.numaNodes = append(r.numaNodes, id)
		return err
	})
}

// nodesSince are NUMA nodes in their order, each once.
func (r *resourceRows) nodesSince(start int) []int {
	nodes := tail(r.numaNodes, start)
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (r *resourceRows) addMemory(b []byte, interner wire.Interner) error {
	var kind []byte
	var size uint64
	nodesStart := len(r.numaNodes)
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case memoryType:
			kind = f.Bytes
		case memorySize:
			size = f.Value
		case memoryTopology:
			return r.addNodes(f.Bytes)
		}
		return nil
	})
	m := device.Memory{Type: interner.Intern(kind), Bytes: size, NUMANodes: r.nodesSince(nodesStart)}
	r.memory = append(r.memory, device.AllocatedMemory{Memory: m})
	return err
}

// addClaims adds a row for each device of a claim.
func (r *resourceRows) addClaims(b []byte, interner wire.Interner) error {
	var claim, namespace []byte
	start := len(r.claims)
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case claimName:
			claim = f.Bytes
		case claimNamespace:
			namespace = f.Bytes
		case claimResources:
			return r.addClaim(f.Bytes, interner)
		}
		return nil
	})
	rows := r.claims[start:]
	for i := range rows {
		rows[i].ClaimNamespace, rows[i].ClaimName = interner.Intern(namespace), interner.Intern(claim)
	}
	trimCDI(rows)
	return err
}

func (r *resourceRows) addClaim(b []byte, interner wire.Interner) error {
	var c device.Claim
	start := len(r.cdiNames)
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case resourceCDI:
			return r.addCDI(f.Bytes, interner)
		case resourceDriver:
			c.Driver = interner.Intern(f.Bytes)
		case resourcePool:
			c.Pool = interner.Intern(f.Bytes)
		case resourceDevice:
			c.Device = interner.Intern(f.Bytes)
		case resourceShare:
			c.ShareID = interner.Intern(f.Bytes)
		}
		return nil
	})
	c.CDI = tail(r.cdiNames, start)
	r.claims = append(r.claims, c)
	return err
}

func (r *resourceRows) addCDI(b []byte, interner wire.Interner) error {
	name := ""
	err := wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == cdiName {
			name = interner.Intern(f.Bytes)
		}
		return nil
	})
	r.cdiNames = append(r.cdiNames, name)
	return err
}

// normalize sorts the rows, and makes one of those of one thing: a device is listed once for
// each of its NUMA nodes, two requests of a claim may have been given the same, and two
// pods of one name are listed while the one is made in the place of the other.
func (r *resourceRows) normalize() {
	slices.SortFunc(r.devices, device.AllocatedDevice.Compare)
	slices.SortFunc(r.cpus, device.AllocatedCPUs.Compare)
	slices.SortFunc(r.memory, device.AllocatedMemory.Compare)
	slices.SortFunc(r.claims, device.Claim.Compare)
	r.devices = mergeAdjacent(r.devices, func(d *device.AllocatedDevice, e device.AllocatedDevice) bool {
		same := d.Owner == e.Owner && d.Resource == e.Resource && d.ID == e.ID
		if same {
			d.NUMANodes = union(&r.numaNodes, d.NUMANodes, e.NUMANodes)
		}
		return same
	})
	r.cpus = mergeAdjacent(r.cpus, func(c *device.AllocatedCPUs, d device.AllocatedCPUs) bool {
		same := c.Owner == d.Owner
		if same {
			c.CPUs = union(&r.cpuIDs, c.CPUs, d.CPUs)
		}
		return same
	})
	r.memory = mergeAdjacent(r.memory, func(m *device.AllocatedMemory, n device.AllocatedMemory) bool {
		same := m.Owner == n.Owner && m.Type == n.Type && slices.Equal(m.NUMANodes, n.NUMANodes)
		if same {
			m.Bytes += n.Bytes
		}
		return same
	})
	r.claims = mergeAdjacent(r.claims, func(c *device.Claim, d device.Claim) bool {
		a, b := *c, d
		a.CDI, b.CDI = nil, nil
		same := a.Compare(b) == 0
		if same && !slices.Equal(c.CDI, d.CDI) {
			c.CDI = union(&r.cdiNames, c.CDI, d.CDI)
		}
		return same
	})
}

// mergeAdjacent makes one of rows that follow each other: into takes the second into the first,
// where both are of one thing.
func mergeAdjacent[T any](rows []T, merge func(first *T, second T) bool) []T {
	kept := rows[:0]
	for _, row := range rows {
		if last := len(kept) - 1; last < 0 || !merge(&kept[last], row) {
			kept = append(kept, row)
		}
	}
	return kept
}

// union is what either has, in its order, as a part of all.
func union[T cmp.Ordered](all *[]T, a, b []T) []T {
	start := len(*all)
	*all = append(append(*all, a...), b...)
	either := tail(*all, start)
	slices.Sort(either)
	return slices.Compact(either)
}
