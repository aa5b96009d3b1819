package podresources

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

const (
	// maxInternedNames limits the strings kept from response to response.
	maxInternedNames = 4096
	// maxRows limits the rows, and the CPUs, NUMA nodes and CDI names in rows, to a few megabytes. Each device of the form of this node's
	// allows for itself and a NUMA node.
	maxRows = 32768
	// maxOwnedRows limits claims and devices of the form of this node's in List: each has series and an owner.
	maxOwnedRows = 8192
	// maxAllocatableIDs limits devices of this form in GetAllocatableResources, above the kubelet's limit of 4 MiB for a plugin.
	maxAllocatableIDs = 65536
	// maxNameBytes is twice the length of names in Kubernetes.
	maxNameBytes = 512
)

var errTooLarge = errors.New("more rows or longer names than any node has")

// resourceRows are the resources of a response. The next response reuses the memory, so rows are copied before publication.
type resourceRows struct {
	device.ResourceSet
	foreign foreignIDs

	interner  wire.Interner // kept from response to response
	maxOwnIDs int
	tooLarge  bool

	// The slices within rows are parts of the slices below. Growth leaves earlier parts in place.
	numaNodes []int
	cpuIDs    []int64
	cdiNames  []string
}

func newResourceRows(maxOwnIDs int) resourceRows {
	return resourceRows{interner: wire.NewInterner(maxInternedNames), maxOwnIDs: maxOwnIDs}
}

// readResponse calls read, which adds the rows of a response b; once more if the limit of foreign ids begins or ceases to apply.
func (r *resourceRows) readResponse(b []byte, read func() error) error {
	r.reset()
	err := read()
	if err == nil && r.foreign.finishResponse() {
		r.reset()
		err = read()
	}
	if err == nil && r.tooLarge {
		err = errTooLarge
	}
	if err != nil {
		clear(r.foreign.resources)
		return fmt.Errorf("%d bytes: %w", len(b), err)
	}
	return nil
}

func (r *resourceRows) reset() {
	r.tooLarge, r.foreign.ownIDs = false, 0
	r.Devices, r.CPUs, r.Memory, r.Claims = r.Devices[:0], r.CPUs[:0], r.Memory[:0], r.Claims[:0]
	r.numaNodes, r.cpuIDs, r.cdiNames = r.numaNodes[:0], r.cpuIDs[:0], r.cdiNames[:0]
	for _, f := range r.foreign.resources {
		f.ids = 0
	}
}

// walk is wire.WalkFields within the limits.
func (r *resourceRows) walk(b []byte, visit func(wire.Field) error) error {
	return wire.WalkFields(b, func(f wire.Field) error {
		rows := len(r.Devices) + len(r.Memory) + len(r.numaNodes) + len(r.cpuIDs) + len(r.cdiNames) + len(r.foreign.resources)
		if own := r.foreign.ownIDs; r.tooLarge || rows > maxRows+2*own || len(r.Claims) > maxOwnedRows || own > r.maxOwnIDs {
			return errTooLarge
		}
		return visit(f)
	})
}

// intern returns a name. The response has an error if the name is too long.
func (r *resourceRows) intern(name []byte) string {
	if len(name) > maxNameBytes {
		r.tooLarge = true
		return ""
	}
	return r.interner.Intern(name)
}

// rowOffsets are the numbers of rows at a point of the response.
type rowOffsets struct{ devices, cpuIDs, memory, claims int }

func (r *resourceRows) offsets() rowOffsets {
	return rowOffsets{len(r.Devices), len(r.cpuIDs), len(r.Memory), len(r.Claims)}
}

