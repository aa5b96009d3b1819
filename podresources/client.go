// Package podresources asks the kubelet which container holds which device.
//
// The kubelet answers over one kept connection (PodResourcesLister v1). What it
// answers is right most of the time: for a moment after each restart it is not,
// and between Allocate and its own bookkeeping it cannot be. The package knows
// those moments and never takes an absence in one of them for a device that is
// free (docs/adr/0004-unknown-holders.md).
package podresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/grpc"
)

// Paces and limits.
const (
	// maxResponseBytes is for nodes with hundreds of pods and thousands of
	// replicas: gRPC's own 4 MiB were met in the field (dcgm-exporter#509).
	maxResponseBytes = 64 << 20
	// callTimeout ends a question that nobody else's deadline ends sooner.
	callTimeout = 5 * time.Second
	// idleInterval is how often the kubelet is asked when nobody else asks: it
	// bounds how late the end of a holding is noticed.
	idleInterval = 10 * time.Second
	// outageInterval is the same while the kubelet does not answer.
	outageInterval = time.Second
	// allocatableInterval keeps the question for what is allocatable from being asked with
	// every look for a name.
	allocatableInterval = time.Second
	// After an Allocate the kubelet is asked ever more slowly, and then no more.
	minRefreshDelay, maxRefreshDelay, ownerLookupTimeout = 50 * time.Millisecond, 2 * time.Second, 10 * time.Second
	// allocateRecordDelay is how long after Allocate the kubelet is not asked. It notes an allocation
	// when Allocate has returned, and a List before that, which finds a pod that has ended,
	// has it forget what it is allocating: then it gives the same device to the next pod too
	// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go). And the answer
	// could not have the name yet.
	allocateRecordDelay = 20 * time.Millisecond
	// The kubelet's limit is 100 questions a second from all who ask on the node
	// (pkg/kubelet/apis/podresources/constants.go), so whoever is refused waits.
	minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
)

// DeviceIndex knows the devices of this node.
type DeviceIndex interface {
	// DeviceIDs returns the ids of all devices; nil before the first inventory. Other ids have no history and are neither allocations
	// (foreignIDs) nor taken from the checkpoint.
	DeviceIDs() []device.ID
	// ClaimedDevice returns the device that a claim allocates, if the node has it. The claim's slices are valid during the call only.
	ClaimedDevice(claim device.Claim) (device.ID, bool)
}

// Options configure a Client. The zero value of each is valid.
type Options struct {
	Log *slog.Logger // nil: nothing is logged
	// CheckpointPath is the path of the kubelet's checkpoint (CheckpointFile), which decides what List leaves open. The file may be
	// missing.
	CheckpointPath string
	// NodeName is the name with which the names of static pods end. Without it every pod counts as one of the API server.
	NodeName string
	// OwnerRetention is how long past owners are reported; 0: one hour.
	OwnerRetention time.Duration
	// Devices decides which ids are devices of this node; nil: all are, and claims allocate none.
	Devices DeviceIndex
	// OnCall observes each call of the kubelet, on the caller's goroutine; nil: none.
	OnCall func(method string, took time.Duration, err error)
}

// Client asks one kubelet, and remembers what it said.
type Client struct {
	device.Heartbeat
	options Options
	socket  string
	log     *slog.Logger
	conn    *grpc.ClientConn
	// refreshRequested has Run look soon: an allocation waits for its name, or somebody else's
	// question was not answered.
	refreshRequested chan struct{}
	// podAdded has Run ask about newcomers soon, whenever a look is due.
	podAdded chan struct{}
	// callLock is held from a List until its answer is taken in. Of two that are under
	// way at the same time nobody could tell which answer is the newer one, and a
	// holding that has ended could come back. It guards answer.
	callLock chan struct{}
	response rawListResponse

	// These belong to Run's goroutine.
	loggedOutage, loggedCheckpointError bool      // what is in the log already
	allocatableAt                       time.Time // when it last asked what is allocatable
	allocatableResponse                 rawAllocatableResponse

	mu sync.Mutex
	// All below are guarded by mu.
	tracker             allocationTracker
	resources           resourceTracker
	allocatableStale    bool // what is allocatable has changed since it was asked for
	recentPods          recentPods
	lastAllocateAt      time.Time          // when Allocate last returned
	getUnsupportedEpoch kubeletEpoch       // over which the kubelet has said that it knows no Get
	published           device.Allocations // what was published last
	changed             chan struct{}      // closed when who holds what has changed
	rateLimitErr        error              // the newest one
	backoff             time.Duration      // how long to wait after the next refusal
	retryAt             time.Time          // no question before, after a refusal
}

