package podresources

import (
	"context"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// rawAllocatable is an answer to GetAllocatableResources, which is nobody's rows.
type rawAllocatable struct {
	given given
	names wire.Names
}

func newAllocatable() rawAllocatable { return rawAllocatable{names: wire.NewNames(mostInternedNames)} }

// The fields that are wanted.
const (
	allocatableDevices = 1<<3 | wire.Length
	allocatableCPU     = 2<<3 | wire.Varint
	allocatableCPUs    = 2<<3 | wire.Length
	allocatableMemory  = 3<<3 | wire.Length
)

// Read is a wire.Message's.
func (a *rawAllocatable) Read(b []byte) error {
	g := &a.given
	g.reset()
	err := wire.Fields(b, func(f wire.Field) (err error) {
		switch f.Tag {
		case allocatableDevices:
			err = g.addDevices(f.Bytes, a.names)
		case allocatableCPU, allocatableCPUs:
			g.numbers, err = f.AppendNumbers(g.numbers)
		case allocatableMemory:
			err = g.addMemory(f.Bytes, a.names)
		}
		return err
	})
	if g.foreign.end() {
		g.dropForeign()
	}
	g.belongTo(device.Owner{}, mark{})
	return err
}

// askAllocatable learns what the kubelet would give away: the healthy devices, whether
// held or not, CPUs and memory. A kubelet before 1.23 does not know the question, which
// costs nothing but the answer. What it said earlier does not stay in its place: nobody
// could tell it from what is so now.
func (c *Client) askAllocatable(ctx context.Context) {
	c.knowOurs(&c.offer.given)
	err := c.call(ctx, "GetAllocatableResources", func(ctx context.Context) error {
		return c.conn.Invoke(ctx, api.PodResourcesLister_GetAllocatableResources_FullMethodName, wire.Empty{}, &c.offer, grpc.ForceCodecV2(wire.Codec{}))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.ledger.offer(&c.offer.given)
	} else {
		c.ledger.withdraw()
	}
	c.publish(false)
}
