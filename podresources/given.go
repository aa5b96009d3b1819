package podresources

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// given is what an answer has of resources, a row each. The next answer is read into the
// same memory, so nothing of it outlasts the next.
type given struct {
	devices []device.HeldDevice
	cpus    []device.HeldCPUs
	memory  []device.HeldMemory
	claims  []device.Claim
	foreign foreignIDs

	// The rows' slices are parts of these. Where one of these grows, parts that were cut
	// before stay where they are.
	nodes   []int
	numbers []int64
	cdi     []string
}

func (g *given) reset() {
	g.devices, g.cpus, g.memory, g.claims = g.devices[:0], g.cpus[:0], g.memory[:0], g.claims[:0]
	g.nodes, g.numbers, g.cdi = g.nodes[:0], g.numbers[:0], g.cdi[:0]
	g.foreign.begin()
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
func (g *given) addDevices(b []byte, names wire.Names) error {
	var resource []byte
	from, nodesFrom := len(g.devices), len(g.nodes)
	err := wire.Fields(b, func(f wire.Field) error {
		if f.Tag == devicesResource { // it may come after the ids, and again: the last one counts
			resource = f.Bytes
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = wire.Fields(b, func(f wire.Field) error {
		switch f.Tag {
		case devicesIDs:
			if g.foreign.takes(resource, f.Bytes) {
				g.devices = append(g.devices, device.HeldDevice{ResourceDevice: device.ResourceDevice{ID: names.Of(f.Bytes)}})
			}
		case devicesTopology:
			return g.addNodes(f.Bytes)
		}
		return nil
	})
	if from == len(g.devices) {
		return err
	}
	name, nodes := names.Of(resource), g.nodesSince(nodesFrom)
	for i := range g.devices[from:] {
		d := &g.devices[from+i]
		d.Resource, d.NUMANodes = name, nodes
	}
	return err
}

func (g *given) addNodes(b []byte) error {
	return wire.Fields(b, func(node wire.Field) error {
		if node.Tag != topologyNodes {
			return nil
		}
		id := 0 // of a node without a number
		err := wire.Fields(node.Bytes, func(f wire.Field) error {
			if f.Tag == nodeID {
				id = int(int64(f.Number))
			}
			return nil
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

func (g *given) addMemory(b []byte, names wire.Names) error {
	var kind []byte
	var size uint64
	nodesFrom := len(g.nodes)
	err := wire.Fields(b, func(f wire.Field) error {
		switch f.Tag {
		case memoryType:
			kind = f.Bytes
		case memorySize:
			size = f.Number
		case memoryTopology:
			return g.addNodes(f.Bytes)
		}
		return nil
	})
	m := device.Memory{Type: names.Of(kind), Bytes: size, NUMANodes: g.nodesSince(nodesFrom)}
	g.memory = append(g.memory, device.HeldMemory{Memory: m})
	return err
}

// addClaims adds a row for each device of a claim.
func (g *given) addClaims(b []byte, names wire.Names) error {
	var claim, namespace []byte
	from := len(g.claims)
	err := wire.Fields(b, func(f wire.Field) error {
		switch f.Tag {
		case claimName:
			claim = f.Bytes
		case claimNamespace:
			namespace = f.Bytes
		case claimResources:
			return g.addClaim(f.Bytes, names)
		}
		return nil
	})
	rows := g.claims[from:]
	for i := range rows {
		rows[i].ClaimNamespace, rows[i].ClaimName = names.Of(namespace), names.Of(claim)
	}
	trimCDI(rows)
	return err
}

func (g *given) addClaim(b []byte, names wire.Names) error {
	var c device.Claim
	from := len(g.cdi)
	err := wire.Fields(b, func(f wire.Field) error {
		switch f.Tag {
		case resourceCDI:
			return g.addCDI(f.Bytes, names)
		case resourceDriver:
			c.Driver = names.Of(f.Bytes)
		case resourcePool:
			c.Pool = names.Of(f.Bytes)
		case resourceDevice:
			c.Device = names.Of(f.Bytes)
		case resourceShare:
			c.Share = names.Of(f.Bytes)
		}
		return nil
	})
	c.CDI = cut(g.cdi, from)
	g.claims = append(g.claims, c)
	return err
}

func (g *given) addCDI(b []byte, names wire.Names) error {
	name := ""
	err := wire.Fields(b, func(f wire.Field) error {
		if f.Tag == cdiName {
			name = names.Of(f.Bytes)
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
