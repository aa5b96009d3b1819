// Package podresources tracks the containers of each device, by the kubelet's
// PodResourcesLister service (v1).
//
// List is incomplete after each kubelet restart, and between Allocate and the
// kubelet's own record of the allocation. At such moments a device missing in
// List does not count as unallocated
// (docs/contributing/adr/0021-end-of-a-kubelet-restart.md).
package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// allocateRecordDelay is the pause of calls after Allocate. The kubelet
	// records an allocation after Allocate returns. A List before the record
	// lacks the owner; and if the List finds an ended pod, the kubelet drops
	// the new allocation and later allocates the device twice
	// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go).
	allocateRecordDelay = 20 * time.Millisecond
	// maxGetPods limits the calls of Get in place of a List: a List is a single
	// call of the kubelet's limit.
	maxGetPods = 3
	// defaultRetention is how long past owners are reported.
	defaultRetention = time.Hour
)

// Client calls a kubelet and tracks allocations.
type Client struct {
	device.Heartbeat
	options Options
	kubelet *kubeletConn
	// refreshRequested makes Run call the kubelet soon: the owner of an allocation
	// is unknown, or a concurrent call failed.
	refreshRequested chan struct{}
	// callLock is held from a call until the response is merged: two concurrent
	// responses have no known order, and the older response could bring back an
	// ended allocation. callLock guards checkpoint.
	callLock   chan struct{}
	checkpoint checkpointFile

	// The fields below belong to Run's goroutine.
	loggedOutage, loggedCheckpointError, loggedAllocatableError bool
	allocatableAt                                               time.Time     // last call
	noGetEpoch                                                  *kubeletEpoch // of a kubelet without Get

	mu sync.Mutex
	// The fields below are guarded by mu.
	tracker          allocationTracker
	allocatable      *allocation.ResourceSet // nil if unknown
	recentPods       []podName               // added since the newest call by Run, at most maxGetPods+1
	needsList        bool                    // Get does not suffice for the next call by Run
	respondedAt      time.Time               // newest response of List
	lastErr          error                   // of the newest call of List
	checkpointErr    error                   // of the newest read
	lastAllocateAt   time.Time               // newest return of Allocate
	allocatableStale bool                    // the allocatable resources have changed since the last call
}

// New returns a client of the kubelet's socket. The first call connects.
func New(socket string, options Options) (*Client, error) {
	return newClient(socket, dialSocket(socket), options)
}

func newClient(socket string, dial dialFunc, options Options) (*Client, error) {
	kubelet, err := newKubeletConn(socket, dial, options.OnCall)
	if err != nil {
		return nil, err
	}
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))
	if options.OwnerRetention <= 0 {
		options.OwnerRetention = defaultRetention
	}
	return &Client{
		options:          options,
		kubelet:          kubelet,
		checkpoint:       checkpointFile{path: options.CheckpointPath},
		tracker:          newAllocationTracker(options.OwnPod, options.OwnerRetention),
		refreshRequested: make(chan struct{}, 1),
		callLock:         make(chan struct{}, 1),
	}, nil
}

// Ready returns an error until the kubelet has answered once: with a wrong
// folder or a socket without access, all owner labels are missing. So are those of
// unallocated devices if List never names the own pod. A later outage is no error,
// since the last response stands.
func (c *Client) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.respondedAt.IsZero() && c.lastErr == nil:
		return errors.New("no request to the kubelet yet")
	case c.respondedAt.IsZero():
		return fmt.Errorf("owners of devices are unknown, no response from the kubelet yet: %w", c.lastErr)
	case c.tracker.isOwnPodMissing(time.Now()):
		return fmt.Errorf("the kubelet does not list pod %q: set POD_NAME to metadata.name", c.tracker.ownPod)
	}
	return nil
}

// publish publishes the state of the tracker, and wakes readers if allocations
// changed. The caller holds mu.
func (c *Client) publish(changed bool) allocation.Snapshot {
	a := allocation.Snapshot{
		At:        c.respondedAt,
		Err:       c.lastErr,
		All:       c.tracker.allocations,
		Complete:  c.tracker.complete,
		Recent:    c.tracker.history.records(),
		Resources: allocation.NodeResources{Allocated: c.tracker.allocatedResources()},
	}
	if c.allocatable != nil {
		a.Resources.AllocatableKnown = true
		a.Resources.Allocatable = *c.allocatable
	}
	if changed {
		c.options.Allocations.Set(a)
	} else {
		c.options.Allocations.Replace(a)
	}
	return a
}

