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
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	// syncTimeout is the maximum time from the start of a stream to INITIAL_SYNC_COMPLETE.
	syncTimeout = 30 * time.Second
	// renewInterval is the lifetime of a stream: an overloaded kubelet drops events without notice (Broadcast in
	// pkg/kubelet/apis/pods/server.go).
	renewInterval = 30 * time.Minute
	// heartbeatInterval is the interval of heartbeats without events.
	heartbeatInterval = 10 * time.Second
)

var (
	errRenew       = errors.New("stream reached its lifetime")
	errSyncTimeout = fmt.Errorf("follow pods: no complete list within %s", syncTimeout)
)

// follow runs one connection with one stream, and returns the reason for its end, never nil.
func (c *Client) follow(ctx context.Context) error {
	conn, err := wire.NewConn(func(ctx context.Context, _ string) (net.Conn, error) { return c.dial(ctx) })
	if err != nil {
		return fmt.Errorf("follow pods: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the next stream makes a new connection
	ctx, cancel := context.WithTimeoutCause(ctx, renewInterval, errRenew)
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	next, received := make(chan struct{}, 1), make(chan error, 1)
	var receiver sync.WaitGroup
	receiver.Go(func() { c.receive(ctx, conn, next, received) })
	defer receiver.Wait()
	defer close(next)
	defer end(nil)

	c.cache.startSync()
	next <- struct{}{}
	syncTimer, heartbeat := time.AfterFunc(syncTimeout, func() { end(errSyncTimeout) }), time.NewTicker(heartbeatInterval)
	defer syncTimer.Stop()
	defer heartbeat.Stop()
	for {
		c.Beat()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-heartbeat.C:
			continue
		case err = <-received:
		}
		if err == nil {
			err = c.applyEvent()
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("follow pods: %w", err)
		case c.cache.syncing == nil:
			syncTimer.Stop()
		}
		next <- struct{}{}
	}
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
	stream, err := conn.NewStream(ctx, &api.Pods_ServiceDesc.Streams[0], api.Pods_WatchPods_FullMethodName)
	if err != nil {
		return nil, err
	}
	// After io.EOF, RecvMsg returns the reason.
	if err := errors.Join(stream.SendMsg(wire.Request(nil)), stream.CloseSend()); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream, nil
}
