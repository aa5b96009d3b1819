package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// connectTimeout is how long a question waits for a connection to a kubelet that was
// away when it was last asked. One that is back takes a millisecond.
const connectTimeout = 50 * time.Millisecond

// windowBytes holds any answer but the greatest. A fixed window also keeps gRPC
// from measuring the way to the kubelet, with a ping for every answer.
const windowBytes = 1 << 20

type dialFunc func(ctx context.Context, target string) (net.Conn, error)

func newClient(dial dialFunc, options Options) (*Client, error) {
	// The target is a name, not a path: the dialer knows the path, and so it
	// needs no escaping. The connection is never dropped for idleness, since a
	// new one means to us that the kubelet was restarted.
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial), grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: minBackoff, Multiplier: 2, MaxDelay: outageInterval},
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes)))
	if err != nil {
		return nil, err
	}
	c := &Client{
		options: options, log: options.Log, conn: conn,
		refreshRequested: make(chan struct{}, 1), podAdded: make(chan struct{}, 1), callLock: make(chan struct{}, 1), changed: make(chan struct{}),
		response: newListResponse(), allocatableResponse: newAllocatableResponse(), tracker: newAllocationTracker(), backoff: minBackoff,
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.tracker.apiPods.nodeName = strings.ToLower(options.NodeName)
	if options.OwnerRetention > 0 {
		c.tracker.history.retention = options.OwnerRetention
	}
	return c, nil
}

// kubeletEpoch is what a connection tells of the kubelet behind it: a restart shows in
// nothing else. It travels as the connection's own address, so that each answer
// says over which one it came.
type kubeletEpoch struct {
	// connectedAt is when the connection was made. The kubelet has been restarted,
	// or seems to have been, just before.
	connectedAt time.Time
	// kubeletStartedAt is when the kubelet began to listen.
	kubeletStartedAt time.Time
}

// Network and String make it a net.Addr.
func (kubeletEpoch) Network() string { return "unix" }
func (kubeletEpoch) String() string  { return "podgauge" }

// epochConn is a connection that has its link with it.
type epochConn struct {
	net.Conn
	epoch kubeletEpoch
}

func (c epochConn) LocalAddr() net.Addr { return c.epoch }

// newDialer connects to a kubelet's socket.
func newDialer(socket string) dialFunc {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		// The age is found here and never again, so that a clock that is set later does not
		// make a young kubelet an old one.
		age := kubeletAge(conn, socket)
		now := time.Now() // later than the age, so that a pause between the two makes no kubelet older
		return epochConn{conn, kubeletEpoch{connectedAt: now, kubeletStartedAt: now.Add(-age)}}, nil
	}
}

// lockCalls waits for the turn to ask, which end gives back.
func (c *Client) lockCalls(ctx context.Context) error {
	select {
	case c.callLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the answer to an earlier question: %w", ctx.Err())
	}
}

func (c *Client) unlockCalls() { <-c.callLock }

// updateOwnIDs tells an answer which devices are ours.
func (c *Client) updateOwnIDs(rows *resourceRows) {
	if c.options.Devices != nil {
		rows.foreign.setOwn(c.options.Devices.DeviceIDs())
	}
}

// service is the kubelet's gRPC service (k8s.io/kubelet/pkg/apis/podresources/v1).
const service = "/v1.PodResourcesLister/"

// call calls a method, and returns the epoch of the connection over which the response came. After a refusal it fails without a
// call until the pause is over.
func (c *Client) call(ctx context.Context, method string, request wire.Request, response wire.Message) (kubeletEpoch, error) {
	if err := c.checkBackoff(time.Now()); err != nil {
		return kubeletEpoch{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.reconnect(ctx)
	var from peer.Peer
	started := time.Now()
	err := c.conn.Invoke(ctx, service+method, request, response, grpc.ForceCodecV2(wire.Codec{}), grpc.Peer(&from))
	if c.options.OnCall != nil {
		c.options.OnCall(method, time.Since(started), err)
	}
	if err != nil {
		err = fmt.Errorf("%s pod resources at %s: %w", method, c.socket, err)
		if status.Code(err) == codes.ResourceExhausted {
			c.backOff(err)
		}
		return kubeletEpoch{}, err
	}
	epoch, ok := from.LocalAddr.(kubeletEpoch)
	if !ok {
		return kubeletEpoch{}, fmt.Errorf("%s pod resources at %s: unknown connection %v", method, c.socket, from.LocalAddr)
	}
	return epoch, nil
}

// reconnect tries a connection that failed earlier again at once, not when gRPC would next do
// so: the caller has come now. gRPC ends a call that waits for a connection before it changes
// the connection's state, so one that has just failed may still be said to be made.
func (c *Client) reconnect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for state := c.conn.GetState(); state == connectivity.Connecting || state == connectivity.TransientFailure; state = c.conn.GetState() {
		if state == connectivity.TransientFailure {
			c.conn.ResetConnectBackoff()
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// backOff keeps everyone from asking for a while, after a refusal.
func (c *Client) backOff(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rateLimitErr = err
	c.retryAt = time.Now().Add(c.backoff)
	c.backoff = min(2*c.backoff, maxBackoff)
}

func (c *Client) checkBackoff(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.retryAt) {
		return fmt.Errorf("not asked again so soon after: %w", c.rateLimitErr)
	}
	return nil
}
