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
	"net"
	"os"
	"sync"
	"time"

	"github.com/podgauge/podgauge/device"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
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
	// After an Allocate the kubelet is asked ever more slowly, and then no more.
	lookFirst, lookSlowest, lookFor = 50 * time.Millisecond, 2 * time.Second, 10 * time.Second
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

	socket string
	log    *slog.Logger
	trace  Trace
	conn   *grpc.ClientConn
	list   api.PodResourcesListerClient
	// kick has Run look soon: an allocation waits for its name.
	kick chan struct{}

	mu sync.Mutex
	// All below are guarded by mu.
	link        link
	memory      memory
	holders     device.Holders // what was published last
	changed     chan struct{}  // closed when who holds what has changed
	allocatable map[string]int // devices by resource, as the kubelet counts them
	refused     time.Duration  // how long to wait after the next refusal
	askAfter    time.Time      // no question before, after a refusal
	intern      interner
}

// link is what the connection itself tells of the kubelet.
type link struct {
	// connected is when the newest connection was made. The kubelet has been
	// restarted, or seems to have been, just before.
	connected time.Time
	// kubeletStart is when the socket behind it was made.
	kubeletStart time.Time
}

// New makes a client of the kubelet that listens, or will, on socket. It connects
// when it is first asked.
func New(socket string, log *slog.Logger, trace Trace) (*Client, error) {
	c := &Client{
		socket: socket, log: log, trace: trace,
		kick: make(chan struct{}, 1), changed: make(chan struct{}),
		memory: newMemory(), refused: refusedFirst, intern: interner{},
	}
	// The target is a name, not a path: the dialer knows the path, and so it
	// needs no escaping. The connection is never dropped for idleness, since a
	// new one means to us that the kubelet was restarted.
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.dial), grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: refusedFirst, Multiplier: 2, MaxDelay: lostEvery},
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", socket, err)
	}
	c.conn, c.list = conn, api.NewPodResourcesListerClient(conn)
	return c, nil
}

// dial is where a restart of the kubelet shows: gRPC calls it whenever it needs a
// new connection, and before any answer can come over it.
func (c *Client) dial(ctx context.Context, _ string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	made := now
	if info, err := os.Stat(c.socket); err == nil {
		made = info.ModTime()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = link{connected: now, kubeletStart: made}
	return conn, nil
}

// Ready says so while the kubelet has not been asked yet. One that does not answer
// is no reason not to be ready.
func (c *Client) Ready() error {
	if holders, _ := c.Look(); holders.At.IsZero() && holders.Err == nil {
		return errors.New("the kubelet was not asked yet")
	}
	return nil
}

// Run keeps what is known fresh while nobody asks, and looks for the names of
// allocations, until ctx is done.
func (c *Client) Run(ctx context.Context) error {
	defer c.conn.Close() //nolint:errcheck // nothing can be done about it, and nobody asks any more
	look := lookFirst
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		c.Beat()
		select {
		case <-ctx.Done():
			return nil
		case <-c.kick:
			look = lookFirst
		case <-timer.C:
			c.ask(ctx)
		}
		wait := c.pause(time.Now())
		if c.nameless(time.Now()) {
			wait = min(wait, look)
			look = min(2*look, lookSlowest)
		}
		timer.Reset(wait)
	}
}

// ask asks what Run wants to know.
func (c *Client) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	before, _ := c.Look()
	after := c.Owners(ctx)
	if is, was := after.Err, before.Err; ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.say(was, is)
	}
	if after.Err == nil {
		c.askAllocatable(ctx)
	}
}

func (c *Client) say(was, is error) {
	switch {
	case is != nil && (was == nil || was.Error() != is.Error()):
		c.log.Warn("the kubelet does not say who holds what; the last holders stand", "err", is)
	case is == nil && was != nil:
		c.log.Info("the kubelet says again who holds what")
	}
}

// pause is how long Run may rest: others ask too, and their answers are as good.
func (c *Client) pause(now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders.Err != nil {
		return max(lostEvery, c.askAfter.Sub(now))
	}
	return max(c.holders.At.Add(idleEvery).Sub(now), lookFirst)
}

// nameless tells whether an allocation is still worth looking for.
func (c *Client) nameless(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.memory.nameless(now)
}

// Allocated says that Allocate has returned for these ids: someone is about to
// hold them, and the kubelet will know who a moment later.
func (c *Client) Allocated(resource string, ids []device.OfferedID) {
	c.mu.Lock()
	changed := c.memory.allocated(resource, ids, time.Now())
	c.publish(changed)
	c.mu.Unlock()
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
	if wait, err := c.mayAsk(time.Now()); err != nil {
		return c.failed(fmt.Errorf("%w; asking again in %s", err, wait.Round(time.Millisecond)))
	}
	started := time.Now()
	var answer rawAnswer
	err := c.call(ctx, "List", func(ctx context.Context) error {
		return c.conn.Invoke(ctx, api.PodResourcesLister_List_FullMethodName, noRequest{}, &answer, grpc.ForceCodecV2(rawCodec{c}))
	})
	if err != nil {
		return c.failed(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.memory.take(answer, c.link, started)
	c.holders.At = time.Now()
	c.holders.Err = nil
	c.refused = refusedFirst
	c.publish(changed)
	return c.holders
}

func (c *Client) mayAsk(now time.Time) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wait := c.askAfter.Sub(now); wait > 0 {
		return wait, errors.New("the kubelet's rate limit was met")
	}
	return 0, nil
}

// call asks one question. A connection that failed earlier is tried again at
// once, not when gRPC would next do so: the caller has come now.
func (c *Client) call(ctx context.Context, method string, ask func(context.Context) error) error {
	if c.conn.GetState() == connectivity.TransientFailure {
		c.conn.ResetConnectBackoff()
	}
	started := time.Now()
	err := ask(ctx)
	if c.trace.Called != nil {
		c.trace.Called(method, time.Since(started), err)
	}
	if status.Code(err) == codes.ResourceExhausted {
		c.mu.Lock()
		c.askAfter = time.Now().Add(c.refused)
		c.refused = min(2*c.refused, refusedMost)
		c.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("%s pod resources at %s: %w", method, c.socket, err)
	}
	return nil
}

func (c *Client) failed(err error) device.Holders {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holders.Err = err
	return c.holders
}

// publish makes what the memory holds the newest that others see. The caller
// holds mu.
func (c *Client) publish(changed bool) {
	c.holders.Held = c.memory.held
	c.holders.Settled = c.memory.settled
	c.holders.Recent = c.memory.recent.seen()
	if changed {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}