// New makes a client of the kubelet that listens, or will, on socket. It connects
// when it is first asked.
func New(socket string, options Options) (*Client, error) {
	c, err := newClient(newDialer(socket), options)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", socket, err)
	}
	c.socket = socket
	return c, nil
}

// Ready reports what is missing until the kubelet has answered once: a wrong folder, or a socket
// that this process may not connect to, costs all owner labels. A later outage does not: the last
// answer stands.
func (c *Client) Ready() error {
	switch allocations, _ := c.Snapshot(); {
	case !allocations.At.IsZero():
		return nil
	case allocations.Err == nil:
		return errors.New("the kubelet was not asked yet")
	default:
		return fmt.Errorf("owners of devices are unknown, the kubelet has not answered yet: %w", allocations.Err)
	}
}

// Run keeps what is known fresh while nobody asks, and looks for the names of
// allocations, until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	defer c.conn.Close() //nolint:errcheck // nothing can be done about it, and nobody asks any more
	due, backoff := time.Now(), minRefreshDelay
	var podsDue time.Time // when newcomers are asked about; zero where none has come
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
			// A look that is due sooner stays due: in a burst of allocations each
			// would put it off for the others.
			due, backoff = earlier(due, time.Now().Add(minRefreshDelay)), 2*minRefreshDelay
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
		if now.Before(due) && c.expectsUpdate(now) {
			continue // a look is due when it was
		}
		due = now.Add(c.refreshDelay(now))
		if next := now.Add(backoff); c.expectsUpdate(now) && next.Before(due) {
			due = next
			backoff = min(2*backoff, maxRefreshDelay)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// refresh asks what Run wants to know.
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
		c.mu.Lock()
		c.allocatableStale = false
		c.mu.Unlock()
		c.fetchAllocatable(callCtx)
	}
}

// logOutage logs the begin and the end of an outage, however many questions fail in it
// and whoever asks them.
func (c *Client) logOutage(err error) {
	switch inOutage := err != nil; {
	case inOutage && !c.loggedOutage:
		c.log.Warn("the kubelet does not say who holds what; the last holders stand", "err", err)
	case !inOutage && c.loggedOutage:
		c.log.Info("the kubelet says again who holds what")
	}
	c.loggedOutage = err != nil
}

// refreshDelay is how long Run may rest: others ask too, and their answers are as good.
func (c *Client) refreshDelay(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.published.Err != nil {
		return max(outageInterval, c.retryAt.Sub(now))
	}
	wait := c.published.At.Add(idleInterval).Sub(now)
	if c.allocatableStale {
		wait = min(wait, c.allocatableAt.Add(allocatableInterval).Sub(now))
	}
	return max(wait, minRefreshDelay)
}

// expectsUpdate tells whether there is something that Run should look for soon.
func (c *Client) expectsUpdate(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tracker.expectsUpdate(now)
}

// OnAllocated says that Allocate has returned for these ids: someone is about to
// hold them, and the kubelet will know who a moment later.
func (c *Client) OnAllocated(resource string, ids []device.AdvertisedID) {
	now := time.Now()
	c.mu.Lock()
	c.lastAllocateAt = now
	c.publish(c.tracker.recordAllocate(resource, ids, now))
	c.mu.Unlock()
	c.requestRefresh()
}

// OnListSent says that the kubelet was told of other devices than before, or that some are ill: what
// it would give away is another.
func (c *Client) OnListSent() {
	c.mu.Lock()
	c.allocatableStale = true
	c.mu.Unlock()
	c.requestRefresh()
}

// OnRegistered says that there is a new kubelet: what it names is to be known before any of it
// ends.
func (c *Client) OnRegistered() { c.requestRefresh() }

