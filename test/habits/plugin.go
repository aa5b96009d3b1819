package habits

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

// plugin is a device plugin that does what a habit wants, and writes down what the kubelet
// wanted.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	s      *stage
	socket string // file name
	stop   func() // ends the server; may be called again

	// What the habit sets before the plugin registers; not written afterwards.
	options    pluginapi.DevicePluginOptions
	optionsErr error
	allocate   func(ids []string) error // called within Allocate; nil for nothing
	prestart   func() error             // called within PreStartContainer; nil for nothing
	prefer     func(available []string, n int) []string

	mu         sync.Mutex // guards all below
	changed    chan struct{}
	devices    []*pluginapi.Device
	hungUp     bool // streams are to end
	asked      int  // GetDevicePluginOptions calls before the first stream
	connected  int  // connections so far
	opened     int  // ListAndWatch calls so far
	open       int  // of these, those that have not ended
	allocated  [][]string
	preferred  []*pluginapi.ContainerPreferredAllocationRequest
	prestarted [][]string
}

// plugin serves on a socket name that no plugin has had before, and ends with the test.
func (s *stage) plugin(list ...*pluginapi.Device) *plugin {
	s.Helper()
	s.sockets++
	p := &plugin{s: s, socket: fmt.Sprintf("%s-%d.sock", s.name, s.sockets), devices: list, changed: make(chan struct{})}
	p.serve()
	return p
}

// offers is a plugin that the kubelet knows, and whose list it has.
func (s *stage) offers(list ...*pluginapi.Device) *plugin {
	s.Helper()
	p := s.plugin(list...)
	p.registers()
	return p
}

// path is where the plugin's socket lies, as this process sees it.
func (p *plugin) path() string { return filepath.Join(p.s.k.Dir(), "device-plugins", p.socket) }

func (p *plugin) serve() {
	p.s.Helper()
	listener, err := net.Listen("unix", p.path())
	if err != nil {
		p.s.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	pluginapi.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(accepting{listener, p}) }()
	p.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			p.s.Error(err)
		}
	})
	p.s.Cleanup(p.stop)
}

// accepting counts the connections that a plugin's listener accepts.
type accepting struct {
	net.Listener
	p *plugin
}

func (a accepting) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.p.change(func() { a.p.connected++ })
	}
	return conn, err
}

// again is the same plugin in its next life: a new server on a new socket.
func (p *plugin) again() *plugin {
	p.s.Helper()
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.s.plugin(p.devices...)
	next.prefer, next.allocate = p.prefer, p.allocate
	next.options.PreStartRequired = p.options.PreStartRequired
	next.options.GetPreferredAllocationAvailable = p.options.GetPreferredAllocationAvailable
	return next
}

func (p *plugin) register() error {
	return p.s.register(p.s.ctx, &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: p.socket, ResourceName: p.s.resource})
}

// registers registers and returns when the kubelet has the plugin's healthy devices.
func (p *plugin) registers() {
	p.s.Helper()
	if err := p.register(); err != nil {
		p.s.Fatal(err)
	}
	p.awaitTaken()
}

// awaitTaken waits until the kubelet has the plugin's list.
func (p *plugin) awaitTaken() {
	p.s.Helper()
	p.s.await("the kubelet has the plugin's list", func() error {
		got, err := p.s.allocatable()
		if err == nil && !slices.Equal(got, p.healthy()) {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
}

// healthy is what GetAllocatableResources makes of the plugin's list.
func (p *plugin) healthy() []string {
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
func (p *plugin) send(list ...*pluginapi.Device) {
	p.change(func() { p.devices = list })
}

// hangUp ends the streams, and those to come, while the server goes on.
func (p *plugin) hangUp() {
	p.change(func() { p.hungUp = true })
}

func (p *plugin) change(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// count reads what the plugin has written down.
func (p *plugin) count(of func() int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return of()
}

func (p *plugin) streamsOpen() int   { return p.count(func() int { return p.open }) }
func (p *plugin) streamsOpened() int { return p.count(func() int { return p.opened }) }
func (p *plugin) allocations() int   { return p.count(func() int { return len(p.allocated) }) }
func (p *plugin) prestarts() int     { return p.count(func() int { return len(p.prestarted) }) }

func (p *plugin) awaitStreams(want int) {
	p.s.Helper()
	p.s.await(fmt.Sprintf("the plugin has %d streams", want), func() error {
		if got := p.streamsOpen(); got != want {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	p.change(func() {
		if p.opened == 0 {
			p.asked++
		}
	})
	return &p.options, p.optionsErr
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	p.change(func() { p.opened++; p.open++ })
	defer p.change(func() { p.open-- })
	var sent []*pluginapi.Device
	for first := true; ; first = false {
		p.mu.Lock()
		list, changed, hungUp := p.devices, p.changed, p.hungUp
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

func (p *plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		p.change(func() { p.allocated = append(p.allocated, slices.Sorted(slices.Values(c.DevicesIds))) })
		if p.allocate != nil {
			if err := p.allocate(c.DevicesIds); err != nil {
				return nil, err
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return answer, nil
}

func (p *plugin) GetPreferredAllocation(_ context.Context, r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	answer := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		p.change(func() { p.preferred = append(p.preferred, c) })
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: p.prefer(c.AvailableDeviceIDs, int(c.AllocationSize)),
		})
	}
	return answer, nil
}

func (p *plugin) PreStartContainer(_ context.Context, r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.change(func() { p.prestarted = append(p.prestarted, slices.Sorted(slices.Values(r.DevicesIds))) })
	if p.prestart != nil {
		if err := p.prestart(); err != nil {
			return nil, err
		}
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}
