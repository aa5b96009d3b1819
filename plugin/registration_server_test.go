package plugin_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registrationServer is a kubelet's Registration service with a handler of the
// test, for faults that the simulated kubelet lacks.
type registrationServer struct {
	api.UnimplementedRegistrationServer
	handle func(ctx context.Context, endpoint string) error
}

func (d *registrationServer) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	return &api.Empty{}, d.handle(ctx, r.GetEndpoint())
}

// serveRegistration replaces the kubelet's socket. The returned function ends
// the server and leaves the socket, like a killed kubelet.
func (s *fixture) serveRegistration(handle func(ctx context.Context, endpoint string) error) (end func()) {
	s.Helper()
	path := s.sockets("kubelet.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		s.Fatal(err)
	}
	os.Remove(path) //nolint:errcheck // may not exist
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		s.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterRegistrationServer(server, &registrationServer{handle: handle})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	end = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(end)
	return end
}

// dial connects a client to the plugin's socket.
func (s *fixture) dial(endpoint string) api.DevicePluginClient {
	s.Helper()
	conn, err := grpc.NewClient("unix:"+s.sockets(endpoint), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { conn.Close() }) //nolint:errcheck // end of the test
	return api.NewDevicePluginClient(conn)
}

// stream opens a ListAndWatch stream and waits for the first list.
func (s *fixture) stream(ctx context.Context, endpoint string) (grpc.ServerStreamingClient[api.ListAndWatchResponse],
	*api.ListAndWatchResponse, error,
) {
	stream, err := s.dial(endpoint).ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	return stream, first, err
}
