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
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Paces and limits.
const (
	// maxAnswerBytes is for nodes with hundreds of pods and thousands of
	// replicas: gRPC's own 4 MiB were met in the field (dcgm-exporter#509).
	maxAnswerBytes = 64 << 20
	// askTimeout ends a question that nobody else's deadline ends sooner.
	askTimeout = 5 * time.Second
	// idleEvery is how often the kubelet is asked when nobody else asks: it
	// bounds how late the end of a holding is noticed.
	idleEvery = 10 * time.Second
	// lostEvery is the same while the kubelet does not answer.
	lostEvery = time.Second
	// countEvery keeps the question for what is allocatable from being asked with
	// every look for a name.
	countEvery = time.Second
	// After an Allocate the kubelet is asked ever more slowly, and then no more.
	lookFirst, lookSlowest, lookFor = 50 * time.Millisecond, 2 * time.Second, 10 * time.Second
	// notedWithin is how long after Allocate the kubelet is not asked. It notes an allocation
	// when Allocate has returned, and a List before that, which finds a pod that has ended,
	// has it forget what it is allocating: then it gives the same device to the next pod too
	// (UpdateAllocatedDevices in pkg/kubelet/cm/devicemanager/manager.go). And the answer
	// could not have the name yet.
	notedWithin = 20 * time.Millisecond
	// The kubelet's limit is 100 questions a second from all who ask on the node
	// (pkg/kubelet/apis/podresources/constants.go), so whoever is refused waits.
	refusedFirst, refusedMost = 100 * time.Millisecond, 5 * time.Second
)

// Trace is told of what the client does. A nil func is not called. They are
// called on the goroutine of whoever asked and must be quick.
type Trace struct {
	Called func(method string, took time.Duration, err error)
}

// Client asks one kubelet, and remembers what it said.
type Client struct {
	device.Pulse
	// Checkpoint is the path of the kubelet's own file of allocations:
	// CheckpointFile in its device-plugins folder. It decides what List leaves
	// open, and may be missing. To be set before Run.
	Checkpoint string
	// Claimed finds the device that a claim gives, and tells whether that is one of ours:
	// who has the claim holds it then. It is asked with each answer, since the inventory
	// may have come to know the device, and must not keep the claim. To be set before Run;
	// nil finds none.
	Claimed func(device.Claim) (device.ID, bool)

	// Devices returns the ids of our devices. What containers had of others has no history,
	// and of a resource with too many other ids none is kept. To be set before Run. Nil: all
	// ids count as ours. While it returns nil, those of UUIDs do.
	Devices func() []device.ID

	socket string
	log    *slog.Logger
	trace  Trace
	conn   *grpc.ClientConn
	list   api.PodResourcesListerClient
	// kick has Run look soon: an allocation waits for its name, or somebody else's
	// question was not answered.
	kick chan struct{}
	// came has Run ask about newcomers soon, whenever a look is due.
	came chan struct{}
	// turn is held from a List until its answer is taken in. Of two that are under
	// way at the same time nobody could tell which answer is the newer one, and a
	// holding that has ended could come back. It guards answer.
	turn   chan struct{}
	answer rawAnswer

	// These belong to Run's goroutine.
	saidLost, saidBlind bool      // what is in the log already
	counted             time.Time // when it last asked what is allocatable
	offer               rawAllocatable

	mu sync.Mutex
	// All below are guarded by mu.
	memory    memory
	ledger    ledger
	recount   bool // what is allocatable has changed since it was asked for
	newcomers newcomers
	granted   time.Time      // when Allocate last returned
	noGet     link           // over which the kubelet has said that it knows no Get
	holders   device.Holders // what was published last
	changed   chan struct{}  // closed when who holds what has changed
	refusal   error          // the newest one
	refused   time.Duration  // how long to wait after the next refusal
	askAfter  time.Time      // no question before, after a refusal
}

