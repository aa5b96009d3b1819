package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/podgauge/podgauge/internal/wire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// windowBytes lets the kubelet go on sending while a burst of pods is read: one whose
// events stay unread drops the watcher. A fixed window also keeps gRPC from measuring
// the way to the kubelet, with a ping for every event.
const windowBytes = 1 << 20

// errRenew ends a stream that is sound, or as sound as this one will be.
var errRenew = errors.New("the stream is to be exchanged for a new one")

// errSyncTimeout ends one on which nothing can be waited for.
var errSyncTimeout = fmt.Errorf("follow pods: the kubelet did not say within %s which there are", syncTimeout)

// follow is the life of one connection and the stream on it. It returns why it has
// ended, and never nil.
func (c *Client) follow(ctx context.Context) error {
	conn, err := c.connect()
	if err != nil {
		return fmt.Errorf("follow pods: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing can be done about it, and a new one will be made
	events, applied := make(chan error), make(chan struct{}, 1)
	var reader sync.WaitGroup
	defer reader.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.cache.startSync()
	reader.Go(func() { c.read(ctx, conn, events, applied) })

	timeout := c.streamTimeout()
	deadline, heartbeat := time.NewTimer(timeout), time.NewTicker(heartbeatInterval)
	defer deadline.Stop()
	defer heartbeat.Stop()
	for {
		c.Beat()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			if c.cache.syncing != nil {
				return errSyncTimeout
			}
			return errRenew
		case <-heartbeat.C:
		case err := <-events:
			if err != nil {
				return fmt.Errorf("follow pods: %w", err)
			}
			c.applyEvent()
			applied <- struct{}{}
		}
		if next := c.streamTimeout(); next != timeout {
			timeout = next
			deadline.Reset(timeout)
		}
	}
}

// streamTimeout is how long the stream may go on as it is.
func (c *Client) streamTimeout() time.Duration {
	switch {
	case c.cache.syncing != nil:
		return syncTimeout
	case c.cache.incompleteErr != nil:
		return incompleteRenewInterval
	}
	return renewInterval
}

// connect makes a connection for one stream. The target is a name, not a path: the
// dialer knows the path, and so it needs no escaping.
func (c *Client) connect() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dial(ctx) }),
		grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxEventBytes)))
}

// read fills c.event with one event after the other, says so, and waits until it was
// taken. What it sends is nil, or an error and nothing after that.
func (c *Client) read(ctx context.Context, conn *grpc.ClientConn, events chan<- error, applied <-chan struct{}) {
	stream, err := watchPods(ctx, conn)
	for {
		if err == nil {
			err = stream.RecvMsg(&c.event)
		}
		select {
		case events <- err:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
		select {
		case <-applied:
		case <-ctx.Done():
			return
		}
	}
}

// watchPods asks for the pods.
func watchPods(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	stream, err := conn.NewStream(ctx, &api.Pods_ServiceDesc.Streams[0], api.Pods_WatchPods_FullMethodName, grpc.ForceCodecV2(wire.Codec{}))
	if err != nil {
		return nil, err
	}
	// That a message could not be sent is said by what is received.
	if err := errors.Join(stream.SendMsg(wire.Empty{}), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream, nil
}
