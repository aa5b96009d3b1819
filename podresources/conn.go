package podresources

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// callTimeout limits calls without an earlier deadline.
	callTimeout = 5 * time.Second
	// connectTimeout is the wait for a new connection after a failure. A
	// running kubelet accepts a connection within a millisecond.
	connectTimeout = 50 * time.Millisecond
	// outageInterval is the interval of List while the kubelet does not answer.
	outageInterval = time.Second
	// minBackoff and maxBackoff limit the pause after a rejection. The kubelet
	// accepts 100 calls per second from all clients of the node
	// (pkg/kubelet/apis/podresources/constants.go).
	minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
	// maxErrorBytes limits the text of the kubelet's errors.
	maxErrorBytes = 64 << 10
)

// kubeletEpoch is a connection to the kubelet: only a lost connection shows a
// restart. It is the connection's local address, because gRPC reports that
// address with each response.
type kubeletEpoch struct{ startedAt time.Time } // when the kubelet began to listen

// Network and String implement net.Addr.
func (*kubeletEpoch) Network() string { return "unix" }
func (*kubeletEpoch) String() string  { return "podgauge" }

// epochConn is a connection with its epoch as the local address.
type epochConn struct {
	net.Conn
	epoch *kubeletEpoch
}

func (c epochConn) LocalAddr() net.Addr { return c.epoch }

// dialFunc connects to the kubelet, and returns when the kubelet began to
// listen.
type dialFunc func(ctx context.Context) (net.Conn, time.Time, error)

// dialSocket returns a dialFunc for a socket. A kubelet creates the socket when
// it starts.
func dialSocket(socket string) dialFunc {
	return func(ctx context.Context) (net.Conn, time.Time, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, time.Time{}, err
		}
		startedAt := time.Now()
		if info, err := os.Stat(socket); err == nil && info.ModTime().Before(startedAt) {
			startedAt = info.ModTime()
		}
		return conn, startedAt, nil
	}
}

// kubeletConn calls the kubelet over a single connection, one call at a time.
type kubeletConn struct {
	api.PodResourcesListerClient
	conn   *grpc.ClientConn
	socket string
	onCall func(method string, took time.Duration, err error) // may be nil

	rejectedErr error // the newest rejection
	rejections  retry.Backoff
	retryAt     time.Time // no call before
}

func newKubeletConn(
	socket string, dial dialFunc, onCall func(method string, took time.Duration, err error),
) (*kubeletConn, error) {
	dialEpoch := func(ctx context.Context, _ string) (net.Conn, error) {
		conn, startedAt, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		return epochConn{conn, &kubeletEpoch{startedAt}}, nil
	}
	// The target is no address, because a path would need escaping.
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialEpoch),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: minBackoff, Multiplier: 2, MaxDelay: outageInterval},
		}),
		grpc.WithMaxHeaderListSize(maxErrorBytes),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(maxResponseBytes()),
			grpc.ForceCodecV2(newBoundedCodec()),
		))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return &kubeletConn{
		PodResourcesListerClient: api.NewPodResourcesListerClient(conn),
		conn:                     conn,
		socket:                   socket,
		onCall:                   onCall,
		rejections:               retry.Backoff{Min: minBackoff, Max: maxBackoff},
	}, nil
}

// call makes a call, and returns the epoch of the response. During the pause
// after a rejection, call fails at once.
func (c *kubeletConn) call(
	ctx context.Context, method string, do func(ctx context.Context, from grpc.CallOption) error,
) (*kubeletEpoch, error) {
	if time.Now().Before(c.retryAt) {
		return nil, fmt.Errorf("pause after a rejection: %w", c.rejectedErr)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.reconnect(ctx)
	var from peer.Peer
	started := time.Now()
	err := do(ctx, grpc.Peer(&from))
	if c.onCall != nil {
		c.onCall(method, time.Since(started), err)
	}
	if err != nil {
		err = fmt.Errorf("%s pod resources at %s: %w", method, c.socket, err)
	}
	if method == "List" { // a List follows a rejected Get at once
		c.recordRejection(err)
	}
	epoch, _ := from.LocalAddr.(*kubeletEpoch) // nil without a response
	return epoch, err
}

// reconnect retries a failed connection at once, where gRPC would wait. gRPC
// ends calls before changing the state of the connection, so right after a
// failure the state may still be connecting.
func (c *kubeletConn) reconnect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		state := c.conn.GetState()
		switch state {
		case connectivity.TransientFailure:
			c.conn.ResetConnectBackoff()
		case connectivity.Connecting:
		default:
			return
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// recordRejection begins a pause if a call failed because of the kubelet's
// limit, or because of a too large or invalid response: Internal is gRPC's code
// for each error of the codec.
func (c *kubeletConn) recordRejection(err error) {
	switch code := status.Code(err); {
	case code == codes.OK:
		c.rejections.Reset()
	case code == codes.ResourceExhausted, code == codes.Internal, errors.Is(err, errTooManyRows):
		c.rejectedErr = err
		c.retryAt = time.Now().Add(c.rejections.Next())
	}
}
