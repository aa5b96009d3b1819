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
// know the question, which costs nothing but the answer. Counts of earlier do not
// stay in its place: nobody could tell them from those of now.
func (c *Client) askAllocatable(ctx context.Context) {
	var answer *api.AllocatableResourcesResponse
	err := c.call(ctx, "GetAllocatableResources", func(ctx context.Context) (err error) {
		answer, err = c.list.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{})
		return err
	})
	var counts map[string]int
	if err == nil {
		counts = countDevices(answer)
	}
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

// Allocatable returns how many devices of each resource the kubelet says it would
// give away; nil while it does not say.
func (c *Client) Allocatable() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.allocatable)
}

// confirmer asks the kubelet whether it still says what was known of holders at
// one moment. It asks about each pod once, since a burst of questions would be
// refused.
type confirmer struct {
	c       *Client
	holders device.Holders
	answers map[podName]podAnswer
}

type podAnswer struct {
	pod *api.PodResources
	err error
}

func (c *Client) confirmer() confirmer {
	holders, _ := c.Look()
	return confirmer{c, holders, map[podName]podAnswer{{}: {}}} // nobody is asked about nobody
}

// confirm returns the container that was last seen to hold a device, and whether
// the kubelet says that it holds it still. The zero Owner is for a device that
// nobody was seen to hold.
func (q confirmer) confirm(ctx context.Context, id device.ID) (device.Owner, bool, error) {
	last := lastOwner(q.holders, id)
	name := podName{last.Namespace, last.Pod}
	answer, asked := q.answers[name]
	if !asked {
		answer.pod, answer.err = q.c.askPod(ctx, name)
		q.answers[name] = answer
	}
	return last, holds(answer.pod, last.Container, id), answer.err
}

func (c *Client) askPod(ctx context.Context, name podName) (*api.PodResources, error) {
	var answer *api.GetPodResourcesResponse
	err := c.call(ctx, "Get", func(ctx context.Context) (err error) {
		answer, err = c.list.Get(ctx, &api.GetPodResourcesRequest{PodName: name.pod, PodNamespace: name.namespace})
		return err
	})
	return answer.GetPodResources(), err
}

// lastOwner is the container that holds the device, or else the one that was
// seen with it last.
func lastOwner(holders device.Holders, id device.ID) device.Owner {
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
		var newly []device.Status
		for _, s := range statuses {
			if !s.Healthy && !bad[s.ID] {
				newly = append(newly, s)
			}
			bad[s.ID] = !s.Healthy
		}
		if ctx.Err() == nil {
			c.wentBad(ctx, newly)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// wentBad takes the holders of all before it asks about the first, and has one
// deadline for all answers: a kubelet hangs just when a node falls apart, and who
// holds the last device by then is not who was hit.
func (c *Client) wentBad(ctx context.Context, newly []device.Status) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	kubelet := c.confirmer()
	for _, s := range newly {
		owner, confirmed, err := kubelet.confirm(ctx, s.ID)
		c.log.Warn("device went bad", "device", s.ID, "reason", s.Reason, "namespace", owner.Namespace,
			"pod", owner.Pod, "container", owner.Container, "confirmed", confirmed, "err", err)
	}
}
