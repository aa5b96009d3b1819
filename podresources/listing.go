package podresources

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// maxRows limits the devices and claims of List: each has series and an
	// owner.
	maxRows = 16384
	// maxForeignIDs is the limit of ids of a resource, apart from this node's
	// devices. Some plugins advertise each MiB of memory as a device, 65,000
	// and more per node.
	maxForeignIDs = 4096
)

var errTooManyRows = errors.New("more devices and claims than any node has")

// uuidPattern matches NVML's UUIDs of GPUs and MIG devices, also of drivers
// before R470. Memory-sharing plugins append to a UUID.
var uuidPattern = regexp.MustCompile(
	`^(GPU|MIG|MIG-GPU)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(/[0-9]+/[0-9]+)?$`)

// ownIDs are the ids of this node's devices; nil has all ids.
type ownIDs map[device.ID]bool

func newOwnIDs(o *Options) ownIDs {
	if o.Devices == nil {
		return nil
	}
	own := ownIDs{}
	for _, s := range o.Devices.Newest() {
		own[s.ID] = true
	}
	return own
}

// has reports whether an id is of this node's devices. Each UUID may be: before
// the first inventory, or of a device lost before this process began.
func (o ownIDs) has(id device.ID) bool {
	return o == nil || o[id] || uuidPattern.MatchString(string(id))
}

type podName struct{ namespace, pod string }

func podOf(o allocation.Owner) podName { return podName{o.Namespace, o.Pod} }

// listing has the content of a List, or of a Get as a List with a single pod.
type listing struct {
	own         ownIDs
	pods        []podName
	resources   allocation.ResourceSet
	allocations []allocation.Allocation
}

func newListing(pods []*api.PodResources, names googleNames, o *Options) (*listing, error) {
	l := &listing{own: newOwnIDs(o)}
	for _, p := range pods {
		l.pods = append(l.pods, podName{p.GetNamespace(), p.GetName()})
		owner := allocation.Owner{Namespace: p.GetNamespace(), Pod: p.GetName()}
		addRows(&l.resources, names, owner, &api.ContainerResources{CpuIds: p.GetCpuIds(), Memory: p.GetMemory()})
		for _, c := range p.GetContainers() {
			owner.Container = c.Name
			addRows(&l.resources, names, owner, c)
		}
	}
	normalize(&l.resources, l.own)
	if len(l.resources.Devices)+len(l.resources.Claims)+len(l.pods) > maxRows {
		return nil, errTooManyRows
	}
	for _, d := range l.resources.Devices {
		l.allocations = append(l.allocations,
			allocation.Allocation{Resource: d.Resource, DeviceID: device.AdvertisedID(d.ID), Owner: d.Owner})
	}
	for _, claim := range l.resources.Claims {
		if id, ok := o.deviceOf(claim); ok {
			l.allocations = append(l.allocations, allocation.Allocation{
				Resource: claim.Driver, DeviceID: id.Advertised(), Owner: claim.Owner, Claim: claim.ClaimName,
			})
		}
	}
	return l, nil
}

// deviceOf returns the device of a claim, if this node has the device.
func (o *Options) deviceOf(claim allocation.Claim) (device.ID, bool) {
	if o.ClaimedDevice == nil || claim.Driver == "" || strings.Contains(claim.Driver, "/") {
		return "", false
	}
	return o.ClaimedDevice(claim)
}

// newAllocatable returns the rows of GetAllocatableResources, without an owner.
func newAllocatable(r *api.AllocatableResourcesResponse, o *Options) *allocation.ResourceSet {
	rows := &allocation.ResourceSet{}
	addRows(rows, newGoogleNames(o), allocation.Owner{},
		&api.ContainerResources{Devices: r.Devices, CpuIds: r.CpuIds, Memory: r.Memory})
	normalize(rows, newOwnIDs(o))
	return rows
}

// addRows adds the resources of a container, or of an owner like one.
func addRows(rows *allocation.ResourceSet, names googleNames, owner allocation.Owner, c *api.ContainerResources) {
	for _, d := range c.Devices {
		nodes := numaNodes(d.Topology)
		for _, id := range d.DeviceIds {
			id = string(names.advertised(d.ResourceName, id))
			row := allocation.ResourceDevice{Owner: owner, Resource: d.ResourceName, ID: id, NUMANodes: nodes}
			rows.Devices = append(rows.Devices, row)
		}
	}
	if len(c.CpuIds) > 0 {
		rows.CPUs = append(rows.CPUs, allocation.ExclusiveCPUs{Owner: owner, CPUs: sortedSet(c.CpuIds)})
	}
	for _, m := range c.Memory {
		rows.Memory = append(rows.Memory, allocation.ReservedMemory{
			Owner: owner, Type: m.MemoryType, Bytes: m.Size, NUMANodes: numaNodes(m.Topology),
		})
	}
	for _, claim := range c.DynamicResources {
		addClaim(rows, owner, claim)
	}
}

