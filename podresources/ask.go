package podresources

import (
	"context"

	"github.com/podgauge/podgauge/device"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

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
	return last, q.c.holds(answer.pod, last.Container, id), answer.err
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

// holds tells whether a pod's container has a device, by a plugin or by a claim.
func (c *Client) holds(pod *api.PodResources, container string, id device.ID) bool {
	for _, row := range c.rowsOf(pod) {
		if row.Owner.Container == container && row.Offered.Device() == id {
			return true
		}
	}
	return false
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
