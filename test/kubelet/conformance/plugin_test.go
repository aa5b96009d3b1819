package conformance

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/pubsub"
)

// fakePlugin is a device plugin with a record of the kubelet's calls.
type fakePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	fixture *caseFixture
	socket  string // file name
	stop    func() // ends the server; may be called again

	pluginBehavior
	list pubsub.Value[pluginList]

	mu    sync.Mutex
	calls pluginCalls // guarded by mu
}

// pluginBehavior configures a fakePlugin before its registration. Nil funcs have no effect.
type pluginBehavior struct {
	preStartRequired bool
	prefer           func(available []string, n int) []string // GetPreferredAllocation
	optionsErr       error                                    // of GetDevicePluginOptions
	allocate         func() error
	preStart         func() error
}

// pluginList is the list to send, or the end of all streams.
type pluginList struct {
	devices []*pluginapi.Device
	ended   bool
}

// pluginCalls records the calls of the kubelet.
type pluginCalls struct {
	connections int
	options     int // GetDevicePluginOptions before the first stream
	streams     int // ListAndWatch so far
	openStreams int
	allocate    [][]string
	preStart    [][]string
	preferred   []string // "available must-include size"
}

// startPlugin serves on a new socket name until the test ends.
func (s *caseFixture) startPlugin(b pluginBehavior, list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	s.socketCount++
	p := &fakePlugin{fixture: s, socket: fmt.Sprintf("%s-%d.sock", s.name, s.socketCount), pluginBehavior: b}
	p.send(list...)
	p.serve()
	return p
}

// registerPlugin starts a plugin and returns when the kubelet has the list.
func (s *caseFixture) registerPlugin(list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	return s.registerPluginWith(pluginBehavior{}, list...)
}

func (s *caseFixture) registerPluginWith(b pluginBehavior, list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	p := s.startPlugin(b, list...)
	p.registerAndWait()
	return p
}

func (p *fakePlugin) serve() {
	p.fixture.Helper()
	listener, err := net.Listen("unix", p.fixture.path("device-plugins", p.socket))
	p.fixture.must(err)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(countingListener{listener, p}) }()
	p.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			p.fixture.Error(err)
		}
	})
	p.fixture.Cleanup(p.stop)
}

// countingListener counts accepted connections.
type countingListener struct {
	net.Listener
	plugin *fakePlugin
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.plugin.record(func(c *pluginCalls) { c.connections++ })
	}
	return conn, err
}

// restarted stops the plugin and returns a new plugin with the same list on a new socket.
func (p *fakePlugin) restarted() *fakePlugin {
	p.fixture.Helper()
	p.stop()
	list, _ := p.list.Get()
	return p.fixture.startPlugin(p.pluginBehavior, list.devices...)
}

func (p *fakePlugin) register() error {
	return p.fixture.register(p.fixture.ctx, pluginapi.Version, p.socket, p.fixture.resource)
}

func (p *fakePlugin) registerAndWait() {
	p.fixture.Helper()
	p.fixture.must(p.register())
	p.waitForList()
}

// waitForList waits until the kubelet has the plugin's list.
func (p *fakePlugin) waitForList() {
	p.fixture.Helper()
	list, _ := p.list.Get()
	want := []string{}
	for _, d := range list.devices {
		if d.Health != pluginapi.Healthy {
			continue
		}
		if d.Topology == nil {
			want = append(want, d.ID)
		}
		for _, node := range d.GetTopology().GetNodes() {
			want = append(want, fmt.Sprintf("%s[%d]", d.ID, node.ID))
		}
	}
	slices.Sort(want)
	p.fixture.waitForAllocatable(slices.Compact(want)...)
}

// send replaces the list.
func (p *fakePlugin) send(list ...*pluginapi.Device) { p.list.Set(pluginList{devices: list}) }

// endStreams ends all current and later streams, while the server continues.
func (p *fakePlugin) endStreams() { p.list.Set(pluginList{ended: true}) }

func (p *fakePlugin) record(change func(*pluginCalls)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.calls)
}

// recorded returns a copy of the calls so far.
func (p *fakePlugin) recorded() pluginCalls {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls
}

func (p *fakePlugin) waitForStreams(want int) {
	p.fixture.Helper()
	p.fixture.waitForValue("open streams", func() (any, error) { return p.recorded().openStreams, nil }, want)
}

func (p *fakePlugin) wantAllocateCalls(want int) {
	p.fixture.Helper()
	if got := p.recorded().allocate; len(got) != want {
		p.fixture.Errorf("Allocate calls %q; want %d", got, want)
	}
}

func (p *fakePlugin) wantPreferredCalls(want ...string) {
	p.fixture.Helper()
	if got := p.recorded().preferred; !slices.Equal(got, want) {
		p.fixture.Errorf("GetPreferredAllocation calls %q; want %q", got, want)
	}
}

func (p *fakePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	p.record(func(c *pluginCalls) {
		if c.streams == 0 {
			c.options++
		}
	})
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.preStartRequired, GetPreferredAllocationAvailable: p.prefer != nil}, p.optionsErr
}

func (p *fakePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.record(func(c *pluginCalls) { c.streams++; c.openStreams++ })
	defer p.record(func(c *pluginCalls) { c.openStreams-- })
	for {
		list, changed := p.list.Get()
		if list.ended {
			return nil
		}
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list.devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *fakePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range r.ContainerRequests {
		p.record(func(c *pluginCalls) {
			c.allocate = append(c.allocate, slices.Sorted(slices.Values(container.DevicesIds)))
		})
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	if p.allocate != nil {
		return response, p.allocate()
	}
	return response, nil
}

func (p *fakePlugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	for _, request := range r.ContainerRequests {
		available, include := slices.Sorted(slices.Values(request.AvailableDeviceIDs)), slices.Sorted(slices.Values(request.MustIncludeDeviceIDs))
		p.record(func(c *pluginCalls) {
			c.preferred = append(c.preferred, fmt.Sprint(available, include, request.AllocationSize))
		})
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: p.prefer(available, int(request.AllocationSize)),
		})
	}
	return response, nil
}

func (p *fakePlugin) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.record(func(c *pluginCalls) { c.preStart = append(c.preStart, slices.Sorted(slices.Values(r.DevicesIds))) })
	if p.preStart != nil {
		return &pluginapi.PreStartContainerResponse{}, p.preStart()
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}
