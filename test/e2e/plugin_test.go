package e2e

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/test/e2e/node"
)

const gpuResource = "nvidia.com/gpu"

// minimalPlugin is the smallest device plugin that the kubelet accepts. It tests the node without podgauge.
type minimalPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices []*pluginapi.Device // read-only after the start
}

// serveGPUs runs a plugin that lists GPUs, until the end of the test. Each call needs another endpoint, the file name of the socket.
func serveGPUs(ctx context.Context, t *testing.T, n *node.RealNode, endpoint string, gpus int) {
	t.Helper()
	ids := []string{}
	for i := range gpus {
		ids = append(ids, fmt.Sprintf("GPU-%d", i))
	}
	serveDeviceIDs(ctx, t, n, endpoint, gpuResource, ids...)
}

// serveDeviceIDs is serveGPUs with another resource and ids.
func serveDeviceIDs(ctx context.Context, t *testing.T, n *node.RealNode, endpoint, resource string, ids ...string) {
	t.Helper()
	devices := []*pluginapi.Device{}
	for _, id := range ids {
		devices = append(devices, healthyDevice(id))
	}
	servePluginDevices(ctx, t, n, endpoint, resource, devices...)
}

// healthyDevice returns a healthy device, with a topology if there are NUMA nodes.
func healthyDevice(id string, numa ...int64) *pluginapi.Device {
	d := &pluginapi.Device{ID: id, Health: pluginapi.Healthy}
	for _, node := range numa {
		if d.Topology == nil {
			d.Topology = &pluginapi.TopologyInfo{}
		}
		d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: node})
	}
	return d
}

// servePluginDevices is serveDeviceIDs with complete devices.
func servePluginDevices(ctx context.Context, t *testing.T, n *node.RealNode, endpoint, resource string, devices ...*pluginapi.Device) (end func()) {
	t.Helper()
	p := &minimalPlugin{devices: devices}
	listener, err := net.Listen("unix", filepath.Join(filepath.Dir(n.DevicePluginSocket()), endpoint))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	end = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	conn, err := grpc.NewClient("unix:"+n.DevicePluginSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource}
	if _, err := pluginapi.NewRegistrationClient(conn).Register(ctx, request); err != nil {
		t.Fatal(err)
	}
	return end
}

func (p *minimalPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *minimalPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *minimalPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		env := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(c.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{Envs: env})
	}
	return response, nil
}
