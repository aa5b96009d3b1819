package podresources

import (
	"slices"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// rawListResponse is what of a List is wanted: the holdings, which pods there are, and what
// containers have besides. A node has hundreds of containers and few devices, so the
// answer is read where it lies, and only what is new is made a string
// (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). The next answer is read
// into the same memory.
type rawListResponse struct {
	allocations []device.Allocation
	pods        []podName
	resources   resourceRows
	interner    wire.Interner
}

func newListResponse() rawListResponse {
	return rawListResponse{interner: wire.NewInterner(maxInternedNames)}
}

// maxInternedNames are kept from answer to answer.
const maxInternedNames = 4096

// The fields that are wanted, as they are tagged on the wire. CPUs come packed into one
// field, or each in one of its own.
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
)

// Read is a wire.Message's. After an error the rest of the answer is of no use.
func (r *rawListResponse) Read(b []byte) error {
	r.allocations, r.pods = r.allocations[:0], r.pods[:0]
	r.resources.reset()
	err := wire.WalkFields(b, func(f wire.Field) error {
		if f.Tag == listPods {
			return r.readPod(f.Bytes)
		}
		return nil
	})
	if foreign := &r.resources.foreign; foreign.finishResponse() {
		r.resources.dropForeignDevices()
		r.allocations = slices.DeleteFunc(r.allocations, func(h device.Allocation) bool { return foreign.isDropped(h.Resource, h.DeviceID) })
	}
	return err
}

// dropForeignDevices drops the devices of resources that have too many.
func (r *resourceRows) dropForeignDevices() {
	r.devices = slices.DeleteFunc(r.devices, func(d device.AllocatedDevice) bool { return r.foreign.isDropped(d.Resource, device.AdvertisedID(d.ID)) })
}

func (r *rawListResponse) readPod(b []byte) error {
	// The names may come after the containers, and again: the last one counts.
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
	if rows.offsets() != start { // hardly any pod has something as a whole
		rows.setOwner(device.Owner{Namespace: name.namespace, Pod: name.pod}, start)
	}
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
	start, firstAllocation := rows.offsets(), len(r.allocations)
	err := wire.WalkFields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case containerName:
			container = f.Bytes
		case containerDevices:
			err = r.readDevices(f.Bytes)
		case containerCPU, containerCPUs:
			rows.cpuIDs, err = f.AppendVarints(rows.cpuIDs)
		case containerMemory:
			err = rows.addMemory(f.Bytes, r.interner)
		case containerClaims:
			err = rows.addClaims(f.Bytes, r.interner)
		}
		return err
	})
	if rows.offsets() == start { // most containers have nothing, and no string is made of them
		return err
	}
	owner := device.Owner{Namespace: pod.namespace, Pod: pod.pod, Container: r.interner.Intern(container)}
	for i := range r.allocations[firstAllocation:] {
		r.allocations[firstAllocation+i].Owner = owner
	}
	rows.setOwner(owner, start)
	return err
}

// readDevices appends a row for each id; whose they are is for the caller to say.
func (r *rawListResponse) readDevices(b []byte) error {
	start := len(r.resources.devices)
	err := r.resources.addDevices(b, r.interner)
	for _, d := range r.resources.devices[start:] {
		r.allocations = append(r.allocations, device.Allocation{Resource: d.Resource, DeviceID: device.AdvertisedID(d.ID)})
	}
	return err
}
