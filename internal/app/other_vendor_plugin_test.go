package app

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// otherVendorPlugin is a device plugin of another vendor.
type otherVendorPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices []*pluginapi.Device
}

// registerOtherVendorPlugin registers another vendor's devices, each on a NUMA node, with the kubelet.
func (w *testApp) registerOtherVendorPlugin(resource string, devices map[string]int64) {
	w.t.Helper()
	startOtherVendorPlugin(w.t, w.kubelet, resource, devices)
}

// startOtherVendorPlugin registers another vendor's plugin with a kubelet. The returned function ends the plugin.
func startOtherVendorPlugin(t *testing.T, k *kubelet.Kubelet, resource string, devices map[string]int64) (end func()) {
	t.Helper()
	f := &otherVendorPlugin{}
	for id, node := range devices {
		f.devices = append(f.devices, &pluginapi.Device{
			ID: id, Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}},
		})
	}
	const socket = "foreign.sock"
	listener, err := net.Listen("unix", filepath.Join(filepath.Dir(k.RegistrationSocket()), socket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(server, f)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	end = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	conn, err := grpc.NewClient("unix:"+k.RegistrationSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: socket, ResourceName: resource}
	if _, err := pluginapi.NewRegistrationClient(conn).Register(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the plugin's devices are listed", func() bool {
		return len(k.State().Resources[resource].Devices) >= len(devices)
	})
	return end
}

// GetDevicePluginOptions returns no options.
func (f *otherVendorPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch sends the device list once.
func (f *otherVendorPlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: f.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate grants every request.
func (f *otherVendorPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	resp := &pluginapi.AllocateResponse{}
	for range r.ContainerRequests {
		resp.ContainerResponses = append(resp.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return resp, nil
}
