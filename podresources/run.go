package podresources

import (
	"context"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
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
	// maxGetPods limits the calls of Get in place of a List: a List is a single call of the kubelet's limit.
	maxGetPods = 3
)

// Run keeps the allocations fresh between scrapes, and looks up the owners of new allocations, until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	defer c.kubelet.Close() //nolint:errcheck // no more calls follow
	due, refresh := time.Now(), retry.Backoff{Min: minRefreshDelay, Max: maxRefreshDelay}
	for {
		c.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-c.refreshRequested:
			// An earlier List stays due: otherwise a burst of allocations would postpone List.
			refresh.Reset()
			if soon := time.Now().Add(refresh.Next()); soon.Before(due) {
				due = soon
			}
			continue
		case <-time.After(time.Until(due)):
		}
		if !c.confirmRecentPods(ctx) {
			c.refresh(ctx)
		}
		now := time.Now()
		delay, expectsUpdate := c.refreshDelay(now)
		if expectsUpdate {
			delay = min(delay, refresh.Next())
		}
		due = now.Add(delay)
	}
}

// refreshDelay returns the delay of the next List, and whether the next List may change allocations. Calls by scrapes count.
func (c *Client) refreshDelay(now time.Time) (delay time.Duration, expectsUpdate bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	expectsUpdate = c.tracker.expectsUpdate(now)
	if c.lastErr != nil {
		pause, _ := c.kubelet.pause(now)
		return max(outageInterval, pause), expectsUpdate
	}
	delay = retry.Aligned(c.respondedAt.Add(idleInterval).Sub(now))
	if c.allocatableStale {
		delay = min(delay, c.allocatableAt.Add(allocatableInterval).Sub(now))
	}
	return max(delay, minRefreshDelay), expectsUpdate
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
		c.options.Log.Warn("pod-resources API unavailable, keeping the last allocations", "err", err)
	case !inOutage && c.loggedOutage:
		c.options.Log.Info("pod-resources API recovered")
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
		c.options.Log.Warn("checkpoint unreadable, keeping allocations without an owner for an hour", "err", err)
		c.loggedCheckpointError = true
	}
}

// fetchAllocatable calls GetAllocatableResources: healthy devices, allocated or not, CPUs and memory. After an error the resources are
// unknown, as with a kubelet before 1.23: old values would look like current values.
func (c *Client) fetchAllocatable(ctx context.Context) {
	c.mu.Lock()
	c.allocatableStale = false
	c.mu.Unlock()
	err := c.lockCalls(ctx) // a large response beside another exceeds the memory
	if err == nil {
		c.setOwnIDs(&c.allocatableResponse.resources)
		_, err = c.kubelet.call(ctx, service+allocatableMethod, nil, &c.allocatableResponse)
		<-c.callLock
	}
	if err != nil && !c.loggedAllocatableError {
		c.options.Log.Warn("allocatable resources unknown", "err", err)
	}
	c.loggedAllocatableError = err != nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resources.allocatableKnown = err == nil
	if err == nil {
		replaceRows(&c.resources.allocatable, &c.allocatableResponse.resources)
	}
	c.publish(false)
}

// confirmRecentPods calls Get for the newest pods, the possible owners of a pending allocation, and reports whether all owners are known.
// If so, List can wait: Get returns a single pod, and List all pods of the node.
func (c *Client) confirmRecentPods(ctx context.Context) bool {
	now := time.Now()
	c.mu.Lock()
	names := c.recentPods
	c.recentPods = nil
	// Get must not delay an overdue or failed List.
	isUseful := c.tracker.isLookingUp(now) && c.lastErr == nil && now.Sub(c.respondedAt) < idleInterval && len(names) <= maxGetPods
	c.mu.Unlock()
	if !isUseful {
		return false
	}
	for _, name := range names {
		if c.confirmPod(ctx, name) != nil { // also a missing pod
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.tracker.isLookingUp(now)
}

// confirmPod calls Get for a pod. The response has the fields of a List with a single pod.
func (c *Client) confirmPod(ctx context.Context, name podName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.lockCalls(ctx); err != nil {
		return err
	}
	defer func() { <-c.callLock }()
	requestedAt, response := time.Now(), newListResponse()
	epoch, err := c.kubelet.call(ctx, service+"Get", getRequest(name), &response)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(c.tracker.confirmPod(response.allocations, epoch, requestedAt))
	return nil
}
