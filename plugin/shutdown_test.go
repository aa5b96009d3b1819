package plugin_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// TestShutdown ends the context, as SIGTERM does, in each phase.
func TestShutdown(t *testing.T) {
	for _, phase := range []struct {
		name          string
		devices       int
		register      func(ctx context.Context, endpoint string) error // nil: no kubelet
		registrations int                                              // that have ended
	}{
		{"waiting for a device", 0, nil, 0},
		{"waiting for the kubelet", 1, nil, 0},
		{"registering", 1, hangRegister, 0},
		{"waiting for the stream", 1, func(context.Context, string) error { return nil }, 1},
		{"backing off", 1, func(context.Context, string) error { return errors.New("no") }, 3},
	} {
		t.Run(phase.name, func(t *testing.T) {
			s := newFixture(t)
			s.inventory.Set(statuses(phase.devices))
			requests := make(chan struct{}, 10)
			if phase.register != nil {
				s.serveRegistration(func(ctx context.Context, endpoint string) error {
					requests <- struct{}{}
					return phase.register(ctx, endpoint)
				})
			}
			end := s.startPlugin()
			switch {
			case phase.register != nil:
				receive(s, requests)
			case phase.devices > 0:
				s.waitLine(1, "waiting for the kubelet")
			}
			s.poll("registrations have ended", func() bool { return len(s.recorded.registrations()) == phase.registrations })
			s.wantShutdown(end)
		})
	}
	t.Run("watching", func(t *testing.T) {
		s := newFixture(t)
		s.inventory.Set(statuses(1))
		s.startKubelet()
		end := s.startPlugin()
		s.waitRegistered(1)
		s.wantShutdown(end)
	})
}

func (s *fixture) wantShutdown(end func()) {
	s.Helper()
	began := time.Now()
	end()
	s.wantFast("end of Run", time.Since(began))
	expect.EqualSlices(s, s.leftSockets(), nil, "sockets")
	published, _ := s.resources.Get()
	if slices.ContainsFunc(published, func(r plugin.Resource) bool { return r.Registered }) {
		s.Errorf("published after the end: got %+v, want no registration", published)
	}
}

// TestSurge starts a second podgauge process, with fewer devices by its rules,
// beside the first. The second does not wait for the first as for a foreign
// plugin. The kubelet keeps the newest list of both, so the second process
// sends its list again after the end of the first.
func TestSurge(t *testing.T) {
	s := newFixture(t)
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir, Version: kubelet.V137})
	s.inventory.Set(statuses(4))
	s.startKubelet()
	endFirst := s.startPlugin()
	s.waitRegistered(4)

	listed := allocation.ResourceDevice{Resource: resource, ID: string(gpuID(0))}
	allocations := allocation.Snapshot{Complete: true}
	allocations.Resources.AllocatableKnown = true
	allocations.Resources.Allocatable.Devices = []allocation.ResourceDevice{listed}
	second := s.options
	second.Devices, second.Allocations = &device.Inventory{}, &pubsub.Value[allocation.Snapshot]{}
	second.Resources = &pubsub.Value[[]plugin.Resource]{}
	second.Devices.Set(statuses(3))
	second.Allocations.Set(allocations)
	background.Run(s, plugin.New(second).Run)
	s.wait("both are registered", func(k kubelet.KubeletState) bool {
		r := k.Resources[resource]
		return len(r.Sockets) == 2 && r.Allocatable == 3
	})
	s.inventory.Set(unhealthy(statuses(4), 1, "lost"))
	s.wait("the list of the first", func(k kubelet.KubeletState) bool { return len(k.Resources[resource].Devices) == 4 })
	endFirst()
	s.wait("the list of the second", func(k kubelet.KubeletState) bool {
		r := k.Resources[resource]
		return len(r.Sockets) == 1 && len(r.Devices) == 3 && r.Allocatable == 3
	})
}

// registrationServer is a kubelet's Registration service with a handler of the
// test, for faults that the simulated kubelet lacks.
type registrationServer struct {
	api.UnimplementedRegistrationServer
	handle func(ctx context.Context, endpoint string) error
}

