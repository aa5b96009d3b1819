package podresources

import (
	"context"
	"maps"
	"slices"

	"github.com/podgauge/podgauge/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// askAllocatable learns how many devices of each resource the kubelet would give
// away: the healthy ones, whether held or not. A kubelet before 1.23 does not
// know the question, which costs nothing but the answer.
func (c *Client) askAllocatable(ctx context.Context) {
	var answer *api.AllocatableResourcesResponse
	err := c.call(ctx, "GetAllocatableResources", func(ctx context.Context) (err error) {
		answer, err = c.list.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
		return err
	})
	if err != nil {
		return
	}
	counts := countDevices(answer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allocatable = counts
}

// countDevices counts each device once, though it is listed once per NUMA node.
func countDevices(answer *api.AllocatableResourcesResponse) map[string]int {
	counts := map[string]int{}
	counted := map[allocation]bool{}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			a := allocation{d.GetResourceName(), device.OfferedID(id)}
			if !counted[a] {
				counted[a] = true
				counts[a.resource]++
			}
		}
	}
	return counts
}

// Allocatable returns how many devices of each resource the kubelet last said it
// would give away; nil when it never did.
func (c *Client) Allocatable() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.allocatable)
}

// Confirm asks the kubelet about the pod that was last seen to hold a device: it
// returns that holder, and whether the kubelet says that it holds it still. The
// zero Owner is for a device that nobody was seen to hold.
func (c *Client) Confirm(ctx context.Context, id device.ID) (device.Owner, bool, error) {
	last := c.lastOwner(id)
	if last == (device.Owner{}) {
		return last, false, nil
	}
	var answer *api.GetPodResourcesResponse
	err := c.call(ctx, "Get", func(ctx context.Context) (err error) {
		answer, err = c.list.Get(ctx, &api.GetPodResourcesRequest{PodName: last.Pod, PodNamespace: last.Namespace})
		return err
	})
	return last, holds(answer.GetPodResources(), last.Container, id), err
}

// lastOwner is the container that holds the device, or else the one that was
// seen with it last.
func (c *Client) lastOwner(id device.ID) device.Owner {
	holders, _ := c.Look()
	if hold, owner := holders.Of(id); hold == device.Held {
		return owner
	}
	var last device.Seen
	for _, s := range holders.Recent {
		if s.Device == id && s.Last.After(last.Last) {
			last = s
		}
	}
	return last.Owner
}

func holds(pod *api.PodResources, container string, id device.ID) bool {
	return slices.ContainsFunc(pod.GetContainers(), func(c *api.ContainerResources) bool {
		return c.GetName() == container && slices.ContainsFunc(c.GetDevices(), func(d *api.ContainerDevices) bool {
			return slices.ContainsFunc(d.GetDeviceIds(), func(o string) bool { return device.OfferedID(o).Device() == id })
		})
	})
}

// Faults says who held a device when it went bad, as the kubelet confirms it, in
// the log, until ctx is done.
func (c *Client) Faults(ctx context.Context, look func() ([]device.Status, <-chan struct{})) error {
	bad := map[device.ID]bool{}
	for {
		statuses, changed := look()
		for _, s := range statuses {
			if !s.Healthy && !bad[s.ID] && ctx.Err() == nil {
				c.wentBad(ctx, s)
			}
			bad[s.ID] = !s.Healthy
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (c *Client) wentBad(ctx context.Context, s device.Status) {
	owner, confirmed, err := c.Confirm(ctx, s.ID)
	c.log.Warn("device went bad", "device", s.ID, "reason", s.Reason, "namespace", owner.Namespace,
		"pod", owner.Pod, "container", owner.Container, "confirmed", confirmed, "err", err)
}
