package kubelet

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pluginClient is the connection to a device plugin. Clients from the
// checkpoint have a resource and stoppedAt alone.
type pluginClient struct {
	resource, socket string
	conn             *grpc.ClientConn
	api              pluginapi.DevicePluginClient

	// nodeState.mu guards all below.
	options    *pluginapi.DevicePluginOptions
	stoppedAt  time.Time // zero while the plugin is connected
	streamOpen bool      // ListAndWatch
}

func newClient(resource, socket string) (*pluginClient, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	return &pluginClient{
		resource: resource, socket: socket, conn: conn,
		api: pluginapi.NewDevicePluginClient(conn),
	}, nil
}