func numaNodes(t *api.TopologyInfo) (nodes []int) {
	for _, node := range t.GetNodes() {
		nodes = append(nodes, int(node.ID))
	}
	return sortedSet(nodes)
}

func sortedSet[T cmp.Ordered](values []T) []T {
	slices.Sort(values)
	return slices.Compact(values)
}

// addClaim adds a row for each device of a claim. The kubelet accumulates the
// CDI names of a driver's devices, so each device begins with the names of the
// devices before (GetDynamicResources in
// pkg/kubelet/cm/container_manager_linux.go). A row has only the device's own.
func addClaim(rows *allocation.ResourceSet, owner allocation.Owner, claim *api.DynamicResource) {
	before := map[string][]string{} // all names of a driver's newest device
	for _, r := range claim.ClaimResources {
		var names []string
		for _, d := range r.CdiDevices {
			names = append(names, d.Name)
		}
		earlier := before[r.DriverName]
		before[r.DriverName] = names
		if len(names) >= len(earlier) && slices.Equal(names[:len(earlier)], earlier) {
			names = names[len(earlier):]
		}
		rows.Claims = append(rows.Claims, allocation.Claim{
			Owner: owner, ClaimNamespace: claim.ClaimNamespace, ClaimName: claim.ClaimName,
			Driver: r.DriverName, Pool: r.PoolName, Device: r.DeviceName, ShareID: r.GetShareId(), CDI: names,
		})
	}
}

// normalize sorts the rows and drops duplicates: two requests of a claim may
// have the same device, and a pod and its replacement of the same name are
// listed together for a moment. The kubelet lists a device once per NUMA node.
func normalize(rows *allocation.ResourceSet, own ownIDs) {
	dropForeign(rows, own)
	slices.SortFunc(rows.Devices, allocation.ResourceDevice.Compare)
	devices := rows.Devices[:0]
	for _, d := range rows.Devices {
		last := len(devices) - 1
		if last >= 0 && devices[last].Owner == d.Owner && devices[last].Resource == d.Resource &&
			devices[last].ID == d.ID {
			devices[last].NUMANodes = sortedSet(slices.Concat(devices[last].NUMANodes, d.NUMANodes))
		} else {
			devices = append(devices, d)
		}
	}
	rows.Devices = devices
	rows.CPUs = unique(rows.CPUs, func(c, d allocation.ExclusiveCPUs) bool { return c.Owner == d.Owner })
	rows.Memory = unique(rows.Memory, func(m, n allocation.ReservedMemory) bool {
		return m.Owner == n.Owner && m.Type == n.Type && slices.Equal(m.NUMANodes, n.NUMANodes)
	})
	rows.Claims = unique(rows.Claims, func(c, d allocation.Claim) bool {
		c.CDI, d.CDI = nil, nil
		return c.Compare(d) == 0
	})
}

// dropForeign drops all foreign ids of a resource with more than maxForeignIDs.
// The kubelet lists ids in random order, so a part would change with each
// response.
func dropForeign(rows *allocation.ResourceSet, own ownIDs) {
	foreign := map[string]int{}
	isForeign := func(d allocation.ResourceDevice) bool { return !own.has(device.AdvertisedID(d.ID).Device()) }
	for _, d := range rows.Devices {
		if isForeign(d) {
			foreign[d.Resource]++
		}
	}
	maps.DeleteFunc(foreign, func(_ string, ids int) bool { return ids <= maxForeignIDs })
	for _, resource := range slices.Sorted(maps.Keys(foreign)) {
		rows.Dropped = append(rows.Dropped, allocation.DroppedIDs{Resource: resource, IDs: foreign[resource]})
	}
	rows.Devices = slices.DeleteFunc(rows.Devices, func(d allocation.ResourceDevice) bool {
		return foreign[d.Resource] > 0 && isForeign(d)
	})
}

// unique sorts rows and keeps the first of the same rows.
func unique[T interface{ Compare(T) int }](rows []T, same func(a, b T) bool) []T {
	slices.SortFunc(rows, T.Compare)
	return slices.CompactFunc(rows, same)
}
