// Package deviceplugin has a device plugin for tests of a kubelet.
package deviceplugin

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// Plugin is a device plugin with a record of the kubelet's calls. It grants
// each request.
type Plugin struct {
	api.UnimplementedDevicePluginServer
	Behavior
	Socket string // file name

	t    testing.TB
	dir  string // of the sockets
	list pubsub.Value[list]
	stop func()

	mu    sync.Mutex
	calls Calls // guarded by mu
}

// Behavior configures a Plugin before its registration. Nil functions have no
// effect.
type Behavior struct {
	PreStartRequired bool
	Prefer           func(available []string, n int) []string // GetPreferredAllocation
	OptionsErr       error                                    // of GetDevicePluginOptions
	Allocate         func(ctx context.Context) error
	PreStart         func() error
}

// list is the list to send, or the end of all streams.
type list struct {
	devices []*api.Device
	ended   bool
}

// Calls are the calls of the kubelet.
type Calls struct {
	Connections int
	Options     int // GetDevicePluginOptions before the first stream
	Streams     int // ListAndWatch so far
	OpenStreams int
	Allocate    [][]string
	PreStart    [][]string
	Preferred   []string // "available must-include size"
}

// Start serves a plugin on a socket in the kubelet's folder until the test ends.
func Start(t testing.TB, dir, socket string, b Behavior, devices ...*api.Device) *Plugin {
	t.Helper()
	p := &Plugin{Behavior: b, Socket: socket, t: t, dir: dir}
	p.Send(devices...)
	p.Serve()
	return p
}

// Serve serves the plugin again after Stop.
func (p *Plugin) Serve() {
	p.t.Helper()
	listener, err := net.Listen("unix", filepath.Join(p.dir, p.Socket))
	if err != nil {
		p.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(countingListener{listener, p}) }()
	p.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			p.t.Error(err)
		}
	})
	p.t.Cleanup(p.stop)
}

// Stop ends the server; it may be called again.
func (p *Plugin) Stop() { p.stop() }

// Register registers the plugin for a resource.
func (p *Plugin) Register(ctx context.Context, resource string) error {
	return Register(ctx, p.dir, &api.RegisterRequest{Version: api.Version, Endpoint: p.Socket, ResourceName: resource})
}

// Register sends a request to the kubelet's socket in a folder.
func Register(ctx context.Context, dir string, r *api.RegisterRequest) error {
	conn, err := grpc.NewClient("unix:"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // of a test
	_, err = api.NewRegistrationClient(conn).Register(ctx, r)
	return err
}

// Send replaces the list.
func (p *Plugin) Send(devices ...*api.Device) { p.list.Set(list{devices: devices}) }

// Devices returns the list.
func (p *Plugin) Devices() []*api.Device {
	l, _ := p.list.Get()
	return l.devices
}

// EndStreams ends all current and later streams, while the server continues.
func (p *Plugin) EndStreams() { p.list.Set(list{ended: true}) }

// Calls returns the calls so far.
func (p *Plugin) Calls() Calls {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

func (p *Plugin) record(change func(*Calls)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.calls)
}

// countingListener counts accepted connections.
type countingListener struct {
	net.Listener
	plugin *Plugin
}

// Accept implements net.Listener.
func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.plugin.record(func(c *Calls) { c.Connections++ })
	}
	return conn, err
}

// GetDevicePluginOptions implements api.DevicePluginServer.
func (p *Plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	p.record(func(c *Calls) {
		if c.Streams == 0 {
			c.Options++
		}
	})
	return &api.DevicePluginOptions{
		PreStartRequired: p.PreStartRequired, GetPreferredAllocationAvailable: p.Prefer != nil,
	}, p.OptionsErr
}

// ListAndWatch implements api.DevicePluginServer.
func (p *Plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	p.record(func(c *Calls) {
		c.Streams++
		c.OpenStreams++
	})
	defer p.record(func(c *Calls) { c.OpenStreams-- })
	for {
		l, changed := p.list.Get()
		if l.ended {
			return nil
		}
		if err := stream.Send(&api.ListAndWatchResponse{Devices: l.devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Allocate implements api.DevicePluginServer.
func (p *Plugin) Allocate(ctx context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	response := &api.AllocateResponse{}
	for _, container := range r.ContainerRequests {
		ids := slices.Sorted(slices.Values(container.DevicesIds))
		p.record(func(c *Calls) { c.Allocate = append(c.Allocate, ids) })
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	if p.Behavior.Allocate != nil {
		return response, p.Behavior.Allocate(ctx)
	}
	return response, nil
}

// GetPreferredAllocation implements api.DevicePluginServer.
func (p *Plugin) GetPreferredAllocation(
	_ context.Context, r *api.PreferredAllocationRequest,
) (*api.PreferredAllocationResponse, error) {
	response := &api.PreferredAllocationResponse{}
	for _, request := range r.ContainerRequests {
		available := slices.Sorted(slices.Values(request.AvailableDeviceIDs))
		include := slices.Sorted(slices.Values(request.MustIncludeDeviceIDs))
		p.record(func(c *Calls) {
			c.Preferred = append(c.Preferred, fmt.Sprint(available, include, request.AllocationSize))
		})
		ids := p.Prefer(available, int(request.AllocationSize))
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// PreStartContainer implements api.DevicePluginServer.
func (p *Plugin) PreStartContainer(
	_ context.Context, r *api.PreStartContainerRequest,
) (*api.PreStartContainerResponse, error) {
	ids := slices.Sorted(slices.Values(r.DevicesIds))
	p.record(func(c *Calls) { c.PreStart = append(c.PreStart, ids) })
	if p.PreStart != nil {
		return &api.PreStartContainerResponse{}, p.PreStart()
	}
	return &api.PreStartContainerResponse{}, nil
}

// Healthy returns healthy devices.
func Healthy(ids ...string) []*api.Device { return devicesOf(api.Healthy, ids) }

// Unhealthy returns unhealthy devices.
func Unhealthy(ids ...string) []*api.Device { return devicesOf(api.Unhealthy, ids) }

// OnNUMANodes returns a healthy device with a Topology.
func OnNUMANodes(id string, nodes ...int64) *api.Device {
	d := Healthy(id)[0]
	d.Topology = &api.TopologyInfo{}
	for _, node := range nodes {
		d.Topology.Nodes = append(d.Topology.Nodes, &api.NUMANode{ID: node})
	}
	return d
}

func devicesOf(health string, ids []string) []*api.Device {
	all := []*api.Device{}
	for _, id := range ids {
		all = append(all, &api.Device{ID: id, Health: health})
	}
	return all
}
