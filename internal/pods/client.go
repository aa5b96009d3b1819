// Package pods follows the kubelet's own list of pods.
//
// A kubelet from 1.37 on says over a socket which pods it has, and every change of
// them, as whole objects (the Pods API, v1alpha1.Pods). A few fields are kept of
// each: who it is, the labels that were asked for, and how its containers are. A
// kubelet that has no such socket is an older one, and nothing is missing but that.
package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Paces and limits.
const (
	// socketPollInterval is how often the socket is looked for where there is none: it costs one stat.
	socketPollInterval = 2 * time.Second
	// A kubelet that does not answer, or says that it is initializing, is asked again
	// ever more slowly.
	minBackoff, maxBackoff = 100 * time.Millisecond, 2 * time.Second
	// syncTimeout is how long a kubelet may take to say which pods there are.
	syncTimeout = 30 * time.Second
	// renewInterval is how often a sound stream is exchanged for a new one. The kubelet
	// leaves out events when it cannot keep up with itself, and says so to nobody
	// (Broadcast in pkg/kubelet/apis/pods/server.go).
	renewInterval = 30 * time.Minute
	// incompleteRenewInterval is the same for a stream on which something was not understood.
	incompleteRenewInterval = time.Minute
	// staleTimeout is how long the last pods stand. A kubelet that is away admits nobody
	// meanwhile; but one that has come back without a Pods API would.
	staleTimeout = 10 * time.Minute
	// heartbeatInterval is the pace of a loop that has nothing to do.
	heartbeatInterval = 10 * time.Second
	// maxEventBytes is for pods greater than gRPC's own 4 MiB, which etcd does not hold.
	maxEventBytes = 64 << 20
)

// ErrNoPodsAPI is the error where the kubelet has no Pods API: it is older than 1.37, or
// its feature gate PodsAPI is off.
var ErrNoPodsAPI = errors.New("the kubelet has no Pods API")

// Options of a Client. The zero value keeps no labels and is silent.
type Options struct {
	// Labels are the names of the labels that are kept. One that ends with * is a prefix.
	Labels []string
	Log    *slog.Logger
	Hooks  PodHooks
}

// PodHooks is told of pods, after they, or their absence, can be seen with Look. A nil
// func is not called. They are called on Run's goroutine and must be quick: a kubelet
// drops a watcher that is 100 events behind.
type PodHooks struct {
	// OnPodAdded is called when a pod appears that is not over yet; so for every such pod
	// when the first stream begins. Of two pods of one name the end of the first is told
	// before.
	OnPodAdded func(namespace, pod string)
	// OnPodEnded is called when a pod is over, with all that was said of how, and at least
	// once: for one of the last 1,024 not again. A pod that was first heard of when it
	// was over is among them. One whose end nobody has seen is as it was last known.
	OnPodEnded func(Pod)
}

// Client follows the pods of one kubelet.
type Client struct {
	device.Heartbeat

	log   *slog.Logger
	hooks PodHooks
	stat  func() (os.FileInfo, error)
	dial  func(ctx context.Context) (net.Conn, error)

	// These belong to Run's goroutine.
	cache             podCache
	event             watchEvent    // the newest; while read fills it, it is read's
	backoff           time.Duration // the pause after the next failure
	startedAt         time.Time     // when Run did
	logged            syncLogState  // what is in the log already
	unsupportedSocket os.FileInfo   // the socket of a kubelet that does not know the Pods API

	mu sync.Mutex
	// All below are guarded by mu.
	published Pods
	changed   chan struct{} // closed when other pods, or another error, were published
}

// New makes a client of the kubelet that listens, or will, or will never, on socket. A
// label that is neither a name nor a prefix is an error.
func New(socket string, o Options) (*Client, error) {
	labels, err := newAllowlist(o.Labels)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Client{
		log: o.Log, hooks: o.Hooks, backoff: minBackoff, changed: make(chan struct{}),
		event: watchEvent{allowlist: labels, interner: wire.NewInterner(maxInternedNames)},
		stat:  func() (os.FileInfo, error) { return os.Stat(socket) },
		dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}, nil
}

// Ready says so while the kubelet was not asked yet. One that has no Pods API, or does
// not answer, is no reason not to be ready.
func (c *Client) Ready() error {
	if pods, _ := c.Snapshot(); !pods.Synced && pods.Err == nil {
		return errors.New("the kubelet was not asked for its pods yet")
	}
	return nil
}

// Snapshot returns the pods, and a channel that is closed when they are others or known
// otherwise.
func (c *Client) Snapshot() (Pods, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.published, c.changed
}

// Run follows the pods until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	c.startedAt = time.Now()
	for ctx.Err() == nil {
		c.Beat()
		sleep(ctx, c.followOnce(ctx))
	}
	return nil
}

func sleep(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// followOnce looks for the kubelet and follows it as long as that goes well. It returns how
// long to wait before the next time.
func (c *Client) followOnce(ctx context.Context) (pause time.Duration) {
	socket, err := c.stat()
	if err != nil {
		c.recordFailure(fmt.Errorf("%w: %w", ErrNoPodsAPI, err))
		return socketPollInterval
	}
	if c.unsupportedSocket != nil && sameSocket(socket, c.unsupportedSocket) {
		return socketPollInterval
	}
	c.unsupportedSocket = nil
	began := time.Now()
	err = c.follow(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, errRenew):
		return 0
	case status.Code(err) == codes.Unimplemented:
		c.unsupportedSocket = socket
		c.recordFailure(fmt.Errorf("%w: %w", ErrNoPodsAPI, err))
		return socketPollInterval
	}
	c.recordFailure(err)
	if time.Since(began) > maxBackoff {
		c.backoff = minBackoff
	}
	pause, c.backoff = c.backoff, min(2*c.backoff, maxBackoff)
	return pause
}

// sameSocket tells whether a kubelet still listens where it did. A file system gives
// inode numbers away again at once.
func sameSocket(a, b os.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// recordFailure publishes that the kubelet does not say which pods there are. The last ones
// stand for a while.
func (c *Client) recordFailure(err error) {
	ps := &c.cache.pods
	changed := ps.Synced || ps.Err == nil || ps.Err.Error() != err.Error()
	ps.Synced, ps.Err = false, err
	if ps.Len() > 0 && time.Since(ps.At) > staleTimeout {
		ps.setAll(nil)
		changed = true
	}
	c.cache.syncing = nil
	c.publish(changed)
	c.logOutage(err)
}

// applyEvent takes in the newest event, and tells of it.
func (c *Client) applyEvent() {
	wasComplete := c.cache.incompleteErr == nil
	c.cache.pods.At = time.Now()
	c.publish(c.cache.apply(&c.event))
	c.runHooks()
	if wasComplete && c.cache.incompleteErr != nil {
		c.logIncomplete()
	}
	if c.cache.pods.Synced {
		c.logSynced()
	}
}

func (c *Client) publish(changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.published = c.cache.pods
	if changed {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// runHooks calls the trace for what was published.
func (c *Client) runHooks() {
	cache := &c.cache
	for _, p := range cache.endedPods {
		if c.hooks.OnPodEnded != nil {
			c.hooks.OnPodEnded(*p)
		}
	}
	for _, p := range cache.addedPods {
		if c.hooks.OnPodAdded != nil {
			c.hooks.OnPodAdded(p.Namespace, p.Name)
		}
	}
	clear(cache.addedPods)
	clear(cache.endedPods)
	cache.addedPods, cache.endedPods = cache.addedPods[:0], cache.endedPods[:0]
}
