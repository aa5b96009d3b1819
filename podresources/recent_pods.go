package podresources

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxGetPods bounds how many pods are asked about one by one: a List answers for all
	// of them, and costs the kubelet's limit no more than one of these.
	maxGetPods = 3
	// maxGetAttempts is how often one is asked about before a List is.
	maxGetAttempts = 2
)

// recentPods are pods of which somebody has told that they are new here: one of them may be
// whom an allocation waits for. Then Get is asked about it in place of a List: its answer
// is of one pod, and not of all that the node has.
type recentPods []recentPod

type recentPod struct {
	name     podName
	addedAt  time.Time
	attempts int
}

func (r *recentPods) add(name podName, now time.Time) {
	*r = slices.DeleteFunc(*r, func(c recentPod) bool {
		return c.name == name || now.Sub(c.addedAt) > maxAdmissionDelay+ownerLookupTimeout
	})
	*r = append(*r, recentPod{name: name, addedAt: now})
}

// nextCandidates are those that may have been allocated something since a time, and are not known to
// have something already. It counts them as asked about.
func (r *recentPods) nextCandidates(since time.Time, has func(podName) bool) (names []podName) {
	for _, c := range *r {
		if c.attempts < maxGetAttempts && c.addedAt.After(since.Add(-maxAdmissionDelay)) && !has(c.name) {
			names = append(names, c.name)
		}
	}
	if len(names) > maxGetPods {
		return nil
	}
	for i := range *r {
		if slices.Contains(names, (*r)[i].name) {
			(*r)[i].attempts++
		}
	}
	return names
}

// OnPodAdded says that a pod is new on this node, and may soon hold what somebody was
// allocated. It may be called for pods that hold nothing.
func (c *Client) OnPodAdded(namespace, pod string) {
	now := time.Now()
	c.mu.Lock()
	c.recentPods.add(podName{namespace, pod}, now)
	_, pending := c.tracker.oldestPending(now)
	c.mu.Unlock()
	if !pending {
		return
	}
	select {
	case c.podAdded <- struct{}{}:
	default:
	}
}

// fetchRecentPods asks about those who may be waited for, and tells whether the kubelet has
// answered: then a List can wait.
func (c *Client) fetchRecentPods(ctx context.Context) bool {
	now := time.Now()
	c.mu.Lock()
	var names []podName
	since, pending := c.tracker.oldestPending(now)
	// A List that is overdue, or that the kubelet does not answer, is not to wait.
	if pending && c.published.Err == nil && now.Sub(c.published.At) < idleInterval && c.getUnsupportedEpoch != c.tracker.epoch {
		names = c.recentPods.nextCandidates(since, c.tracker.hasAllocation)
	}
	c.mu.Unlock()
	for _, name := range names {
		if err := c.fetchRecentPod(ctx, name); err != nil {
			return false
		}
	}
	return len(names) > 0
}

// fetchRecentPod asks about one. That there is no such pod is an answer too.
func (c *Client) fetchRecentPod(ctx context.Context, name podName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.lockCalls(ctx); err != nil {
		return err
	}
	defer c.unlockCalls()
	requestedAt := time.Now()
	allocations, epoch, err := c.getPod(ctx, name)
	switch {
	case err == nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.publish(c.tracker.confirmPod(allocations, epoch, requestedAt))
		return nil
	case isGetUnsupported(err):
		c.mu.Lock()
		defer c.mu.Unlock()
		c.getUnsupportedEpoch = c.tracker.epoch
		return err
	case status.Code(err) == codes.Unknown: // no such pod, or it has ended (server_v1.go: not NotFound)
		return nil
	default:
		return err
	}
}

// isGetUnsupported tells whether a kubelet does not answer Get at all: one before 1.27, or one up
// to 1.33 whose gate KubeletPodResourcesGet is off, as it was by default
// (pkg/kubelet/apis/podresources/server_v1.go).
func isGetUnsupported(err error) bool {
	return status.Code(err) == codes.Unimplemented ||
		status.Code(err) == codes.Unknown && strings.Contains(err.Error(), "Get method disabled")
}

// getPod calls Get. Its response has the fields of a List with one pod.
func (c *Client) getPod(ctx context.Context, name podName) ([]device.Allocation, kubeletEpoch, error) {
	response := newListResponse()
	epoch, err := c.call(ctx, "Get", getRequest(name), &response)
	if err == nil {
		c.addClaimAllocations(&response)
	}
	return response.allocations, epoch, err
}

// getRequest returns a GetPodResourcesRequest.
func getRequest(name podName) wire.Request {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name.pod)
	return protowire.AppendString(protowire.AppendTag(b, 2, protowire.BytesType), name.namespace)
}
