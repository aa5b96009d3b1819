package podresources

import (
	"context"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/retry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// idleInterval is the interval of List without scrapes: the greatest delay
	// until the end of an allocation is known.
	idleInterval = 10 * time.Second
	// allocatableInterval is the least interval of GetAllocatableResources.
	allocatableInterval = time.Second
	// minRefreshDelay and maxRefreshDelay limit the delay of List after
	// Allocate, and after a kubelet restart. The delay doubles with each List.
	minRefreshDelay, maxRefreshDelay = 50 * time.Millisecond, 2 * time.Second
)

// Run keeps the allocations fresh between scrapes, and looks up the owners of
// new allocations, until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	defer c.kubelet.conn.Close() //nolint:errcheck // no more calls follow
	due, refresh := time.Now(), retry.Backoff{Min: minRefreshDelay, Max: maxRefreshDelay}
	for {
		c.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-c.refreshRequested:
			// An earlier List stays due: otherwise a burst of allocations would
			// postpone List.
			refresh.Reset()
			if soon := time.Now().Add(refresh.Next()); soon.Before(due) {
				due = soon
			}
			continue
		case <-time.After(time.Until(due)):
		}
		if !c.getRecentPods(ctx) {
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

// refreshDelay returns the delay of the next List, and whether the next List
// may change allocations. Calls by scrapes count.
func (c *Client) refreshDelay(now time.Time) (delay time.Duration, expectsUpdate bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr != nil {
		return outageInterval, c.tracker.isLookingUp(now)
	}
	delay = retry.Aligned(c.respondedAt.Add(idleInterval).Sub(now))
	if c.allocatableStale {
		delay = min(delay, c.allocatableAt.Add(allocatableInterval).Sub(now))
	}
	return max(delay, minRefreshDelay), c.tracker.isLookingUp(now) || !c.tracker.restartOver
}

// getRecentPods calls Get for the newest pods, the possible owners of a pending
// allocation, and reports whether all owners are known. If so, List can wait:
// Get returns a single pod, and a List may disturb another allocation
// (allocateRecordDelay).
func (c *Client) getRecentPods(ctx context.Context) bool {
	now := time.Now()
	c.mu.Lock()
	names := c.recentPods
	c.recentPods = nil
	// Get must not delay a requested, overdue or failed List.
	isUseful := c.tracker.isLookingUp(now) && !c.needsList && c.lastErr == nil && c.tracker.epoch != c.noGetEpoch &&
		now.Sub(c.respondedAt) < idleInterval && len(names) <= maxGetPods
	c.needsList = false
	c.mu.Unlock()
	if !isUseful {
		return false
	}
	for _, name := range names {
		if c.getPod(ctx, name) != nil { // also a missing pod
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.tracker.isLookingUp(now)
}

func (c *Client) getPod(ctx context.Context, name podName) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := c.lockCalls(ctx); err != nil {
		return err
	}
	defer c.unlockCalls()
	c.waitAfterAllocate(ctx)
	requestedAt := time.Now()
	var l *listing
	epoch, err := c.kubelet.call(ctx, "Get", func(ctx context.Context, from grpc.CallOption) error {
		request := &api.GetPodResourcesRequest{PodName: name.pod, PodNamespace: name.namespace}
		response, err := c.kubelet.Get(ctx, request, from)
		if err == nil {
			pods := []*api.PodResources{response.GetPodResources()}
			l, err = newListing(pods, newGoogleNames(&c.options), &c.options)
		}
		return err
	})
	if err != nil {
		// Get of pkg/kubelet/apis/podresources/server_v1.go before Kubernetes 1.34
		if status.Code(err) == codes.Unimplemented || strings.Contains(err.Error(), "Get method disabled") {
			c.noGetEpoch = epoch
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(c.tracker.mergeGet(l, epoch, requestedAt))
	return nil
}

// refresh calls List and GetAllocatableResources.
func (c *Client) refresh(ctx context.Context) {
	callCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	allocations := c.ListAllocations(callCtx)
	if ctx.Err() != nil {
		return
	}
	c.logOutage(allocations.Err)
	c.logCheckpoint()
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

// logCheckpoint logs an unreadable checkpoint that an allocation depends on, a
// single time until the next successful read.
func (c *Client) logCheckpoint() {
	c.mu.Lock()
	err, needed := c.checkpointErr, c.tracker.needsCheckpoint(time.Now())
	c.mu.Unlock()
	switch {
	case err == nil:
		c.loggedCheckpointError = false
	case needed && !c.loggedCheckpointError:
		c.options.Log.Warn("checkpoint unreadable, keeping allocations without an owner", "err", err)
		c.loggedCheckpointError = true
	}
}

// fetchAllocatable calls GetAllocatableResources: healthy devices, allocated or
// not, CPUs and memory. After an error the resources are unknown, as with a
// kubelet before 1.23: old values would look like current values.
func (c *Client) fetchAllocatable(ctx context.Context) {
	c.mu.Lock()
	c.allocatableStale = false
	c.mu.Unlock()
	rows, err := c.getAllocatable(ctx)
	if err != nil && !c.loggedAllocatableError {
		c.options.Log.Warn("allocatable resources unknown", "err", err)
	}
	c.loggedAllocatableError = err != nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.allocatable = rows
	c.publish(false)
}

func (c *Client) getAllocatable(ctx context.Context) (rows *allocation.ResourceSet, err error) {
	if err := c.lockCalls(ctx); err != nil { // a large response beside another exceeds the memory
		return nil, err
	}
	defer c.unlockCalls()
	_, err = c.kubelet.call(ctx, "GetAllocatableResources", func(ctx context.Context, from grpc.CallOption) error {
		response, err := c.kubelet.GetAllocatableResources(ctx, &api.AllocatableResourcesRequest{}, from)
		if err == nil {
			rows = newAllocatable(response, &c.options)
		}
		return err
	})
	return rows, err
}
