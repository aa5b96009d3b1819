package podresources

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// service is the gRPC service of the kubelet (k8s.io/kubelet/pkg/apis/podresources/v1).
	service = "/v1.PodResourcesLister/"
	// allocatableMethod fails alone if its response is too large: List must not pause.
	allocatableMethod = "GetAllocatableResources"
	// callTimeout limits calls without an earlier deadline.
	callTimeout = 5 * time.Second
	// connectTimeout is the wait for a new connection after a failure. A running kubelet accepts a connection within a millisecond.
	connectTimeout = 50 * time.Millisecond
	// minBackoff and maxBackoff limit the pause after a rejection. The kubelet accepts 100 calls per second from all clients of the node
	// (pkg/kubelet/apis/podresources/constants.go).
	minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
)

// kubeletEpoch identifies a connection to the kubelet, since only a lost connection shows a restart. The epoch is the local address of the
// connection: gRPC reports the address with each response.
type kubeletEpoch struct {
	connectedAt      time.Time
	kubeletStartedAt time.Time // when the kubelet began to listen
}

// Network and String implement net.Addr.
func (kubeletEpoch) Network() string { return "unix" }
func (kubeletEpoch) String() string  { return "podgauge" }

// epochConn is a connection with its epoch as the local address.
type epochConn struct {
	net.Conn
	epoch kubeletEpoch
}

func (c epochConn) LocalAddr() net.Addr { return c.epoch }

type dialFunc func(ctx context.Context, target string) (net.Conn, error)

// newDialer returns a dialFunc for a kubelet's socket.
func newDialer(socket string) dialFunc {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			return nil, err
		}
		// Measure the age a single time, and before the time of the connection: a clock set forward later must not make the kubelet look
		// old.
		age := kubeletAge(conn, socket)
		now := time.Now()
		return epochConn{conn, kubeletEpoch{connectedAt: now, kubeletStartedAt: now.Add(-age)}}, nil
	}
}

type callObserver = func(method string, took time.Duration, err error)

// kubeletConn calls the kubelet over a single connection. A new connection means a possible kubelet restart.
type kubeletConn struct {
	*grpc.ClientConn
	socket string
	onCall callObserver // may be nil

	mu          sync.Mutex
	rejectedErr error         // guarded by mu; the newest rejection
	rejections  retry.Backoff // guarded by mu
	retryAt     time.Time     // guarded by mu; no call before
}

// newKubeletConn returns a kubeletConn. Without an idle timeout, a new connection means a possible kubelet restart.
func newKubeletConn(socket string, dial dialFunc, onCall callObserver) (*kubeletConn, error) {
	conn, err := wire.NewConn(dial, grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: minBackoff, Multiplier: 2, MaxDelay: outageInterval},
	}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return &kubeletConn{ClientConn: conn, socket: socket, onCall: onCall, rejections: retry.Backoff{Min: minBackoff, Max: maxBackoff}}, nil
}

// call calls a method of service, and returns the epoch of the response. During the pause after a rejection, call fails at once.
func (c *kubeletConn) call(ctx context.Context, method string, request wire.Request, response wire.Message) (kubeletEpoch, error) {
	if pause, err := c.pause(time.Now()); pause > 0 {
		return kubeletEpoch{}, fmt.Errorf("pause after a rejection: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.reconnect(ctx)
	var from peer.Peer
	name, started := strings.TrimPrefix(method, service), time.Now()
	err := c.Invoke(ctx, method, request, response, grpc.Peer(&from))
	if c.onCall != nil {
		c.onCall(name, time.Since(started), err)
	}
	if err != nil {
		err = fmt.Errorf("%s pod resources at %s: %w", name, c.socket, err)
		if name != allocatableMethod {
			c.recordRejection(err)
		}
		return kubeletEpoch{}, err
	}
	c.recordRejection(nil)
	return from.LocalAddr.(kubeletEpoch), nil // by the dialer
}

// reconnect retries a failed connection at once, where gRPC would wait. gRPC ends calls before changing the state of the connection, so
// right after a failure the state may still be connecting.
func (c *kubeletConn) reconnect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for state := c.GetState(); state == connectivity.Connecting || state == connectivity.TransientFailure; state = c.GetState() {
		if state == connectivity.TransientFailure {
			c.ResetConnectBackoff()
		}
		if !c.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// recordRejection begins a pause if a call failed because of the kubelet's limit, or because of a too large or invalid response: Internal is
// gRPC's code for each error of the codec.
func (c *kubeletConn) recordRejection(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch status.Code(err) {
	case codes.OK:
		c.rejections.Reset()
	case codes.ResourceExhausted, codes.Internal:
		c.rejectedErr, c.retryAt = err, time.Now().Add(c.rejections.Next())
	}
}

// pause returns the rest of the pause after a rejection, not positive without a pause, and the rejection.
func (c *kubeletConn) pause(now time.Time) (time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retryAt.Sub(now), c.rejectedErr
}
