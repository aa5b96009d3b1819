package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// connectFor is how long a question waits for a connection to a kubelet that was
// away when it was last asked. One that is back takes a millisecond.
const connectFor = 50 * time.Millisecond

// windowBytes holds any answer but the greatest. A fixed window also keeps gRPC
// from measuring the way to the kubelet, with a ping for every answer.
const windowBytes = 1 << 20

type dial func(ctx context.Context, target string) (net.Conn, error)

func newClient(d dial, log *slog.Logger, trace Trace) (*Client, error) {
	// The target is a name, not a path: the dialer knows the path, and so it
	// needs no escaping. The connection is never dropped for idleness, since a
	// new one means to us that the kubelet was restarted.
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(d), grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: refusedFirst, Multiplier: 2, MaxDelay: lostEvery},
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)))
	if err != nil {
		return nil, err
	}
	return &Client{
		log: log, trace: trace, conn: conn, list: api.NewPodResourcesListerClient(conn),
		kick: make(chan struct{}, 1), came: make(chan struct{}, 1), turn: make(chan struct{}, 1), changed: make(chan struct{}),
		answer: newAnswer(), offer: newAllocatable(), memory: newMemory(), refused: refusedFirst,
	}, nil
}

// link is what a connection tells of the kubelet behind it: a restart shows in
// nothing else. It travels as the connection's own address, so that each answer
// says over which one it came.
type link struct {
	// connected is when the connection was made. The kubelet has been restarted,
	// or seems to have been, just before.
	connected time.Time
	// kubeletStart is when the kubelet began to listen.
	kubeletStart time.Time
}

// Network and String make it a net.Addr.
func (link) Network() string { return "unix" }
func (link) String() string  { return "podgauge" }

// linked is a connection that has its link with it.
type linked struct {
	net.Conn
	link link
}

func (l linked) LocalAddr() net.Addr { return l.link }

// dialer connects to a kubelet's socket.
func dialer(socket string) dial {
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
		return linked{conn, link{connected: now, kubeletStart: now.Add(-age)}}, nil
	}
}

// begin waits for the turn to ask, which end gives back.
func (c *Client) begin(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the answer to an earlier question: %w", ctx.Err())
	}
}

func (c *Client) end() { <-c.turn }

// askList fills c.answer and returns the link over which it came. The caller has
// the turn.
func (c *Client) askList(ctx context.Context) (link, error) {
	var from peer.Peer
	c.knowOurs(&c.answer.given)
	err := c.call(ctx, "List", func(ctx context.Context) error {
		return c.conn.Invoke(ctx, api.PodResourcesLister_List_FullMethodName, wire.Empty{}, &c.answer,
			grpc.ForceCodecV2(wire.Codec{}), grpc.Peer(&from))
	})
	if err != nil {
		return link{}, err
	}
	over, ok := from.LocalAddr.(link)
	if !ok {
		return link{}, fmt.Errorf("take an answer of %s: it came over no connection of ours", c.socket)
	}
	return over, nil
}

// knowOurs tells an answer which devices are ours.
func (c *Client) knowOurs(g *given) {
	if c.Devices != nil {
		g.foreign.know(c.Devices())
	}
}

// call asks one question, unless a refusal keeps everyone from asking.
func (c *Client) call(ctx context.Context, method string, ask func(context.Context) error) error {
	if err := c.mayAsk(time.Now()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c.reconnect(ctx)
	started := time.Now()
	err := ask(ctx)
	if c.trace.Called != nil {
		c.trace.Called(method, time.Since(started), err)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s pod resources at %s: %w", method, c.socket, err)
	if status.Code(err) == codes.ResourceExhausted {
		c.wait(err)
	}
	return err
}

// reconnect tries a connection that failed earlier again at once, not when gRPC would next do
// so: the caller has come now. gRPC ends a call that waits for a connection before it changes
// the connection's state, so one that has just failed may still be said to be made.
func (c *Client) reconnect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectFor)
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

// wait keeps everyone from asking for a while, after a refusal.
func (c *Client) wait(refusal error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = refusal
	c.askAfter = time.Now().Add(c.refused)
	c.refused = min(2*c.refused, refusedMost)
}

func (c *Client) mayAsk(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.askAfter) {
		return fmt.Errorf("not asked again so soon after: %w", c.refusal)
	}
	return nil
}
