package podresources

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/device"
	"google.golang.org/protobuf/encoding/protowire"
)

// given is what an answer has of resources, a row each. The next answer is read into the
// same memory, so nothing of it outlasts the next.
type given struct {
	devices []device.HeldDevice
	cpus    []device.HeldCPUs
	memory  []device.HeldMemory
	claims  []device.Claim

	// The rows' slices are parts of these. Where one of these grows, parts that were cut
	// before stay where they are.
	nodes   []int
	numbers []int64
	cdi     []string
}

func (g *given) reset() {
	g.devices, g.cpus, g.memory, g.claims = g.devices[:0], g.cpus[:0], g.memory[:0], g.claims[:0]
	g.nodes, g.numbers, g.cdi = g.nodes[:0], g.numbers[:0], g.cdi[:0]
}

// mark is how far a given has been filled.
type mark struct{ devices, numbers, memory, claims int }

func (g *given) mark() mark {
	return mark{len(g.devices), len(g.numbers), len(g.memory), len(g.claims)}
}

// belongTo says whose the rows are that came since the mark.
func (g *given) belongTo(owner device.Owner, from mark) {
	for i := range g.devices[from.devices:] {
		g.devices[from.devices+i].Owner = owner
	}
	for i := range g.memory[from.memory:] {
		g.memory[from.memory+i].Owner = owner
	}
	for i := range g.claims[from.claims:] {
		g.claims[from.claims+i].Owner = owner
	}
	if cpus := cut(g.numbers, from.numbers); cpus != nil {
		slices.Sort(cpus)
		g.cpus = append(g.cpus, device.HeldCPUs{Owner: owner, CPUs: slices.Compact(cpus)})
	}
}

// cut is what was appended since, as a slice that no append writes to; nil where that is
// nothing.
func cut[T any](all []T, since int) []T {
	if len(all) == since {
		return nil
	}
	return all[since:len(all):len(all)]
}

// The numbers of the fields of what is given.
const (
	devicesResource  = 1
	devicesIDs       = 2
	devicesTopology  = 3
	topologyNodes    = 1
	nodeID           = 1
	memoryType       = 1
	memorySize       = 2
	memoryTopology   = 3
	claimName        = 2
	claimNamespace   = 3
	claimResources   = 4
	resourceCDI      = 1
	resourceDriver   = 2
	resourcePool     = 3
	resourceDevice   = 4
	resourceShare    = 5
	cdiName          = 1
	allocatableList  = 1
	allocatableCPUs  = 2
	allocatableBlock = 3
)

// addDevices adds a row for each id.
func (g *given) addDevices(b []byte, names interner) error {
	var resource []byte
	from, nodesFrom := len(g.devices), len(g.nodes)
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case devicesResource:
			resource = value
		case devicesIDs:
			g.devices = append(g.devices, device.HeldDevice{ResourceDevice: device.ResourceDevice{ID: names.of(value)}})
		case devicesTopology:
			return g.addNodes(value)
		}
		return nil
	})
	if from == len(g.devices) {
		return err
	}
	name, nodes := names.of(resource), g.nodesSince(nodesFrom)
	for i := range g.devices[from:] {
		d := &g.devices[from+i]
		d.Resource, d.NUMANodes = name, nodes
	}
	return err
}

func (g *given) addNodes(b []byte) error {
	return fields(b, func(number protowire.Number, node []byte) error {
		if number != topologyNodes {
			return nil
		}
		id := 0 // of a node without a number
		err := walk(node, func(protowire.Number, []byte) error { return nil }, func(number protowire.Number, value uint64) {
			if number == nodeID {
				id = int(int64(value))
			}
		})
		g.nodes = append(g.nodes, id)
		return err
	})
}