func (d *registrationServer) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	return &api.Empty{}, d.handle(ctx, r.GetEndpoint())
}

// hangRegister is a kubelet that does not answer.
func hangRegister(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// serveRegistration replaces the kubelet's socket. The returned function ends
// the server and leaves the socket, like a killed kubelet.
func (s *fixture) serveRegistration(handle func(ctx context.Context, endpoint string) error) (end func()) {
	s.Helper()
	path := s.sockets("kubelet.sock")
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	os.Remove(path) //nolint:errcheck // may not exist
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	s.must(err)
	listener.SetUnlinkOnClose(false)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterRegistrationServer(server, &registrationServer{handle: handle})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	end = sync.OnceFunc(func() {
		server.Stop()
		expect.NoError(s, <-served)
	})
	s.Cleanup(end)
	return end
}

// dial connects a client to the plugin's socket.
func (s *fixture) dial(endpoint string) api.DevicePluginClient {
	s.Helper()
	conn, err := grpc.NewClient("unix:"+s.sockets(endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	s.must(err)
	s.Cleanup(func() { conn.Close() }) //nolint:errcheck // end of the test
	return api.NewDevicePluginClient(conn)
}

// stream opens a ListAndWatch stream and waits for the first list.
func (s *fixture) stream(ctx context.Context, endpoint string) (*listStream, error) {
	client := s.dial(endpoint)
	stream, err := client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	return &listStream{s, client, stream, formatList(first)}, err
}

// listStream is a stream of lists, with the plugin's client.
type listStream struct {
	*fixture
	api.DevicePluginClient
	stream grpc.ServerStreamingClient[api.ListAndWatchResponse]
	newest string // "GPU-0 GPU-1!": GPU-1 is unhealthy
}

// watchLists starts the plugin with the statuses, and watches as the kubelet
// does.
func (s *fixture) watchLists(all []device.Status) *listStream {
	s.Helper()
	s.inventory.Set(all)
	streams := make(chan *listStream, 1)
	s.serveRegistration(func(ctx context.Context, endpoint string) error {
		if _, err := s.dial(endpoint).GetDevicePluginOptions(ctx, &api.Empty{}); err != nil {
			return err
		}
		stream, err := s.stream(s.ctx, endpoint)
		if err == nil {
			streams <- stream
		}
		return err
	})
	s.startPlugin()
	return receive(s, streams)
}

func formatList(list *api.ListAndWatchResponse) string {
	var all []string
	for _, d := range list.GetDevices() {
		id := d.ID
		if d.Health != api.Healthy {
			id += "!"
		}
		all = append(all, id)
	}
	return strings.Join(all, " ")
}

// want receives lists up to the wanted list.
func (l *listStream) want(step, want string) {
	l.Helper()
	for l.newest != want {
		list, err := l.stream.Recv()
		if err != nil {
			l.Fatalf("%s: got list %q, then %v; want %q", step, l.newest, err, want)
		}
		l.newest = formatList(list)
	}
}

// allocate calls Allocate for containers and returns the visible devices of
// each; spaces separate ids.
func (l *listStream) allocate(containers ...string) (visible []string, err error) {
	r, err := l.Allocate(l.ctx, allocateRequest(containers...))
	for _, c := range r.GetContainerResponses() {
		visible = append(visible, c.Envs["NVIDIA_VISIBLE_DEVICES"])
	}
	return visible, err
}

func allocateRequest(containers ...string) *api.AllocateRequest {
	r := &api.AllocateRequest{}
	for _, ids := range containers {
		c := &api.ContainerAllocateRequest{DevicesIds: strings.Fields(ids)}
		r.ContainerRequests = append(r.ContainerRequests, c)
	}
	return r
}

// prefer returns the preferred ids for a container.
func (l *listStream) prefer(size int, available string) string {
	l.Helper()
	c := &api.ContainerPreferredAllocationRequest{
		AvailableDeviceIDs: strings.Fields(available), AllocationSize: int32(size),
	}
	a, err := l.GetPreferredAllocation(l.ctx, &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{c},
	})
	l.must(err)
	return strings.Join(slices.Sorted(slices.Values(a.ContainerResponses[0].DeviceIDs)), " ")
}
