package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxInternedNames is the number of strings that are kept from response to response.
const maxInternedNames = 4096

// rawListResponse decodes List, and Get, whose response is that of a List with one pod. A node has hundreds of containers and few
// devices, so the message is read in place (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). The next response is read into the same
// memory.
type rawListResponse struct {
	allocations []device.Allocation
	pods        []podName
	resources   resourceRows
	interner    wire.Interner
}

func newListResponse() rawListResponse {
	return rawListResponse{interner: wire.NewInterner(maxInternedNames)}
}

// Tags of the fields that are read. CPUs are packed into one field, or have one each.
const (
	listPods = 1<<3 | wire.Length

	podPodName    = 1<<3 | wire.Length
	podNamespace  = 2<<3 | wire.Length
	podContainers = 3<<3 | wire.Length
	podCPU        = 4<<3 | wire.Varint
	podCPUs       = 4<<3 | wire.Length
	podMemory     = 5<<3 | wire.Length

	containerName    = 1<<3 | wire.Length
	containerDevices = 2<<3 | wire.Length
	containerCPU     = 3<<3 | wire.Varint
	containerCPUs    = 3<<3 | wire.Length
	containerMemory  = 4<<3 | wire.Length
	containerClaims  = 5<<3 | wire.Length

	allocatableDevices = 1<<3 | wire.Length
	allocatableCPU     = 2<<3 | wire.Varint
	allocatableCPUs    = 2<<3 | wire.Length
	allocatableMemory  = 3<<3 | wire.Length
)

// Read implements wire.Message.
func (r *rawListResponse) Read(b []byte) error {
	r.allocations, r.pods = r.allocations[:0], r.pods[:0]
	r.resources.reset()
	err := wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == listPods {
			return r.readPod(f.Bytes)
		}
		return nil
	})
	if r.resources.dropForeignDevices() {
		foreign := &r.resources.foreign
		r.allocations = slices.DeleteFunc(r.allocations, func(a device.Allocation) bool { return foreign.isDropped(a.Resource, a.DeviceID) })
	}
	return err
}

// readPod reads the names and resources of a pod, and then its containers: fields may come in any order.
func (r *rawListResponse) readPod(b []byte) error {
	var pod, namespace []byte
	rows := &r.resources
	start := rows.offsets()
	err := wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case podPodName:
			pod = f.Bytes
		case podNamespace:
			namespace = f.Bytes
		case podCPU, podCPUs:
			rows.cpuIDs, err = f.AppendVarints(rows.cpuIDs)
		case podMemory:
			err = rows.addMemory(f.Bytes, r.interner)
		}
		return err
	})
	if err != nil {
		return err
	}
	name := podName{r.interner.Intern(namespace), r.interner.Intern(pod)}
	r.pods = append(r.pods, name)
	rows.setOwner(device.Owner{Namespace: name.namespace, Pod: name.pod}, start)
	return wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == podContainers {
			return r.readContainer(f.Bytes, name)
		}
		return nil
	})
}

func (r *rawListResponse) readContainer(b []byte, pod podName) error {
	var container []byte
	rows := &r.resources
	start := rows.offsets()
	err := wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case containerName:
			container = f.Bytes
		case containerDevices:
			err = rows.addDevices(f.Bytes, r.interner)
		case containerCPU, containerCPUs:
			rows.cpuIDs, err = f.AppendVarints(rows.cpuIDs)
		case containerMemory:
			err = rows.addMemory(f.Bytes, r.interner)
		case containerClaims:
			err = rows.addClaims(f.Bytes, r.interner)
		}
		return err
	})
	if rows.offsets() == start { // as of most containers, whose names are not interned
		return err
	}
	rows.setOwner(device.Owner{Namespace: pod.namespace, Pod: pod.pod, Container: r.interner.Intern(container)}, start)
	for _, d := range rows.devices[start.devices:] {
		r.allocations = append(r.allocations, device.Allocation{Resource: d.Resource, DeviceID: device.AdvertisedID(d.ID), Owner: d.Owner})
	}
	return err
}

// rawAllocatableResponse decodes GetAllocatableResources. Its rows have no owner.
type rawAllocatableResponse struct {
	resources resourceRows
	interner  wire.Interner
}

func newAllocatableResponse() rawAllocatableResponse {
	return rawAllocatableResponse{interner: wire.NewInterner(maxInternedNames)}
}

// Read implements wire.Message.
func (r *rawAllocatableResponse) Read(b []byte) error {
	rows := &r.resources
	rows.reset()
	err := wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case allocatableDevices:
			err = rows.addDevices(f.Bytes, r.interner)
		case allocatableCPU, allocatableCPUs:
			rows.cpuIDs, err = f.AppendVarints(rows.cpuIDs)
		case allocatableMemory:
			err = rows.addMemory(f.Bytes, r.interner)
		}
		return err
	})
	rows.dropForeignDevices()
	rows.setOwner(device.Owner{}, rowOffsets{})
	return err
}

// getRequest returns a GetPodResourcesRequest.
func getRequest(name podName) wire.Request {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name.pod)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), name.namespace)
}
