package wire

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// maxMessageBytes allows for hundreds of pods and thousands of replicas, or any pod of etcd. gRPC's default of 4 MiB was too small in the
	// field (dcgm-exporter#509).
	maxMessageBytes = 64 << 20
	// windowBytes holds nearly all messages, and a burst of events: the kubelet drops a watcher with unread events. A fixed window also avoids
	// gRPC's pings for bandwidth estimates.
	windowBytes = 1 << 20
)

// NewConn returns a connection to a kubelet, with a Codec. The first call connects by dial, whose target is no address: a path would need
// escaping. An idle connection stays.
func NewConn(dial func(ctx context.Context, target string) (net.Conn, error), options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet", append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial),
		grpc.WithIdleTimeout(0), grpc.WithAuthority("localhost"), grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.ForceCodecV2(Codec{})))...)
}
