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
	// lookEvery is how often the socket is looked for where there is none: it costs one stat.
	lookEvery = 2 * time.Second
	// A kubelet that does not answer, or says that it is initializing, is asked again
	// ever more slowly.
	againFirst, againMost = 100 * time.Millisecond, 2 * time.Second
	// syncWithin is how long a kubelet may take to say which pods there are.
	syncWithin = 30 * time.Second
	// renewEvery is how often a sound stream is exchanged for a new one. The kubelet
	// leaves out events when it cannot keep up with itself, and says so to nobody
	// (Broadcast in pkg/kubelet/apis/pods/server.go).
	renewEvery = 30 * time.Minute
	// doubtFor is the same for a stream on which something was not understood.
	doubtFor = time.Minute
	// standFor is how long the last pods stand. A kubelet that is away admits nobody
	// meanwhile; but one that has come back without a Pods API would.
	standFor = 10 * time.Minute
	// beatEvery is the pace of a loop that has nothing to do.
	beatEvery = 10 * time.Second
	// maxEventBytes is for pods greater than gRPC's own 4 MiB, which etcd does not hold.
	maxEventBytes = 64 << 20
)

// ErrAbsent is the error where the kubelet has no Pods API: it is older than 1.37, or
// its feature gate PodsAPI is off.
var ErrAbsent = errors.New("the kubelet has no Pods API")

// Options of a Client. The zero value keeps no labels and is silent.
type Options struct {
	// Labels are the names of the labels that are kept. One that ends with * is a prefix.
	Labels []string
	Log    *slog.Logger
	Trace  Trace
}

// Trace is told of pods, after they, or their absence, can be seen with Look. A nil
// func is not called. They are called on Run's goroutine and must be quick: a kubelet
// drops a watcher that is 100 events behind.
type Trace struct {
	// Arrived is called when a pod appears that is not over yet; so for every such pod
	// when the first stream begins. Of two pods of one name the end of the first is told
	// before.
	Arrived func(namespace, pod string)
	// Ended is called when a pod is over, with all that was said of how, and at least
	// once: for one of the last 1,024 not again. A pod that was first heard of when it
	// was over is among them. One whose end nobody has seen is as it was last known.
	Ended func(Pod)
}

// Client follows the pods of one kubelet.
type Client struct {
	device.Pulse

	log   *slog.Logger
	trace Trace
	stat  func() (os.FileInfo, error)
	dial  func(ctx context.Context) (net.Conn, error)

	// These belong to Run's goroutine.
	known    known
	event    event         // the newest; while read fills it, it is read's
	again    time.Duration // the pause after the next failure
	began    time.Time     // when Run did
	said     said          // what is in the log already
	unserved os.FileInfo   // the socket of a kubelet that does not know the Pods API

	mu sync.Mutex
	// All below are guarded by mu.
	pods    Pods
	changed chan struct{} // closed when other pods, or another error, were published
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
		log: o.Log, trace: o.Trace, again: againFirst, changed: make(chan struct{}),
		event: event{labels: labels, names: wire.NewNames(mostInternedNames)},
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
	if pods, _ := c.Look(); !pods.Synced && pods.Err == nil {
		return errors.New("the kubelet was not asked for its pods yet")
	}
	return nil
}

// Look returns the pods, and a channel that is closed when they are others or known
// otherwise.
func (c *Client) Look() (Pods, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods, c.changed
}

// Run follows the pods until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	c.began = time.Now()
	for ctx.Err() == nil {
		c.Beat()
		rest(ctx, c.once(ctx))
	}
	return nil
}

func rest(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// once looks for the kubelet and follows it as long as that goes well. It returns how
// long to wait before the next time.
func (c *Client) once(ctx context.Context) (pause time.Duration) {
	socket, err := c.stat()
	if err != nil {
		c.failed(fmt.Errorf("%w: %w", ErrAbsent, err))
		return lookEvery
	}
	if c.unserved != nil && sameSocket(socket, c.unserved) {
		return lookEvery
	}
	c.unserved = nil
	began := time.Now()
	err = c.follow(ctx)
	switch {
	case ctx.Err() != nil || errors.Is(err, errRenew):
		return 0
	case status.Code(err) == codes.Unimplemented:
		c.unserved = socket
		c.failed(fmt.Errorf("%w: %w", ErrAbsent, err))
		return lookEvery
	}
	c.failed(err)
	if time.Since(began) > againMost {
		c.again = againFirst
	}
	pause, c.again = c.again, min(2*c.again, againMost)
	return pause
}

// sameSocket tells whether a kubelet still listens where it did. A file system gives
// inode numbers away again at once.
func sameSocket(a, b os.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// failed publishes that the kubelet does not say which pods there are. The last ones
// stand for a while.
func (c *Client) failed(err error) {
	ps := &c.known.pods
	changed := ps.Synced || ps.Err == nil || ps.Err.Error() != err.Error()
	ps.Synced, ps.Err = false, err
	if ps.Len() > 0 && time.Since(ps.At) > standFor {
		ps.replace(nil)
		changed = true
	}
	c.known.syncing = nil
	c.publish(changed)
	c.sayLost(err)
}

// took takes in the newest event, and tells of it.
func (c *Client) took() {
	sure := c.known.doubt == nil
	c.known.pods.At = time.Now()
	c.publish(c.known.take(&c.event))
	c.tell()
	if sure && c.known.doubt != nil {
		c.sayUnsure()
	}
	if c.known.pods.Synced {
		c.sayFollowed()
	}
}

func (c *Client) publish(changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = c.known.pods
	if changed {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// tell calls the trace for what was published.
func (c *Client) tell() {
	k := &c.known
	for _, p := range k.ended {
		if c.trace.Ended != nil {
			c.trace.Ended(*p)
		}
	}
	for _, p := range k.arrived {
		if c.trace.Arrived != nil {
			c.trace.Arrived(p.Namespace, p.Name)
		}
	}
	clear(k.arrived)
	clear(k.ended)
	k.arrived, k.ended = k.arrived[:0], k.ended[:0]
}
