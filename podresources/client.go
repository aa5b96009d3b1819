// Package podresources tracks the containers of each device, by the kubelet's PodResourcesLister service (v1).
//
// List is incomplete for a moment after each kubelet restart, and between Allocate and the kubelet's own record of the allocation. At such
// moments a device missing in List does not count as unallocated (docs/contributing/adr/0004-unknown-owners.md).
package podresources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/retry"
)

// allocateRecordDelay is the pause of calls after Allocate. The kubelet records an allocation after Allocate returns. A List before the
// record lacks the owner; and if the List finds an ended pod, the kubelet drops the new allocation and later allocates the device twice
// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go).
const allocateRecordDelay = 20 * time.Millisecond

// DeviceIndex knows the devices of this node.
type DeviceIndex interface {
	// DeviceIDs returns the ids of all devices; nil before the first inventory. Foreign ids have no history, and entries of the checkpoint
	// with foreign ids are ignored.
	DeviceIDs() []device.ID
	// ClaimedDevice returns the device allocated by a claim, if the node has the device. The claim's slices are valid during the call only.
	ClaimedDevice(claim device.Claim) (device.ID, bool)
}

// Options configure a Client. The zero value of each is valid.
type Options struct {
	Log *slog.Logger // nil discards messages
	// CheckpointPath is the path of the kubelet's checkpoint (CheckpointFile), for allocations without a name in List. The file may be
	// missing.
	CheckpointPath string
	// NodeName ends the names of static pods. Without NodeName every pod counts as a pod of the API server.
	NodeName string
	// OwnerRetention is how long past owners are reported; 0 is an hour.
	OwnerRetention time.Duration
	// Devices knows the devices of this node. If nil, all ids are devices of this node, and claims are no allocations.
	Devices DeviceIndex
	// OnCall observes each call of the kubelet, on the caller's goroutine; may be nil.
	OnCall func(method string, took time.Duration, err error)
}

// Client calls a kubelet and tracks allocations.
type Client struct {
	device.Heartbeat
	options   Options
	kubelet   *kubeletConn
	published pubsub.Value[device.Allocations]
	// refreshRequested makes Run call the kubelet soon: the owner of an allocation is unknown, or a concurrent call failed.
	refreshRequested chan struct{}
	// callLock is held from a call until the response is merged: two concurrent responses have no known order, and the older response could
	// bring back an ended allocation. callLock guards response.
	callLock chan struct{}
	response rawListResponse

	// The fields below belong to Run's goroutine.
	loggedOutage, loggedCheckpointError, loggedAllocatableError bool
	allocatableAt                                               time.Time // last call of GetAllocatableResources
	allocatableResponse                                         rawAllocatableResponse

	mu sync.Mutex
	// The fields below are guarded by mu.
	tracker          allocationTracker
	resources        resourceTracker
	recentPods       []podName // added since the newest call by Run, at most maxGetPods+1
	respondedAt      time.Time // newest response of List
	lastErr          error     // of the newest call of List
	lastAllocateAt   time.Time // newest return of Allocate
	allocatableStale bool      // the allocatable resources have changed since the last call
}

// New returns a client of the kubelet's socket. The first call connects.
func New(socket string, options Options) (*Client, error) {
	return newClient(socket, newDialer(socket), options)
}

func newClient(socket string, dial dialFunc, options Options) (*Client, error) {
	kubelet, err := newKubeletConn(socket, dial, options.OnCall)
	if err != nil {
		return nil, err
	}
	c := &Client{
		options: options, kubelet: kubelet, tracker: newAllocationTracker(),
		response: newListResponse(), allocatableResponse: rawAllocatableResponse{newResourceRows(maxAllocatableIDs)},
		refreshRequested: make(chan struct{}, 1), callLock: make(chan struct{}, 1),
	}
	if c.options.Log == nil {
		c.options.Log = slog.New(slog.DiscardHandler)
	}
	c.tracker.apiPods.nodeName = strings.ToLower(options.NodeName)
	if options.OwnerRetention > 0 {
		c.tracker.history.retention = options.OwnerRetention
	}
	return c, nil
}

// Ready returns an error until the kubelet has answered once: with a wrong folder or a socket without access, all owner labels are
// missing. A later outage is no error, since the last response stands.
func (c *Client) Ready() error {
	switch allocations, _ := c.Snapshot(); {
	case !allocations.At.IsZero():
		return nil
	case allocations.Err == nil:
		return errors.New("no request to the kubelet yet")
	default:
		return fmt.Errorf("owners of devices are unknown, no response from the kubelet yet: %w", allocations.Err)
	}
}

// Snapshot returns the newest allocations and a channel closed by the next change, without a call.
func (c *Client) Snapshot() (device.Allocations, <-chan struct{}) { return c.published.Get() }

// publish publishes the state of the trackers, and wakes readers if allocations changed. The caller holds mu.
func (c *Client) publish(changed bool) {
	a := device.Allocations{
		At: c.respondedAt, Err: c.lastErr, All: c.tracker.allocations, Complete: c.tracker.settled,
		Recent: c.tracker.history.records(), Resources: c.resources.snapshot(c.tracker.allocations),
	}
	if changed {
		c.published.Set(a)
	} else {
		c.published.Replace(a)
	}
}

