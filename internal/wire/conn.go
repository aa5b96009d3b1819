package wire

import (
	"context"
	"net"
	"runtime/debug"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxMessageBytes allows for hundreds of pods and thousands of replicas. gRPC's default of 4 MiB was too small in the field
	// (dcgm-exporter#509).
	maxMessageBytes = 64 << 20
	// maxStatusBytes limits the text of an error.
	maxStatusBytes = 64 << 10
	// windowBytes holds nearly all messages, and a burst of events: the kubelet drops a watcher with unread events. A fixed window also avoids
	// gRPC's pings for bandwidth estimates.
	windowBytes = 1 << 20
)

// MaxMessageBytes returns the size limit of a message: a fifth of Go's memory limit, since gRPC holds a message twice. More ends the call.
func MaxMessageBytes() int { return int(min(debug.SetMemoryLimit(-1)/5, maxMessageBytes)) }

// NewConn returns a connection to a kubelet, with a Codec. The first call connects by dial, whose target is no address: a path would need
// escaping. An idle connection stays.
func NewConn(dial func(ctx context.Context, target string) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet", append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes), grpc.WithMaxHeaderListSize(maxStatusBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes()), grpc.ForceCodecV2(Codec{})))...)
}
