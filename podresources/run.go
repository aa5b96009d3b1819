package podresources

import (
	"context"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/retry"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// idleInterval is the interval of List without scrapes: the greatest delay until the end of an allocation is known.
	idleInterval = 10 * time.Second
	// outageInterval is the interval of List while the kubelet does not answer.
	outageInterval = time.Second
	// allocatableInterval is the least interval of GetAllocatableResources.
	allocatableInterval = time.Second
	// minRefreshDelay and maxRefreshDelay limit the delay of List after Allocate. The delay doubles with each List.
	minRefreshDelay, maxRefreshDelay = 50 * time.Millisecond, 2 * time.Second
)

// Run keeps the allocations fresh between scrapes, and looks up the owners of new allocations, until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	defer c.kubelet.Close() //nolint:errcheck // no more calls follow
	due, refresh := time.Now(), retry.Backoff{Min: minRefreshDelay, Max: maxRefreshDelay}
	var podsDue time.Time // zero without a new pod
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.Beat()
		next := due
		if !podsDue.IsZero() {
			next = earlier(due, podsDue)
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return nil
		case <-c.refreshRequested:
			// An earlier List stays due: otherwise a burst of allocations would postpone List.
			refresh.Reset()
			due = earlier(due, time.Now().Add(refresh.Next()))
			continue
		case <-c.podAdded:
			if podsDue.IsZero() {
				podsDue = time.Now().Add(minRefreshDelay)
			}
			continue
		case <-timer.C:
		}
		podsDue = time.Time{}
		if !c.fetchRecentPods(ctx) {
			if time.Now().Before(due) {
				continue
			}
			c.refresh(ctx)
		}
		now := time.Now()
		expectsUpdate := c.expectsUpdate(now)
		if now.Before(due) && expectsUpdate {
			continue // Get was earlier than the due List
		}
		delay := c.refreshDelay(now)
		if expectsUpdate {
			delay = min(delay, refresh.Next())
		}
		due = now.Add(delay)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// expectsUpdate reports whether the kubelet should be called soon.
func (c *Client) expectsUpdate(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.expectsUpdate(now)
}

// refreshDelay returns the delay of the next List. Calls by scrapes count.
func (c *Client) refreshDelay(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr != nil {
		return max(outageInterval, c.kubelet.untilRetry(now))
	}
	delay := c.respondedAt.Add(idleInterval).Sub(now)
	if c.allocatableStale {
		delay = min(delay, c.allocatableAt.Add(allocatableInterval).Sub(now))
	}
	return max(delay, minRefreshDelay)
}

// refresh calls List, reads the checkpoint if needed, and calls GetAllocatableResources.
func (c *Client) refresh(ctx context.Context) {
	callCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	allocations := c.ListAllocations(callCtx)
	if ctx.Err() != nil {
		return
	}
	c.logOutage(allocations.Err)
	c.refreshCheckpoint()
	if now := time.Now(); allocations.Err == nil && now.Sub(c.allocatableAt) >= allocatableInterval {
		c.allocatableAt = now
		c.fetchAllocatable(callCtx)
	}
}

// logOutage logs the beginning and the end of an outage.
func (c *Client) logOutage(err error) {
	switch inOutage := err != nil; {
	case inOutage && !c.loggedOutage:
		c.log.Warn("pod-resources API unavailable, last allocations stand", "err", err)
	case !inOutage && c.loggedOutage:
		c.log.Info("pod-resources API recovered")
	}
	c.loggedOutage = err != nil
}

// refreshCheckpoint merges a changed or needed checkpoint. An error is logged a single time until the next successful read.
func (c *Client) refreshCheckpoint() {
	now := time.Now() // allocations from here on may be missing in the checkpoint
	c.mu.Lock()
	needed, overdue := c.tracker.needsCheckpoint(now)
	c.mu.Unlock()
	if !needed && !c.hasCheckpointChanged() {
		return
	}
	checkpoint, err := readCheckpoint(c.options.CheckpointPath)
	c.mu.Lock()
	c.publish(c.tracker.mergeCheckpoint(checkpoint, err, now))
	c.mu.Unlock()
	switch {
	case err == nil:
		c.loggedCheckpointError = false
	case overdue && !c.loggedCheckpointError:
		c.log.Warn("checkpoint unreadable, allocations without an owner stand for an hour", "err", err)
		c.loggedCheckpointError = true
	}
}

// fetchAllocatable calls GetAllocatableResources: healthy devices, allocated or not, CPUs and memory. After an error the resources are
// unknown, as with a kubelet before 1.23: old values would look like current values.
func (c *Client) fetchAllocatable(ctx context.Context) {
	c.mu.Lock()
	c.allocatableStale = false
	c.mu.Unlock()
	c.setOwnIDs(&c.allocatableResponse.resources)
	_, err := c.kubelet.call(ctx, service+"GetAllocatableResources", nil, &c.allocatableResponse)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.resources.setAllocatable(&c.allocatableResponse.resources)
	} else {
		c.resources.clearAllocatable()
	}
	c.publish(false)
}

// fetchRecentPods calls Get for the possible owners of a pending allocation, and reports whether the kubelet answered. If so, List can
// wait.
func (c *Client) fetchRecentPods(ctx context.Context) bool {
	now := time.Now()
	c.mu.Lock()
	var names []podName
	since, isPending := c.tracker.oldestPending(now)
	// Get must not delay an overdue or failed List.
	if isPending && c.lastErr == nil && now.Sub(c.respondedAt) < idleInterval && c.getUnsupportedEpoch != c.tracker.epoch {
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

// fetchRecentPod calls Get for a pod. A missing pod is no error.
func (c *Client) fetchRecentPod(ctx context.Context, name podName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.lockCalls(ctx); err != nil {
		return err
	}
	defer c.unlockCalls()
	requestedAt := time.Now()
	allocations, epoch, err := c.getPod(ctx, name)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.publish(c.tracker.confirmPod(allocations, epoch, requestedAt))
	case isGetUnsupported(err):
		c.getUnsupportedEpoch = c.tracker.epoch
	case status.Code(err) == codes.Unknown: // missing or ended pod (server_v1.go never returns NotFound)
		return nil
	}
	return err
}

// getPod calls Get. The response has the fields of a List with a single pod.
func (c *Client) getPod(ctx context.Context, name podName) ([]device.Allocation, kubeletEpoch, error) {
	response := newListResponse()
	epoch, err := c.kubelet.call(ctx, service+"Get", getRequest(name), &response)
	if err == nil {
		c.addClaimAllocations(&response)
	}
	return response.allocations, epoch, err
}

// isGetUnsupported reports whether a kubelet lacks Get: before 1.27, or up to 1.33 with the feature gate KubeletPodResourcesGet off, the
// default (pkg/kubelet/apis/podresources/server_v1.go).
func isGetUnsupported(err error) bool {
	return status.Code(err) == codes.Unimplemented ||
		status.Code(err) == codes.Unknown && strings.Contains(err.Error(), "Get method disabled")
}
