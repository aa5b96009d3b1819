package podresources

import (
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawListResponse decodes List, and Get as a List with a single pod (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). A node has
// hundreds of containers and few devices, so the message is read in place. The next response reuses the memory.
type rawListResponse struct {
	allocations []device.Allocation
	pods        []podName
	resources   resourceRows
}

func newListResponse() rawListResponse {
	return rawListResponse{resources: newResourceRows(maxOwnedRows)}
}

// Read implements wire.Message.
func (r *rawListResponse) Read(b []byte) error {
	return r.resources.readResponse(b, func() error {
		r.allocations, r.pods = r.allocations[:0], r.pods[:0]
		return wire.WalkTag(b, 1<<3|wire.Length, r.readPod)
	})
}

// readPod reads the names and resources of a pod, and then the containers: fields may come in any order.
func (r *rawListResponse) readPod(f wire.Field) error {
	var pod, namespace []byte
	b, rows := f.Bytes, &r.resources
	start := rows.offsets()
	err := rows.walk(b, func(f wire.Field) error {
		switch f.Tag {
		case 1<<3 | wire.Length: // name
			pod = f.Bytes
		case 2<<3 | wire.Length: // namespace
			namespace = f.Bytes
		case 4<<3 | wire.Varint, 4<<3 | wire.Length, 5<<3 | wire.Length: // cpu_ids, memory
			return rows.addField(f, 3)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(r.pods) == maxOwnedRows {
		return errTooLarge
	}
	name := podName{rows.intern(namespace), rows.intern(pod)}
	r.pods = append(r.pods, name)
	rows.setOwner(device.Owner{Namespace: name.namespace, Pod: name.pod}, start)
	return wire.WalkTag(b, 3<<3|wire.Length, func(f wire.Field) error { return r.readContainer(f.Bytes, name) })
}

func (r *rawListResponse) readContainer(b []byte, pod podName) error {
	var container []byte
	rows := &r.resources
	start := rows.offsets()
	err := rows.walk(b, func(f wire.Field) error {
		if f.Tag == 1<<3|wire.Length { // name
			container = f.Bytes
		}
		return rows.addField(f, 2)
	})
	if rows.offsets() == start { // most containers: the name is not needed
		return err
	}
	rows.setOwner(device.Owner{Namespace: pod.namespace, Pod: pod.pod, Container: rows.intern(container)}, start)
	for _, d := range rows.Devices[start.devices:] {
		r.allocations = append(r.allocations, device.Allocation{Resource: d.Resource, DeviceID: device.AdvertisedID(d.ID), Owner: d.Owner})
	}
	return err
}

// rawAllocatableResponse decodes GetAllocatableResources, into rows without an owner.
type rawAllocatableResponse struct{ resources resourceRows }

// Read implements wire.Message.
func (r *rawAllocatableResponse) Read(b []byte) error {
	rows := &r.resources
	err := rows.readResponse(b, func() error {
		return rows.walk(b, func(f wire.Field) error {
			if f.Tag < 4<<3 { // devices, cpu_ids, memory
				return rows.addField(f, 1)
			}
			return nil
		})
	})
	rows.setOwner(device.Owner{}, rowOffsets{})
	return err
}

// getRequest returns a GetPodResourcesRequest.
func getRequest(name podName) wire.Request {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name.pod)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), name.namespace)
}