// OnAllocated records the return of Allocate for ids. The kubelet names the owner a moment later.
func (c *Client) OnAllocated(resource string, ids []device.AdvertisedID) {
	now := time.Now()
	c.mu.Lock()
	c.lastAllocateAt = now
	c.publish(c.tracker.recordAllocate(resource, ids, now))
	c.mu.Unlock()
	pubsub.Notify(c.refreshRequested)
}

// OnListSent records a new device list. The allocatable resources have changed.
func (c *Client) OnListSent() {
	c.mu.Lock()
	c.allocatableStale = true
	c.mu.Unlock()
	pubsub.Notify(c.refreshRequested)
}

// OnRegistered records a registration: the kubelet may be new. A List soon confirms allocations before their end.
func (c *Client) OnRegistered() { pubsub.Notify(c.refreshRequested) }

// OnPodAdded records a new pod on the node: the possible owner of a pending allocation.
func (c *Client) OnPodAdded(namespace, pod string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.recentPods) <= maxGetPods {
		c.recentPods = append(c.recentPods, podName{namespace, pod})
	}
}

// OnPodEnded records the end of a pod. The next List ends the pod's allocations; after a kubelet restart or without an answer, the
// allocations are not retained. Do not call OnPodEnded after a new pod took the name.
func (c *Client) OnPodEnded(namespace, pod string) {
	c.mu.Lock()
	hadAllocation := c.tracker.markPodEnded(podName{namespace, pod}, time.Now())
	c.mu.Unlock()
	if hadAllocation {
		pubsub.Notify(c.refreshRequested)
	}
}

// ListAllocations calls List and returns the allocations. If the kubelet does not answer before ctx is done, the allocations are unchanged
// and Err has the reason.
func (c *Client) ListAllocations(ctx context.Context) device.Allocations {
	if err := c.lockCalls(ctx); err != nil {
		return c.recordFailure(err)
	}
	defer func() { <-c.callLock }()
	c.waitAfterAllocate(ctx)
	requestedAt := time.Now()
	c.setOwnIDs(&c.response.resources)
	epoch, err := c.kubelet.call(ctx, service+"List", nil, &c.response)
	if err != nil {
		return c.recordFailure(err)
	}
	c.addClaimAllocations(&c.response)
	restarted := epoch != c.tracker.epoch // written with callLock only
	if restarted {
		c.addAllocatedSince(requestedAt)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.tracker.merge(&c.response, epoch, requestedAt)
	incomplete := requestedAt.Sub(epoch.connectedAt) < settleTimeout || c.tracker.apiPods.isIncomplete(requestedAt)
	changed = c.resources.merge(&c.response.resources, c.response.pods, epoch, incomplete) || changed
	c.respondedAt, c.lastErr = time.Now(), nil
	c.publish(changed)
	if restarted && c.tracker.awaitsConfirmation(c.respondedAt) {
		pubsub.Notify(c.refreshRequested)
	}
	allocations, _ := c.Snapshot()
	return allocations
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

// waitAfterAllocate waits until the kubelet has recorded the last allocation, or ctx is done.
func (c *Client) waitAfterAllocate(ctx context.Context) {
	c.mu.Lock()
	wait := time.Until(c.lastAllocateAt.Add(allocateRecordDelay))
	c.mu.Unlock()
	if wait > 0 {
		_ = retry.Sleep(ctx, wait) // the next call reports the error
	}
}

// setOwnIDs sets the ids of this node's devices for the next response.
func (c *Client) setOwnIDs(rows *resourceRows) {
	if c.options.Devices != nil {
		rows.foreign.setOwn(c.options.Devices.DeviceIDs())
	}
}

// addClaimAllocations adds an allocation for each claim with a device of this node.
func (c *Client) addClaimAllocations(r *rawListResponse) {
	if c.options.Devices == nil {
		return
	}
	for _, claim := range r.resources.Claims {
		if id, isOwn := c.options.Devices.ClaimedDevice(claim); isOwn && claim.Driver != "" && !strings.Contains(claim.Driver, "/") {
			r.allocations = append(r.allocations, device.Allocation{Resource: claim.Driver, DeviceID: id.Advertised(), Owner: claim.Owner})
		}
	}
}

// recordFailure returns the unchanged allocations with an error, and publishes the error.
func (c *Client) recordFailure(err error) device.Allocations {
	c.addAllocatedSince(time.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastErr == nil {
		pubsub.Notify(c.refreshRequested) // Run has to log the outage and to retry sooner
	}
	c.lastErr = err
	c.resources.allocatableKnown = false
	c.publish(c.tracker.dropEndedPods(time.Now()))
	allocations, _ := c.Snapshot()
	return allocations
}

// addAllocatedSince adds the allocations since the newest List, if the checkpoint has changed and is readable.
func (c *Client) addAllocatedSince(now time.Time) {
	if !c.hasCheckpointChanged() {
		return
	}
	checkpoint, _ := readCheckpoint(c.options.CheckpointPath) // no entries after an error
	c.mu.Lock()
	defer c.mu.Unlock()
	c.publish(c.tracker.addAllocatedSince(checkpoint, now))
}

// hasCheckpointChanged reports whether the checkpoint differs from the tracker's. An unchanged checkpoint counts as read again.
func (c *Client) hasCheckpointChanged() bool {
	info, err := os.Stat(c.options.CheckpointPath)
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !info.ModTime().Equal(c.tracker.checkpoint.writtenAt) {
		return true
	}
	c.tracker.storeCheckpoint(c.tracker.checkpoint)
	return false
}