// New makes a client of the kubelet that listens, or will, on socket. It connects
// when it is first asked.
func New(socket string, log *slog.Logger, trace Trace) (*Client, error) {
	c, err := newClient(dialer(socket), log, trace)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", socket, err)
	}
	c.socket = socket
	return c, nil
}

// KeepHolders says how long after its end a holder is told of; an hour, where it is not called.
// To be called before Run.
func (c *Client) KeepHolders(long time.Duration) { c.memory.recent.keptFor = long }

// Ready reports what is missing until the kubelet has answered once: a wrong folder, or a socket
// that this process may not connect to, costs all owner labels. A later outage does not: the last
// answer stands.
func (c *Client) Ready() error {
	switch holders, _ := c.Look(); {
	case !holders.At.IsZero():
		return nil
	case holders.Err == nil:
		return errors.New("the kubelet was not asked yet")
	default:
		return fmt.Errorf("owners of devices are unknown, the kubelet has not answered yet: %w", holders.Err)
	}
}

// Run keeps what is known fresh while nobody asks, and looks for the names of
// allocations, until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	defer c.conn.Close() //nolint:errcheck // nothing can be done about it, and nobody asks any more
	due, look := time.Now(), lookFirst
	var peek time.Time // when newcomers are asked about; zero where none has come
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.Beat()
		next := due
		if !peek.IsZero() {
			next = earlier(due, peek)
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return nil
		case <-c.kick:
			// A look that is due sooner stays due: in a burst of allocations each
			// would put it off for the others.
			due, look = earlier(due, time.Now().Add(lookFirst)), 2*lookFirst
			continue
		case <-c.came:
			if peek.IsZero() {
				peek = time.Now().Add(lookFirst)
			}
			continue
		case <-timer.C:
		}
		peek = time.Time{}
		if !c.askNewcomers(ctx) {
			if time.Now().Before(due) {
				continue
			}
			c.refresh(ctx)
		}
		now := time.Now()
		if now.Before(due) && c.curious(now) {
			continue // a look is due when it was
		}
		due = now.Add(c.pause(now))
		if next := now.Add(look); c.curious(now) && next.Before(due) {
			due = next
			look = min(2*look, lookSlowest)
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
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	holders := c.Owners(asking)
	if ctx.Err() != nil {
		return
	}
	c.say(holders.Err)
	c.readCheckpoint()
	if now := time.Now(); holders.Err == nil && now.Sub(c.counted) >= countEvery {
		c.counted = now
		c.mu.Lock()
		c.recount = false
		c.mu.Unlock()
		c.askAllocatable(asking)
	}
}

// say logs the begin and the end of an outage, however many questions fail in it
// and whoever asks them.
func (c *Client) say(err error) {
	switch lost := err != nil; {
	case lost && !c.saidLost:
		c.log.Warn("the kubelet does not say who holds what; the last holders stand", "err", err)
	case !lost && c.saidLost:
		c.log.Info("the kubelet says again who holds what")
	}
	c.saidLost = err != nil
}

// pause is how long Run may rest: others ask too, and their answers are as good.
func (c *Client) pause(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders.Err != nil {
		return max(lostEvery, c.askAfter.Sub(now))
	}
	wait := c.holders.At.Add(idleEvery).Sub(now)
	if c.recount {
		wait = min(wait, c.counted.Add(countEvery).Sub(now))
	}
	return max(wait, lookFirst)
}

// curious tells whether there is something that Run should look for soon.
func (c *Client) curious(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory.curious(now)
}

// Allocated says that Allocate has returned for these ids: someone is about to
// hold them, and the kubelet will know who a moment later.
func (c *Client) Allocated(resource string, ids []device.OfferedID) {
	now := time.Now()
	c.mu.Lock()
	c.granted = now
	c.publish(c.memory.allocated(resource, ids, now))
	c.mu.Unlock()
	c.lookSoon()
}

