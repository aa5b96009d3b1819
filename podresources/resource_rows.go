package podresources

import (
	"cmp"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// maxInternedNames limits the strings kept from response to response.
const maxInternedNames = 4096

// resourceRows are the resources of a response. The next response reuses the memory, so rows are copied before publication.
type resourceRows struct {
	devices []device.AllocatedDevice
	cpus    []device.AllocatedCPUs
	memory  []device.AllocatedMemory
	claims  []device.Claim
	foreign foreignIDs

	interner wire.Interner // kept from response to response

	// The slices within rows are parts of the slices below. Growth leaves earlier parts in place.
	numaNodes []int
	cpuIDs    []int64
	cdiNames  []string
}

func newResourceRows() resourceRows {
	return resourceRows{interner: wire.NewInterner(maxInternedNames)}
}

func (r *resourceRows) reset() {
	r.devices, r.cpus, r.memory, r.claims = r.devices[:0], r.cpus[:0], r.memory[:0], r.claims[:0]
	r.numaNodes, r.cpuIDs, r.cdiNames = r.numaNodes[:0], r.cpuIDs[:0], r.cdiNames[:0]
	r.foreign.startResponse()
}

// rowOffsets are the numbers of rows at a point of the response.
type rowOffsets struct{ devices, cpuIDs, memory, claims int }

func (r *resourceRows) offsets() rowOffsets {
	return rowOffsets{len(r.devices), len(r.cpuIDs), len(r.memory), len(r.claims)}
}

// setOwner sets the owner of the rows since start.
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
	if cpus := sortedTail(r.cpuIDs, start.cpuIDs); cpus != nil {
		r.cpus = append(r.cpus, device.AllocatedCPUs{Owner: owner, CPUs: cpus})
	}
}

// tail returns the elements since start, as a slice without spare capacity; nil if empty.
func tail[T any](all []T, start int) []T {
	if len(all) == start {
		return nil
	}
	return all[start:len(all):len(all)]
}

// sortedTail returns the elements since start, sorted and without duplicates.
func sortedTail[T cmp.Ordered](all []T, start int) []T {
	part := tail(all, start)
	slices.Sort(part)
	return slices.Compact(part)
}

// dropForeignDevices ends a response, drops the ids of resources newly above maxForeignIDs, and reports whether there were any.
func (r *resourceRows) dropForeignDevices() bool {
	newlyDropped := r.foreign.finishResponse()
	if newlyDropped {
		r.devices = slices.DeleteFunc(r.devices, func(d device.AllocatedDevice) bool { return r.foreign.isDropped(d.Resource, device.AdvertisedID(d.ID)) })
	}
	return newlyDropped
}

// Numbers and names of fields follow k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.

// addDevices adds a row for each id.
func (r *resourceRows) addDevices(b []byte) error {
	start, nodesStart := len(r.devices), len(r.numaNodes)
	resource, err := wire.Last(b, 1<<3|wire.Length) // may follow the ids
	if err != nil {
		return err
	}
	err = wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case 2<<3 | wire.Length: // device_ids
			if r.foreign.admit(resource.Bytes, f.Bytes) {
				r.devices = append(r.devices, device.AllocatedDevice{ResourceDevice: device.ResourceDevice{ID: r.interner.Intern(f.Bytes)}})
			}
		case 3<<3 | wire.Length: // topology
			return r.addNodes(f.Bytes)
		}
		return nil
	})
	if start == len(r.devices) {
		return err
	}
	name, nodes := r.interner.Intern(resource.Bytes), sortedTail(r.numaNodes, nodesStart)
	for i := range r.devices[start:] {
		d := &r.devices[start+i]
		d.Resource, d.NUMANodes = name, nodes
	}
	return err
}

func (r *resourceRows) addNodes(b []byte) error {
	return wire.WalkTag(b, 1<<3|wire.Length, func(node wire.Field) error {
		id, err := wire.Last(node.Bytes, 1<<3|wire.Varint) // omitted if 0
		r.numaNodes = append(r.numaNodes, int(int64(id.Value)))
		return err
	})
}

func (r *resourceRows) addMemory(b []byte) error {
	var m device.AllocatedMemory
	nodesStart := len(r.numaNodes)
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case 1<<3 | wire.Length: // memory_type
			m.Type = r.interner.Intern(f.Bytes)
		case 2<<3 | wire.Varint: // size
			m.Bytes = f.Value
		case 3<<3 | wire.Length: // topology
			return r.addNodes(f.Bytes)
		}
		return nil
	})
	m.NUMANodes = sortedTail(r.numaNodes, nodesStart)
	r.memory = append(r.memory, m)
	return err
}

