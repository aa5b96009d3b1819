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

const (
	// syncTimeout is the maximum time from the start of a stream to INITIAL_SYNC_COMPLETE.
	syncTimeout = 30 * time.Second
	// renewInterval is the lifetime of a complete stream: an overloaded kubelet drops events without notice (Broadcast in
	// pkg/kubelet/apis/pods/server.go).
	renewInterval = 30 * time.Minute
	// incompleteRenewInterval is the lifetime of a stream with an undecodable event.
	incompleteRenewInterval = time.Minute
	// heartbeatInterval is the interval of heartbeats without events.
	heartbeatInterval = 10 * time.Second
	// maxEventBytes is above gRPC's default of 4 MiB. etcd stores no pod of this size.
	maxEventBytes = 64 << 20
	// windowBytes lets the kubelet send a burst of events: it drops a watcher with unread events. A fixed window also stops gRPC
	// from measuring the bandwidth with a ping per event.
	windowBytes = 1 << 20
)

var (
	errRenew       = errors.New("stream reached its lifetime")
	errSyncTimeout = fmt.Errorf("follow pods: no complete list within %s", syncTimeout)
)

// follow runs one connection with one stream, and returns the reason for its end, never nil.
func (c *Client) follow(ctx context.Context) error {
	conn, err := c.connect()
	if err != nil {
		return fmt.Errorf("follow pods: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the next stream makes a new connection
	ctx, cancel := context.WithCancel(ctx)
	next, received := make(chan struct{}, 1), make(chan error, 1)
	var receiver sync.WaitGroup
	receiver.Go(func() { c.receive(ctx, conn, next, received) })
	defer receiver.Wait()
	defer close(next)
	defer cancel()

	c.cache.startSync()
	next <- struct{}{}
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
		case err := <-received:
			if err != nil {
				return fmt.Errorf("follow pods: %w", err)
			}
			c.applyEvent()
			next <- struct{}{}
		}
		if d := c.streamTimeout(); d != timeout {
			timeout = d
			deadline.Reset(timeout)
		}
	}
}

// streamTimeout returns the lifetime of the stream in its current state.
func (c *Client) streamTimeout() time.Duration {
	switch {
	case c.cache.syncing != nil:
		return syncTimeout
	case c.cache.incompleteErr != nil:
		return incompleteRenewInterval
	}
	return renewInterval
}

// connect returns a connection for one stream. The dialer has the path of the socket, so that the target needs no escaping.
func (c *Client) connect() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dial(ctx) }),
		grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxEventBytes)))
}

// receive reads one event into c.event for each value of next, and sends the result to received, which has room for it.
func (c *Client) receive(ctx context.Context, conn *grpc.ClientConn, next <-chan struct{}, received chan<- error) {
	stream, err := watchPods(ctx, conn)
	for range next {
		if err == nil {
			err = stream.RecvMsg(&c.event)
		}
		received <- err
	}
}

func watchPods(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	stream, err := conn.NewStream(ctx, &api.Pods_ServiceDesc.Streams[0], api.Pods_WatchPods_FullMethodName, grpc.ForceCodecV2(wire.Codec{}))
	if err != nil {
		return nil, err
	}
	// After io.EOF, RecvMsg returns the reason.
	if err := errors.Join(stream.SendMsg(wire.Request(nil)), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream, nil
}
