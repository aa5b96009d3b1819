package podresources

import (
	"context"
	"maps"

	"github.com/podgauge/podgauge/device"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// rawAllocatable is an answer to GetAllocatableResources, which is nobody's rows.
type rawAllocatable struct {
	given given
	names interner
}

func (a *rawAllocatable) decode(b []byte) error {
	g := &a.given
	g.reset()
	a.names.trim()
	err := walk(b, func(number protowire.Number, value []byte) (err error) {
		switch number {
		case allocatableList:
			err = g.addDevices(value, a.names)
		case allocatableCPUs:
			g.numbers, err = appendPacked(g.numbers, value)
		case allocatableBlock:
			err = g.addMemory(value, a.names)
		}
		return err
	}, func(number protowire.Number, value uint64) {
		if number == allocatableCPUs {
			g.numbers = append(g.numbers, int64(value))
		}
	})
	g.belongTo(device.Owner{}, mark{})
	return err
}

// askAllocatable learns what the kubelet would give away: the healthy devices, whether
// held or not, CPUs and memory. A kubelet before 1.23 does not know the question, which
// costs nothing but the answer. What it said earlier does not stay in its place: nobody
// could tell it from what is so now.
func (c *Client) askAllocatable(ctx context.Context) {
	err := c.call(ctx, "GetAllocatableResources", func(ctx context.Context) error {
		return c.conn.Invoke(ctx, api.PodResourcesLister_GetAllocatableResources_FullMethodName, noRequest{}, &c.offer, grpc.ForceCodecV2(rawCodec{}))
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

// Allocatable returns how many devices of each resource the kubelet says it would
// give away; nil while it does not say.
func (c *Client) Allocatable() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ledger.offered.Known {
		return nil
	}
	return maps.Clone(c.ledger.counts)
}
