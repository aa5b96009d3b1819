package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/podgauge/podgauge/internal/retry"
	"github.com/podgauge/podgauge/internal/text"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	registerTimeout = 15 * time.Second // the kubelet's own timeout for the connection to the plugin is 10 s
	streamTimeout   = 5 * time.Second  // from the end of Register to the kubelet's ListAndWatch
	// emptyListTimeout is that of a resource without devices; after an early
	// end of the stream, the kubelet keeps the old devices.
	emptyListTimeout = 10 * time.Second
	// deletionTimeout is the time for the end of a deletion of all sockets,
	// file by file. Without the kubelet's socket, the stream is kept.
	deletionTimeout = 100 * time.Millisecond
)

// server is a gRPC server on a new socket: serve, register, watch, stop. Then
// the endpoint starts the next server.
//
//	step      event                                                  ends the server
//	serve     the socket cannot be made                              yes
//	register  Register returns an error, or not within 15 s          yes
//	watch     the kubelet opens no stream for 5 s                    yes
//	watch     the kubelet's stream ends                              yes
//	watch     the stream of a different client ends                  no
//	watch     the gRPC server stops                                  yes
//	watch     the kubelet's socket is replaced                       yes
//	watch     the kubelet's socket vanishes                          no: the stream still stands
//	watch     the own socket vanishes, the kubelet's stays 100 ms   yes
//	watch     the list is empty for 10 s                             yes
//	watch     the list is empty for less                             no
//	watch     PreStartRequired changes                               yes: the kubelet asks once per registration
//	any       ctx is done                                            yes, without an error
type server struct {
	*resourceState
	api.UnimplementedDevicePluginServer

	socketPath string
	grpcServer *grpc.Server
	stopping   chan struct{} // closed to end the streams
	serveDone  chan struct{} // closed when Serve has returned
	serveErr   error         // result of Serve; written before serveDone is closed

	kubeletStream       atomic.Bool   // the kubelet's stream has opened
	kubeletStreamOpened chan struct{} // closed when the kubelet's stream opens
	kubeletStreamEnded  chan struct{} // closed when the kubelet's stream ends

	sentPreStartRequired atomic.Bool // newest answer to the kubelet; written by GetDevicePluginOptions
	emptySince           time.Time   // zero if the list has ids; belongs to watch
	deletedSince         time.Time   // of the own socket; zero if there, or if the kubelet's is missing; likewise
}

// startServer listens on a socket with a new name: a kubelet from 1.37 on
// rejects the name of a socket with a live connection, then for ever
// (https://github.com/kubernetes/kubernetes/pull/135437).
func startServer(ctx context.Context, r *resourceState, socketName string) (*server, error) {
	s := &server{
		resourceState: r, socketPath: filepath.Join(r.Dir, socketName),
		grpcServer: grpc.NewServer(grpc.WaitForHandlers(true)),
		stopping:   make(chan struct{}), serveDone: make(chan struct{}),
		kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{}),
	}
	if err := text.CheckSocketPath(s.socketPath); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.socketPath)
	if err != nil {
		return nil, err
	}
	api.RegisterDevicePluginServer(s.grpcServer, s)
	go func() { // until stop
		defer close(s.serveDone)
		s.serveErr = s.grpcServer.Serve(listener)
	}()
	return s, nil
}

// stop ends the streams and then the server, so no stream is live when the next
// server registers. Serve removes the socket.
func (s *server) stop() {
	close(s.stopping)
	s.grpcServer.Stop()
	<-s.serveDone
}

// register returns when the kubelet has connected to the socket or given up.
//
// A deleted socket does not end the wait: a late failure of a registration also
// ends the next registration
// (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).
func (s *server) register(ctx context.Context) error {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", s.kubeletSocket())
		}))
	if err != nil {
		return fmt.Errorf("make a client of the kubelet: %w", err)
	}
	defer conn.Close() //nolint:errcheck // used for a single call
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     filepath.Base(s.socketPath),
		ResourceName: s.resource,
		Options:      s.pluginOptions(),
	})
	if err != nil {
		return fmt.Errorf("register %s: %w", s.resource, err)
	}
	return nil
}

// watch returns when the registration is no longer certain: the lifetime of the
// kubelet's stream and the reason of the end.
func (s *server) watch(ctx context.Context, kubelet socketID) (uptime time.Duration, err error) {
	timeout, opened := time.After(streamTimeout), s.kubeletStreamOpened
	var openedAt time.Time
	for err == nil {
		s.Beat()
		_, socketsChanged := s.sockets.Get()
		list, listChanged := s.devices.Get()
		emptyLeft := timeLeft(&s.emptySince, len(list.items) == 0, emptyListTimeout)
		deletedLeft := timeLeft(&s.deletedSince, s.ownSocketDeleted(), deletionTimeout)
		if err = s.check(kubelet, emptyLeft, deletedLeft); err != nil {
			break
		}
		select {
		case <-ctx.Done():
			return 0, nil
		case <-opened:
			opened, timeout, openedAt = nil, nil, time.Now()
			s.Log.Info("registered", "resource", s.resource, "socket", s.socketPath)
		case <-timeout:
			err = fmt.Errorf("the kubelet opened no stream within %s", streamTimeout)
		case <-s.kubeletStreamEnded:
			err = errors.New("the kubelet closed the stream")
		case <-s.serveDone:
			err = fmt.Errorf("serve: %w", cmp.Or(s.serveErr, errors.New("server stopped")))
		case <-socketsChanged:
		case <-listChanged:
		case <-time.After(min(emptyLeft, deletedLeft)):
		}
	}
	if !openedAt.IsZero() {
		uptime = time.Since(openedAt)
	}
	return uptime, err
}

// check returns the reason why the registration is no longer certain.
func (s *server) check(kubelet socketID, emptyLeft, deletedLeft time.Duration) error {
	current := statSocket(s.kubeletSocket())
	switch {
	case current != (socketID{}) && current != kubelet:
		return errors.New("the kubelet's socket was replaced")
	case deletedLeft <= 0:
		return errors.New("podgauge's socket was deleted")
	case emptyLeft <= 0:
		return errors.New("device list is empty")
	case s.pluginOptions().PreStartRequired != s.sentPreStartRequired.Load():
		return errors.New("plugin options changed")
	}
	return nil
}

// ownSocketDeleted reports whether only the kubelet's socket is there.
func (s *server) ownSocketDeleted() bool {
	return statSocket(s.kubeletSocket()) != (socketID{}) && statSocket(s.socketPath) == (socketID{})
}

// timeLeft returns the time until a condition has held for a timeout;
// heartbeatInterval while the condition does not hold.
func timeLeft(since *time.Time, holds bool, timeout time.Duration) time.Duration {
	if !holds {
		*since = time.Time{}
		return retry.Aligned(heartbeatInterval)
	}
	if since.IsZero() {
		*since = time.Now()
	}
	return time.Until(since.Add(timeout))
}
