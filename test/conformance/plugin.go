package conformance

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// fakePlugin is a device plugin that does what a habit wants, and writes down what the kubelet
// wanted.
type fakePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	fixture *caseFixture
	socket  string // file name
	stop    func() // ends the server; may be called again

	// What the habit sets before the plugin registers; not written afterwards.
	options    pluginapi.DevicePluginOptions
	optionsErr error
	allocate   func(ids []string) error // called within Allocate; nil for nothing
	preStart   func() error             // called within PreStartContainer; nil for nothing
	preferFunc func(available []string, n int) []string

	mu             sync.Mutex // guards all below
	changed        chan struct{}
	devices        []*pluginapi.Device
	streamsEnded   bool // streams are to end
	optionsCalls   int  // GetDevicePluginOptions calls before the first stream
	connections    int  // connections so far
	streamCount    int  // ListAndWatch calls so far
	openStreams    int  // of these, those that have not ended
	allocateCalls  [][]string
	preferredCalls []*pluginapi.ContainerPreferredAllocationRequest
	preStartCalls  [][]string
}

// startPlugin serves on a socket name that no plugin has had before, and ends with the test.
func (s *caseFixture) startPlugin(list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	s.socketCount++
	p := &fakePlugin{fixture: s, socket: fmt.Sprintf("%s-%d.sock", s.name, s.socketCount), devices: list, changed: make(chan struct{})}
	p.serve()
	return p
}

// registerPlugin is a plugin that the kubelet knows, and whose list it has.
func (s *caseFixture) registerPlugin(list ...*pluginapi.Device) *fakePlugin {
	s.Helper()
	p := s.startPlugin(list...)
	p.registerAndWait()
	return p
}

// path is where the plugin's socket lies, as this process sees it.
func (p *fakePlugin) path() string {
	return filepath.Join(p.fixture.k.Dir(), "device-plugins", p.socket)
}

func (p *fakePlugin) serve() {
	p.fixture.Helper()
	listener, err := net.Listen("unix", p.path())
	if err != nil {
		p.fixture.Fatal(err)
	}
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

// countingListener counts the connections that a plugin's listener accepts.
type countingListener struct {
	net.Listener
	plugin *fakePlugin
}

func (a countingListener) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.plugin.update(func() { a.plugin.connections++ })
	}
	return conn, err
}

// restarted is the same plugin in its next life: a new server on a new socket.
func (p *fakePlugin) restarted() *fakePlugin {
	p.fixture.Helper()
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.fixture.startPlugin(p.devices...)
	next.preferFunc, next.allocate = p.preferFunc, p.allocate
	next.options.PreStartRequired = p.options.PreStartRequired
	next.options.GetPreferredAllocationAvailable = p.options.GetPreferredAllocationAvailable
	return next
}

func (p *fakePlugin) register() error {
	return p.fixture.register(p.fixture.ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: p.socket, ResourceName: p.fixture.resource})
}

// registerAndWait registers and returns when the kubelet has the plugin's healthy devices.
func (p *fakePlugin) registerAndWait() {
	p.fixture.Helper()
	if err := p.register(); err != nil {
		p.fixture.Fatal(err)
	}
	p.waitForList()
}

// waitForList waits until the kubelet has the plugin's list.
func (p *fakePlugin) waitForList() {
	p.fixture.Helper()
	p.fixture.waitFor("the kubelet has the plugin's list", func() error {
		got, err := p.fixture.allocatable()
		if err == nil && !slices.Equal(got, p.healthy()) {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
}

// healthy is what GetAllocatableResources makes of the plugin's list.
func (p *fakePlugin) healthy() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := []string{}
	for _, d := range p.devices {
		if d.Health != pluginapi.Healthy {
			continue
		}
		if d.Topology == nil {
			all = append(all, d.ID)
		}
		for _, node := range d.GetTopology().GetNodes() {
			all = append(all, fmt.Sprintf("%s[%d]", d.ID, node.ID))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// send lists other devices from now on.
func (p *fakePlugin) send(list ...*pluginapi.Device) {
	p.update(func() { p.devices = list })
}

// endStreams ends the streams, and those to come, while the server goes on.
func (p *fakePlugin) endStreams() {
	p.update(func() { p.streamsEnded = true })
}

func (p *fakePlugin) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// read reads what the plugin has written down.
func (p *fakePlugin) read(of func() int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return of()
}

func (p *fakePlugin) streamsOpen() int   { return p.read(func() int { return p.openStreams }) }
func (p *fakePlugin) streamsOpened() int { return p.read(func() int { return p.streamCount }) }
func (p *fakePlugin) allocations() int   { return p.read(func() int { return len(p.allocateCalls) }) }

func (p *fakePlugin) prestarts() int { return p.read(func() int { return len(p.preStartCalls) }) }

func (p *fakePlugin) waitForStreams(want int) {
	p.fixture.Helper()
	p.fixture.waitFor(fmt.Sprintf("the plugin has %d streams", want), func() error {
		if got := p.streamsOpen(); got != want {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
}

func (p *fakePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	p.update(func() {
		if p.streamCount == 0 {
			p.optionsCalls++
		}
	})
	return &p.options, p.optionsErr
}

func (p *fakePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.update(func() { p.streamCount++; p.openStreams++ })
	defer p.update(func() { p.openStreams-- })
	var sent []*pluginapi.Device
	for first := true; ; first = false {
		p.mu.Lock()
		list, changed, hungUp := p.devices, p.changed, p.streamsEnded
		p.mu.Unlock()
		if hungUp {
			return nil
		}
		if first || !slices.Equal(list, sent) {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
			sent = list
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (p *fakePlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		p.update(func() { p.allocateCalls = append(p.allocateCalls, slices.Sorted(slices.Values(c.DevicesIds))) })
		if p.allocate != nil {
			if err := p.allocate(c.DevicesIds); err != nil {
				return nil, err
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return answer, nil
}

func (p *fakePlugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	answer := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		p.update(func() { p.preferredCalls = append(p.preferredCalls, c) })
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: p.preferFunc(c.AvailableDeviceIDs, int(c.AllocationSize)),
		})
	}
	return answer, nil
}

func (p *fakePlugin) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.update(func() { p.preStartCalls = append(p.preStartCalls, slices.Sorted(slices.Values(r.DevicesIds))) })
	if p.preStart != nil {
		if err := p.preStart(); err != nil {
			return nil, err
		}
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}
