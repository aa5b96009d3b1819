package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	// syncTimeout is the maximum time from the start of a stream to
	// INITIAL_SYNC_COMPLETE.
	syncTimeout = 30 * time.Second
	// windowBytes holds a burst of events: the kubelet drops a watcher with
	// unread events.
	windowBytes = 1 << 20
	// renewInterval is the lifetime of a stream: an overloaded kubelet drops
	// events without notice (Broadcast in pkg/kubelet/apis/pods/server.go).
	renewInterval = 30 * time.Minute
)

var (
	errRenew       = errors.New("stream reached its lifetime")
	errSyncTimeout = fmt.Errorf("follow pods: no complete list within %s", syncTimeout)
)

// follow runs one connection with one stream, and returns the reason
// for its end, never nil.
func (c *Client) follow(ctx context.Context) error {
	// An event has at most 4 MiB, gRPC's default: more than a pod in etcd can
	// have.
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return c.dialSocket(ctx) }),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes))
	if err != nil {
		return fmt.Errorf("follow pods: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the next stream makes a new connection
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	// a deadline would also end the stream at the kubelet, perhaps first
	renewTimer := time.AfterFunc(renewInterval, func() { end(errRenew) })
	defer renewTimer.Stop()
	c.cache.startSync()
	syncTimer := time.AfterFunc(syncTimeout, func() { end(errSyncTimeout) })
	defer syncTimer.Stop()
	stream, err := api.NewPodsClient(conn).WatchPods(ctx, &api.WatchPodsRequest{})
	for err == nil {
		var event *api.WatchPodsEvent
		c.Rest()
		event, err = stream.Recv()
		c.Beat()
		if err == nil {
			err = c.event.readEvent(event)
		}
		if err == nil {
			err = c.applyEvent()
		}
		if c.cache.syncing == nil {
			syncTimer.Stop()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("follow pods: %w", err)
}

// dialSocket connects to the kubelet, or to the fallback if no kubelet listens: a
// killed one leaves its socket, and the next one may have no Pods API.
func (c *Client) dialSocket(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx, c.socket)
	isAbsent := errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
	if isAbsent && c.options.FallbackSocket != "" {
		if fallback, fallbackErr := c.dial(ctx, c.options.FallbackSocket); fallbackErr == nil {
			return fallback, nil
		}
	}
	return conn, err
}
