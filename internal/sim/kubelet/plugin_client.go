package kubelet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pluginClient is the connection to a device plugin. Clients from the checkpoint have a resource and stoppedAt alone.
type pluginClient struct {
	resource, socket string
	conn             *grpc.ClientConn
	api              pluginapi.DevicePluginClient

	// nodeState.mu guards the next three.
	options    *pluginapi.DevicePluginOptions
	stoppedAt  time.Time // zero while the plugin is connected
	streamOpen bool      // ListAndWatch

	mu       sync.Mutex
	rawConns []net.Conn // guarded by mu: the connections below conn, for cutConnections
}

func newClient(resource, socket string) (*pluginClient, error) {
	c := &pluginClient{resource: resource, socket: socket}
	conn, err := grpc.NewClient("passthrough:///"+socket, grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(c.connect))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	c.conn, c.api = conn, pluginapi.NewDevicePluginClient(conn)
	return c, nil
}

func (c *pluginClient) connect(ctx context.Context, _ string) (net.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err == nil {
		c.mu.Lock()
		c.rawConns = append(c.rawConns, raw)
		c.mu.Unlock()
	}
	return raw, err
}

// cutConnections closes the connections below gRPC: the plugin reads an end of file without a GOAWAY.
func (c *pluginClient) cutConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, raw := range c.rawConns {
		_ = raw.Close()
	}
	c.rawConns = nil
}
