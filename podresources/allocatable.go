package podresources

import (
	"context"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
)

// rawAllocatableResponse is an answer to GetAllocatableResources, which is nobody's rows.
type rawAllocatableResponse struct {
	resources resourceRows
	interner  wire.Interner
}

func newAllocatableResponse() rawAllocatableResponse {
	return rawAllocatableResponse{interner: wire.NewInterner(maxInternedNames)}
}

// The fields that are wanted.
const (
	allocatableDevices = 1<<3 | wire.Length
	allocatableCPU     = 2<<3 | wire.Varint
	allocatableCPUs    = 2<<3 | wire.Length
	allocatableMemory  = 3<<3 | wire.Length
)

// Read is a wire.Message's.
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
	if rows.foreign.finishResponse() {
		rows.dropForeignDevices()
	}
	rows.setOwner(device.Owner{}, rowOffsets{})
	return err
}

// fetchAllocatable learns what the kubelet would give away: the healthy devices, whether
// held or not, CPUs and memory. A kubelet before 1.23 does not know the question, which
// costs nothing but the answer. What it said earlier does not stay in its place: nobody
// could tell it from what is so now.
func (c *Client) fetchAllocatable(ctx context.Context) {
	c.updateOwnIDs(&c.allocatableResponse.resources)
	_, err := c.call(ctx, "GetAllocatableResources", nil, &c.allocatableResponse)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.resources.setAllocatable(&c.allocatableResponse.resources)
	} else {
		c.resources.clearAllocatable()
	}
	c.publish(false)
}
