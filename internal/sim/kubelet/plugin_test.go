package kubelet_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

const gpuResource = "nvidia.com/gpu"

// testPlugin is a device plugin that sends the values of lists until the test
// ends.
type testPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	socket   string
	lists    chan []*pluginapi.Device
	stop     func()
	options  *pluginapi.DevicePluginOptions
	allocate func(context.Context) error
	prestart atomic.Int32 // number of calls
}

var socketCount atomic.Int32 // makes the names of the plugins unique

// servePlugin starts a plugin without registering.
func servePlugin(t testing.TB, k *kubelet.Kubelet) *testPlugin {
	t.Helper()
	p := &testPlugin{
		socket:   fmt.Sprintf("plugin-%d.sock", socketCount.Add(1)),
		lists:    make(chan []*pluginapi.Device),
		options:  &pluginapi.DevicePluginOptions{},
		allocate: func(context.Context) error { return nil },
	}
	listener, err := net.Listen("unix", filepath.Join(filepath.Dir(k.RegistrationSocket()), p.socket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	p.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// registerPlugin starts a plugin and waits until the kubelet has its GPUs.
func registerPlugin(t testing.TB, k *kubelet.Kubelet, ids ...string) *testPlugin {
	t.Helper()
	p := servePlugin(t, k)
	p.sendHealthy(t, k, ids...)
	return p
}

func (p *testPlugin) sendHealthy(t testing.TB, k *kubelet.Kubelet, ids ...string) {
	t.Helper()
	if err := p.register(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	p.lists <- healthy(ids...)
	waitForState(t, k, func(s kubelet.KubeletState) bool { return s.Resources[gpuResource].Allocatable == len(ids) })
}

func (p *testPlugin) register(ctx context.Context, k *kubelet.Kubelet) error {
	conn, err := grpc.NewClient("unix:"+k.RegistrationSocket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: p.socket, ResourceName: gpuResource}
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, request)
	return err
}

func (p *testPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return p.options, nil
}

func (p *testPlugin) ListAndWatch(
	_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse],
) error {
	for {
		select {
		case list := <-p.lists:
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *testPlugin) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	resp := &pluginapi.AllocateResponse{}
	for range r.ContainerRequests {
		resp.ContainerResponses = append(resp.ContainerResponses,
			&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"A": "b"}})
	}
	return resp, p.allocate(ctx)
}

func (p *testPlugin) PreStartContainer(
	context.Context, *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	p.prestart.Add(1)
	return &pluginapi.PreStartContainerResponse{}, nil
}

func healthy(ids ...string) []*pluginapi.Device {
	all := []*pluginapi.Device{}
	for _, id := range ids {
		all = append(all, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return all
}

func waitForState(t testing.TB, k *kubelet.Kubelet, condition func(kubelet.KubeletState) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := k.Wait(ctx, condition); err != nil {
		t.Fatal(err)
	}
}

// podWithGPUs returns a pod of the API server with a container that requests n
// GPUs.
func podWithGPUs(name string, n int) kubelet.PodSpec {
	return kubelet.PodSpec{Name: name, Containers: []kubelet.ContainerSpec{{
		Name:   "main",
		Limits: map[string]int{gpuResource: n},
	}}}
}

func runPod(t testing.TB, k *kubelet.Kubelet, p kubelet.PodSpec) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := k.RunPod(ctx, p); err != nil {
		t.Fatal(err)
	}
}

// lister returns a new connection to PodResources, without the backoff of an
// earlier kubelet.
func lister(t testing.TB, k *kubelet.Kubelet) podresources.PodResourcesListerClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+k.PodResourcesSocket(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

// list returns the ids of List by "namespace/pod/container".
func list(t testing.TB, k *kubelet.Kubelet) map[string][]string {
	t.Helper()
	resp, err := lister(t, k).List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, p := range resp.PodResources {
		for _, c := range p.Containers {
			key := p.Namespace + "/" + p.Name + "/" + c.Name
			all[key] = []string{}
			for _, d := range c.Devices {
				all[key] = append(all[key], d.DeviceIds...)
			}
		}
	}
	return all
}