// addClaims adds a row for each device of a claim.
func (r *resourceRows) addClaims(b []byte) error {
	var claim, namespace string
	start := len(r.claims)
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case 2<<3 | wire.Length: // claim_name
			claim = r.interner.Intern(f.Bytes)
		case 3<<3 | wire.Length: // claim_namespace
			namespace = r.interner.Intern(f.Bytes)
		case 4<<3 | wire.Length: // claim_resources
			return r.addClaim(f.Bytes)
		}
		return nil
	})
	rows := r.claims[start:]
	for i := range rows {
		rows[i].ClaimNamespace, rows[i].ClaimName = namespace, claim
	}
	trimCDI(rows)
	return err
}

func (r *resourceRows) addClaim(b []byte) error {
	var c device.Claim
	start := len(r.cdiNames)
	err := wire.WalkFields(b, func(f wire.Field) error {
		switch f.Tag {
		case 1<<3 | wire.Length: // cdi_devices
			name, err := wire.Last(f.Bytes, 1<<3|wire.Length)
			r.cdiNames = append(r.cdiNames, r.interner.Intern(name.Bytes))
			return err
		case 2<<3 | wire.Length: // driver_name
			c.Driver = r.interner.Intern(f.Bytes)
		case 3<<3 | wire.Length: // pool_name
			c.Pool = r.interner.Intern(f.Bytes)
		case 4<<3 | wire.Length: // device_name
			c.Device = r.interner.Intern(f.Bytes)
		case 5<<3 | wire.Length: // share_id
			c.ShareID = r.interner.Intern(f.Bytes)
		}
		return nil
	})
	c.CDI = tail(r.cdiNames, start)
	r.claims = append(r.claims, c)
	return err
}

// trimCDI leaves each row of a claim the CDI names of the row's own device. The kubelet accumulates the names of a driver's devices, so
// each row begins with the names of the rows before (GetDynamicResources in pkg/kubelet/cm/container_manager_linux.go). Rows without this
// prefix stay unchanged.
func trimCDI(rows []device.Claim) {
	for i := len(rows) - 1; i > 0; i-- {
		before, row := &rows[i-1], &rows[i]
		n := len(before.CDI)
		if before.Driver == row.Driver && n <= len(row.CDI) && slices.Equal(row.CDI[:n], before.CDI) {
			row.CDI = row.CDI[n:]
		}
	}
}

// normalize sorts the rows and merges duplicates: a device has a row per NUMA node, two requests of a claim may have the same device, and a
// pod and its replacement of the same name are listed together for a moment.
func (r *resourceRows) normalize() {
	r.devices = mergeRows(r.devices, func(d *device.AllocatedDevice, e device.AllocatedDevice) bool {
		same := d.Owner == e.Owner && d.Resource == e.Resource && d.ID == e.ID
		if same {
			d.NUMANodes = union(&r.numaNodes, d.NUMANodes, e.NUMANodes)
		}
		return same
	})
	r.cpus = mergeRows(r.cpus, func(c *device.AllocatedCPUs, d device.AllocatedCPUs) bool {
		same := c.Owner == d.Owner
		if same {
			c.CPUs = union(&r.cpuIDs, c.CPUs, d.CPUs)
		}
		return same
	})
	r.memory = mergeRows(r.memory, func(m *device.AllocatedMemory, n device.AllocatedMemory) bool {
		same := m.Owner == n.Owner && m.Type == n.Type && slices.Equal(m.NUMANodes, n.NUMANodes)
		if same {
			m.Bytes += n.Bytes
		}
		return same
	})
	r.claims = mergeRows(r.claims, func(c *device.Claim, d device.Claim) bool {
		a, b := *c, d
		a.CDI, b.CDI = nil, nil
		same := a.Compare(b) == 0
		if same && !slices.Equal(c.CDI, d.CDI) {
			c.CDI = union(&r.cdiNames, c.CDI, d.CDI)
		}
		return same
	})
}

// mergeRows sorts rows, and merges each into the row before if merge returns true.
func mergeRows[T interface{ Compare(T) int }](rows []T, merge func(before *T, row T) bool) []T {
	slices.SortFunc(rows, T.Compare)
	kept := rows[:0]
	for _, row := range rows {
		if last := len(kept) - 1; last < 0 || !merge(&kept[last], row) {
			kept = append(kept, row)
		}
	}
	return kept
}

// union returns the elements of both slices, sorted, as a part of all.
func union[T cmp.Ordered](all *[]T, a, b []T) []T {
	start := len(*all)
	*all = append(append(*all, a...), b...)
	return sortedTail(*all, start)
}