// nodesSince are NUMA nodes in their order, each once.
func (g *given) nodesSince(since int) []int {
	nodes := cut(g.nodes, since)
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func (g *given) addMemory(b []byte, names interner) error {
	var kind []byte
	var size uint64
	nodesFrom := len(g.nodes)
	err := walk(b, func(number protowire.Number, value []byte) error {
		switch number {
		case memoryType:
			kind = value
		case memoryTopology:
			return g.addNodes(value)
		}
		return nil
	}, func(number protowire.Number, value uint64) {
		if number == memorySize {
			size = value
		}
	})
	m := device.Memory{Type: names.of(kind), Bytes: size, NUMANodes: g.nodesSince(nodesFrom)}
	g.memory = append(g.memory, device.HeldMemory{Memory: m})
	return err
}

// addClaims adds a row for each device of a claim.
func (g *given) addClaims(b []byte, names interner) error {
	var claim, namespace []byte
	from := len(g.claims)
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case claimName:
			claim = value
		case claimNamespace:
			namespace = value
		case claimResources:
			return g.addClaim(value, names)
		}
		return nil
	})
	for i := range g.claims[from:] {
		c := &g.claims[from+i]
		c.ClaimNamespace, c.ClaimName = names.of(namespace), names.of(claim)
	}
	return err
}

func (g *given) addClaim(b []byte, names interner) error {
	var c device.Claim
	from := len(g.cdi)
	err := fields(b, func(number protowire.Number, value []byte) error {
		switch number {
		case resourceCDI:
			return g.addCDI(value, names)
		case resourceDriver:
			c.Driver = names.of(value)
		case resourcePool:
			c.Pool = names.of(value)
		case resourceDevice:
			c.Device = names.of(value)
		case resourceShare:
			c.Share = names.of(value)
		}
		return nil
	})
	c.CDI = cut(g.cdi, from)
	g.claims = append(g.claims, c)
	return err
}

func (g *given) addCDI(b []byte, names interner) error {
	name := ""
	err := fields(b, func(number protowire.Number, value []byte) error {
		if number == cdiName {
			name = names.of(value)
		}
		return nil
	})
	g.cdi = append(g.cdi, name)
	return err
}

// order sorts the rows, and makes one of those of one thing: a device is listed once for
// each of its NUMA nodes, two requests of a claim may have been given the same, and two
// pods of one name are listed while the one is made in the place of the other.
func (g *given) order() {
	slices.SortFunc(g.devices, device.HeldDevice.Compare)
	slices.SortFunc(g.cpus, device.HeldCPUs.Compare)
	slices.SortFunc(g.memory, device.HeldMemory.Compare)
	slices.SortFunc(g.claims, device.Claim.Compare)
	g.devices = merged(g.devices, func(d *device.HeldDevice, e device.HeldDevice) bool {
		same := d.Owner == e.Owner && d.Resource == e.Resource && d.ID == e.ID
		if same {
			d.NUMANodes = union(&g.nodes, d.NUMANodes, e.NUMANodes)
		}
		return same
	})
	g.cpus = merged(g.cpus, func(c *device.HeldCPUs, d device.HeldCPUs) bool {
		same := c.Owner == d.Owner
		if same {
			c.CPUs = union(&g.numbers, c.CPUs, d.CPUs)
		}
		return same
	})
	g.memory = merged(g.memory, func(m *device.HeldMemory, n device.HeldMemory) bool {
		same := m.Owner == n.Owner && m.Type == n.Type && slices.Equal(m.NUMANodes, n.NUMANodes)
		if same {
			m.Bytes += n.Bytes
		}
		return same
	})
	g.claims = merged(g.claims, func(c *device.Claim, d device.Claim) bool {
		a, b := *c, d
		a.CDI, b.CDI = nil, nil
		same := a.Compare(b) == 0
		if same && !slices.Equal(c.CDI, d.CDI) {
			c.CDI = union(&g.cdi, c.CDI, d.CDI)
		}
		return same
	})
}

// merged makes one of rows that follow each other: into takes the second into the first,
// where both are of one thing.
func merged[T any](rows []T, into func(first *T, second T) bool) []T {
	kept := rows[:0]
	for _, row := range rows {
		if last := len(kept) - 1; last < 0 || !into(&kept[last], row) {
			kept = append(kept, row)
		}
	}
	return kept
}

// union is what either has, in its order, as a part of all.
func union[T cmp.Ordered](all *[]T, a, b []T) []T {
	from := len(*all)
	*all = append(append(*all, a...), b...)
	either := cut(*all, from)
	slices.Sort(either)
	return slices.Compact(either)
}