// OnPodEnded says that a pod is over. Only the kubelet's next answer takes away what it held; but where
// that kubelet goes first, or is another one by then, it is not kept for a holder who was not
// named yet. It may be called for pods that hold nothing, and must not be for one whose name
// another has already.
func (c *Client) OnPodEnded(namespace, pod string) {
	c.mu.Lock()
	hasAllocation := c.tracker.markPodEnded(podName{namespace, pod}, time.Now())
	c.mu.Unlock()
	if hasAllocation {
		c.requestRefresh()
	}
}

func (c *Client) requestRefresh() {
	select {
	case c.refreshRequested <- struct{}{}:
	default:
	}
}

// Snapshot returns what is known, and a channel that is closed when who holds what
// has changed. It asks nobody.
func (c *Client) Snapshot() (device.Allocations, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.published, c.changed
}

// ListAllocations asks the kubelet who holds what. Where it does not answer before ctx is
// done, what was known before comes back, with the reason in Err.
func (c *Client) ListAllocations(ctx context.Context) device.Allocations {
	calledAt := time.Now()
	if err := c.lockCalls(ctx); err != nil {
		return c.recordFailure(ctx, err)
	}
	defer c.unlockCalls()
	if allocations, ok := c.responseSince(calledAt); ok {
		return allocations
	}
	c.waitAfterAllocate(ctx)
	requestedAt := time.Now()
	c.updateOwnIDs(&c.response.resources)
	epoch, err := c.call(ctx, "List", nil, &c.response)
	if err != nil {
		return c.recordFailure(ctx, err)
	}
	c.addClaimAllocations(&c.response)
	c.mu.Lock()
	partial := c.tracker.mayBePartial(epoch, requestedAt)
	c.mu.Unlock()
	var checkpoint kubeletCheckpoint
	if partial {
		checkpoint = c.changedCheckpoint()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	restarted := epoch != c.tracker.epoch
	added := partial && c.tracker.addAllocatedInOutage(checkpoint, requestedAt)
	changed := c.tracker.merge(&c.response, epoch, requestedAt) || added
	young := requestedAt.Sub(epoch.connectedAt) < settleTimeout || c.tracker.apiPods.isIncomplete(requestedAt)
	changed = c.resources.merge(&c.response.resources, c.response.pods, epoch, young) || changed
	c.published.At = time.Now()
	c.published.Err = nil
	c.backoff = minBackoff
	c.publish(changed)
	if restarted && c.tracker.awaitsConfirmation(c.published.At) {
		c.requestRefresh()
	}
	return c.published
}

// waitAfterAllocate waits until the kubelet has noted what it allocated last, or ctx is done.
func (c *Client) waitAfterAllocate(ctx context.Context) {
	c.mu.Lock()
	wait := time.Until(c.lastAllocateAt.Add(allocateRecordDelay))
	c.mu.Unlock()
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// responseSince returns the newest answer where somebody else has asked for it while
// the caller waited: it is as good as one of his own.
func (c *Client) responseSince(calledAt time.Time) (device.Allocations, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.published, c.published.Err == nil && c.tracker.requestedAt.After(calledAt)
}

// recordFailure returns what is known, and why it is not known better. That a caller has
// lost interest says nothing of the kubelet, and nobody else is told.
func (c *Client) recordFailure(ctx context.Context, err error) device.Allocations {
	if errors.Is(ctx.Err(), context.Canceled) {
		allocations, _ := c.Snapshot()
		allocations.Err = err
		return allocations
	}
	now := time.Now()
	checkpoint := c.changedCheckpoint()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.published.Err == nil {
		c.requestRefresh() // else Run would find out when it is due
	}
	c.published.Err = err
	c.resources.clearAllocatable()
	dropped := c.tracker.dropEndedPods(now)
	c.publish(c.tracker.addAllocatedInOutage(checkpoint, now) || dropped)
	return c.published
}

// publish makes what the memory holds the newest that others see. The caller
// holds mu.
func (c *Client) publish(changed bool) {
	c.published.All = c.tracker.allocations
	c.published.Complete = c.tracker.settled
	c.published.Recent = c.tracker.history.records()
	c.published.Resources = c.resources.snapshot(c.tracker.allocations)
	c.published.Resources.Dropped = c.resources.droppedAllocatable
	c.published.Resources.DroppedAllocated = c.resources.droppedAllocated
	if changed {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}