// Told says that the kubelet was told of other devices than before, or that some are ill: what
// it would give away is another.
func (c *Client) Told() {
	c.mu.Lock()
	c.recount = true
	c.mu.Unlock()
	c.lookSoon()
}

// Returned says that there is a new kubelet: what it names is to be known before any of it
// ends.
func (c *Client) Returned() { c.lookSoon() }

// Ended says that a pod is over. Only the kubelet's next answer takes away what it held; but where
// that kubelet goes first, or is another one by then, it is not kept for a holder who was not
// named yet. It may be called for pods that hold nothing, and must not be for one whose name
// another has already.
func (c *Client) Ended(namespace, pod string) {
	c.mu.Lock()
	holds := c.memory.noteEnd(podName{namespace, pod}, time.Now())
	c.mu.Unlock()
	if holds {
		c.lookSoon()
	}
}

func (c *Client) lookSoon() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// Look returns what is known, and a channel that is closed when who holds what
// has changed. It asks nobody.
func (c *Client) Look() (device.Holders, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holders, c.changed
}

// Owners asks the kubelet who holds what. Where it does not answer before ctx is
// done, what was known before comes back, with the reason in Err.
func (c *Client) Owners(ctx context.Context) device.Holders {
	came := time.Now()
	if err := c.begin(ctx); err != nil {
		return c.failed(ctx, err)
	}
	defer c.end()
	if holders, ok := c.askedSince(came); ok {
		return holders
	}
	c.letNote(ctx)
	asked := time.Now()
	over, err := c.askList(ctx)
	if err != nil {
		return c.failed(ctx, err)
	}
	c.answer.held = c.appendClaimed(c.answer.held, c.answer.given.claims)
	c.mu.Lock()
	doubts := c.memory.doubts(over, asked)
	c.mu.Unlock()
	var since notes
	if doubts {
		since = c.notesSince()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	returned := over != c.memory.link
	lost := doubts && c.memory.lost(since, asked)
	changed := c.memory.take(&c.answer, over, asked) || lost
	young := asked.Sub(over.connected) < settleAfter || c.memory.api.incomplete(asked)
	changed = c.ledger.take(&c.answer.given, c.answer.pods, over, young) || changed
	c.holders.At = time.Now()
	c.holders.Err = nil
	c.refused = refusedFirst
	c.publish(changed)
	if returned && c.memory.awaits(c.holders.At) {
		c.lookSoon()
	}
	return c.holders
}

// letNote waits until the kubelet has noted what it allocated last, or ctx is done.
func (c *Client) letNote(ctx context.Context) {
	c.mu.Lock()
	wait := time.Until(c.granted.Add(notedWithin))
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

// askedSince returns the newest answer where somebody else has asked for it while
// the caller waited: it is as good as one of his own.
func (c *Client) askedSince(came time.Time) (device.Holders, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holders, c.holders.Err == nil && c.memory.asked.After(came)
}

// failed returns what is known, and why it is not known better. That a caller has
// lost interest says nothing of the kubelet, and nobody else is told.
func (c *Client) failed(ctx context.Context, err error) device.Holders {
	if errors.Is(ctx.Err(), context.Canceled) {
		holders, _ := c.Look()
		holders.Err = err
		return holders
	}
	now := time.Now()
	since := c.notesSince()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders.Err == nil {
		c.lookSoon() // else Run would find out when it is due
	}
	c.holders.Err = err
	c.ledger.withdraw()
	buried := c.memory.bury(now)
	c.publish(c.memory.lost(since, now) || buried)
	return c.holders
}

// publish makes what the memory holds the newest that others see. The caller
// holds mu.
func (c *Client) publish(changed bool) {
	c.holders.Held = c.memory.held
	c.holders.Settled = c.memory.settled
	c.holders.Recent = c.memory.recent.seen()
	c.holders.Resources = c.ledger.resources(c.memory.held)
	c.holders.Resources.Dropped = c.ledger.dropped
	c.holders.Resources.DroppedHeld = c.ledger.droppedHeld
	if changed {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}