// OnAllocated records the return of Allocate for ids. The kubelet names the
// owner a moment later.
func (c *Client) OnAllocated(resource string, ids []device.AdvertisedID) {
	now := time.Now()
	c.mu.Lock()
	c.lastAllocateAt = now
	c.publish(c.tracker.recordAllocate(resource, ids, now))
	c.mu.Unlock()
	pubsub.Notify(c.refreshRequested)
}

// OnListSent records a new device list. The allocatable resources have changed,
// and the kubelet may be new: a List soon confirms allocations before their
// end.
func (c *Client) OnListSent() {
	c.mu.Lock()
	c.allocatableStale = true
	c.needsList = true
	c.mu.Unlock()
	pubsub.Notify(c.refreshRequested)
}

// OnPodAdded records a new pod on the node: the possible owner of a pending
// allocation.
func (c *Client) OnPodAdded(namespace, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recentPods) <= maxGetPods {
		c.recentPods = append(c.recentPods, podName{namespace, pod})
	}
}

// OnPodEnded records the end of a pod. The next List ends the pod's
// allocations. Get would still name a rejected pod as an owner.
func (c *Client) OnPodEnded(namespace, pod string) {
	ended := podName{namespace, pod}
	c.mu.Lock()
	defer c.mu.Unlock()
	concerned := slices.ContainsFunc(c.tracker.allocations, func(a allocation.Allocation) bool {
		return podOf(a.Owner) == ended
	})
	if concerned || slices.Contains(c.recentPods, ended) {
		c.needsList = true
		pubsub.Notify(c.refreshRequested)
	}
}

// ListAllocations calls List and returns the allocations. If the kubelet does
// not answer before ctx is done, the allocations are unchanged and Err has the
// reason.
func (c *Client) ListAllocations(ctx context.Context) allocation.Snapshot {
	if err := c.lockCalls(ctx); err != nil {
		return c.recordFailure(err, nil)
	}
	defer c.unlockCalls()
	c.waitAfterAllocate(ctx)
	names := newGoogleNames(&c.options)
	before, err := c.checkpoint.read(names)
	if errors.Is(err, fs.ErrNotExist) {
		before = &kubeletCheckpoint{} // of a kubelet that never allocated
	}
	requestedAt := time.Now()
	var l *listing
	epoch, err := c.kubelet.call(ctx, "List", func(ctx context.Context, from grpc.CallOption) error {
		response, err := c.kubelet.List(ctx, &api.ListPodResourcesRequest{}, from)
		if err == nil {
			l, err = newListing(response.PodResources, names, &c.options)
		}
		return err
	})
	checkpoint, checkpointErr := c.checkpoint.read(names)
	if err != nil {
		return c.recordFailure(err, checkpoint)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if epoch != c.tracker.epoch {
		pubsub.Notify(c.refreshRequested) // Run has to find the end of the restart
	}
	changed := c.tracker.merge(l, epoch, requestedAt, before, checkpoint)
	c.respondedAt, c.lastErr, c.checkpointErr = time.Now(), nil, checkpointErr
	return c.publish(changed)
}

// lockCalls waits until no call is under way.
func (c *Client) lockCalls(ctx context.Context) error {
	select {
	case c.callLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for an earlier call: %w", ctx.Err())
	}
}

func (c *Client) unlockCalls() { <-c.callLock }

// waitAfterAllocate waits until the kubelet has recorded the last allocation,
// or ctx is done.
func (c *Client) waitAfterAllocate(ctx context.Context) {
	c.mu.Lock()
	wait := time.Until(c.lastAllocateAt.Add(allocateRecordDelay))
	c.mu.Unlock()
	_ = retry.Sleep(ctx, wait) // the next call reports the error
}

// recordFailure publishes the error, and the allocations that only the
// checkpoint has.
func (c *Client) recordFailure(err error, checkpoint *kubeletCheckpoint) allocation.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr == nil {
		pubsub.Notify(c.refreshRequested) // Run has to log the outage and to retry sooner
	}
	c.lastErr, c.allocatable = err, nil
	return c.publish(c.tracker.addUnseen(checkpoint, time.Now()))
}