// setOwner sets the owner of the rows since start.
func (r *resourceRows) setOwner(owner device.Owner, start rowOffsets) {
	for i := range r.Devices[start.devices:] {
		r.Devices[start.devices+i].Owner = owner
	}
	for i := range r.Memory[start.memory:] {
		r.Memory[start.memory+i].Owner = owner
	}
	for i := range r.Claims[start.claims:] {
		r.Claims[start.claims+i].Owner = owner
	}
	if cpus := sortedTail(r.cpuIDs, start.cpuIDs); cpus != nil {
		r.CPUs = append(r.CPUs, device.ExclusiveCPUs{Owner: owner, CPUs: cpus})
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

// Numbers and names of fields follow k8s.io/kubelet/pkg/apis/podresources/v1/api.proto.

// addField adds the rows of a field. The fields devices, cpu_ids, memory and dynamic_resources have consecutive numbers in each message,
// from first on.
func (r *resourceRows) addField(f wire.Field, first uint64) (err error) {
	switch f.Tag - first<<3 {
	case 0<<3 | wire.Length: // devices
		err = r.addDevices(f.Bytes)
	case 1<<3 | wire.Varint, 1<<3 | wire.Length: // cpu_ids
		if len(f.Bytes) > maxRows {
			return errTooLarge
		}
		r.cpuIDs, err = f.AppendVarints(r.cpuIDs)
	case 2<<3 | wire.Length: // memory
		err = r.addMemory(f.Bytes)
	case 3<<3 | wire.Length: // dynamic_resources
		err = r.addClaims(f.Bytes)
	}
	return err
}

// addDevices adds a row for each id.
func (r *resourceRows) addDevices(b []byte) error {
	start, nodesStart := len(r.Devices), len(r.numaNodes)
	resource, err := wire.Last(b, 1<<3|wire.Length) // may follow the ids
	if err != nil {
		return err
	}
	err = r.walk(b, func(f wire.Field) error {
		switch f.Tag {
		case 2<<3 | wire.Length: // device_ids
			if r.foreign.admit(resource.Bytes, f.Bytes) {
				r.Devices = append(r.Devices, device.ResourceDevice{ID: r.intern(f.Bytes)})
			}
		case 3<<3 | wire.Length: // topology
			return r.addNodes(f.Bytes)
		}
		return nil
	})
	if start == len(r.Devices) {
		r.numaNodes = r.numaNodes[:nodesStart]
		return err
	}
	name, nodes := r.intern(resource.Bytes), sortedTail(r.numaNodes, nodesStart)
	for i := range r.Devices[start:] {
		d := &r.Devices[start+i]
		d.Resource, d.NUMANodes = name, nodes
	}
	return err
}

func (r *resourceRows) addNodes(b []byte) error {
	return r.walk(b, func(node wire.Field) error {
		if node.Tag != 1<<3|wire.Length {
			return nil
		}
		id, err := wire.Last(node.Bytes, 1<<3|wire.Varint) // omitted if 0
		r.numaNodes = append(r.numaNodes, int(int64(id.Value)))
		return err
	})
}

func (r *resourceRows) addMemory(b []byte) error {
	var m device.ReservedMemory
	nodesStart := len(r.numaNodes)
	err := r.walk(b, func(f wire.Field) error {
		switch f.Tag {
		case 1<<3 | wire.Length: // memory_type
			m.Type = r.intern(f.Bytes)
		case 2<<3 | wire.Varint: // size
			m.Bytes = f.Value
		case 3<<3 | wire.Length: // topology
			return r.addNodes(f.Bytes)
		}
		return nil
	})
	m.NUMANodes = sortedTail(r.numaNodes, nodesStart)
	r.Memory = append(r.Memory, m)
	return err
}

// addClaims adds a row for each device of a claim.
func (r *resourceRows) addClaims(b []byte) error {
	var claim, namespace string
	start := len(r.Claims)
	err := r.walk(b, func(f wire.Field) error {
		switch f.Tag {
		case 2<<3 | wire.Length: // claim_name
			claim = r.intern(f.Bytes)
		case 3<<3 | wire.Length: // claim_namespace
			namespace = r.intern(f.Bytes)
		case 4<<3 | wire.Length: // claim_resources
			return r.addClaim(f.Bytes)
		}
		return nil
	})
	rows := r.Claims[start:]
	for i := range rows {
		rows[i].ClaimNamespace, rows[i].ClaimName = namespace, claim
	}
	trimCDI(rows)
	return err
}

func (r *resourceRows) addClaim(b []byte) error {
	var c device.Claim
	start := len(r.cdiNames)
	err := r.walk(b, func(f wire.Field) error {
		switch f.Tag {
		case 1<<3 | wire.Length: // cdi_devices
			name, err := wire.Last(f.Bytes, 1<<3|wire.Length)
			r.cdiNames = append(r.cdiNames, r.intern(name.Bytes))
			return err
		case 2<<3 | wire.Length: // driver_name
			c.Driver = r.intern(f.Bytes)
		case 3<<3 | wire.Length: // pool_name
			c.Pool = r.intern(f.Bytes)
		case 4<<3 | wire.Length: // device_name
			c.Device = r.intern(f.Bytes)
		case 5<<3 | wire.Length: // share_id
			c.ShareID = r.intern(f.Bytes)
		}
		return nil
	})
	c.CDI = tail(r.cdiNames, start)
	r.Claims = append(r.Claims, c)
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

// normalize sorts the rows and drops duplicates: two requests of a claim may have the same device, and a pod and its replacement of the same
// name are listed together for a moment. A device has a row per NUMA node.
func (r *resourceRows) normalize() {
	slices.SortFunc(r.Devices, device.ResourceDevice.Compare)
	devices := r.Devices[:0]
	for _, d := range r.Devices {
		last := len(devices) - 1
		if last < 0 || devices[last].Owner != d.Owner || devices[last].Resource != d.Resource || devices[last].ID != d.ID {
			devices = append(devices, d)
			continue
		}
		start := len(r.numaNodes)
		r.numaNodes = append(append(r.numaNodes, devices[last].NUMANodes...), d.NUMANodes...)
		devices[last].NUMANodes = sortedTail(r.numaNodes, start)
	}
	r.Devices = devices
	r.CPUs = unique(r.CPUs, func(c, d device.ExclusiveCPUs) bool { return c.Owner == d.Owner })
	r.Memory = unique(r.Memory, func(m, n device.ReservedMemory) bool {
		return m.Owner == n.Owner && m.Type == n.Type && slices.Equal(m.NUMANodes, n.NUMANodes)
	})
	r.Claims = unique(r.Claims, func(c, d device.Claim) bool {
		c.CDI, d.CDI = nil, nil
		return c.Compare(d) == 0
	})
}

// unique sorts rows and keeps the first of the same rows.
func unique[T interface{ Compare(T) int }](rows []T, same func(a, b T) bool) []T {
	slices.SortFunc(rows, T.Compare)
	return slices.CompactFunc(rows, same)
}
