package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socketPollInterval = 100 * time.Millisecond // of the sockets' state
	registerTimeout    = 15 * time.Second       // the kubelet's own timeout for the connection to the plugin is 10 s
	streamTimeout      = 5 * time.Second        // from the end of Register to the kubelet's ListAndWatch
	emptyListTimeout   = 10 * time.Second       // of a resource without devices; then the kubelet may forget the resource
)

// server is a gRPC server on a new socket: serve, register, watch, stop. Then the endpoint starts the next server.
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
//	watch     the own socket vanishes, the kubelet's is there        yes
//	watch     the list is empty for 10 s                             yes
//	watch     the list is empty for less                             no
//	watch     PreStartRequired changes                               yes: the kubelet asks for options once per registration
//	any       ctx is done                                            yes, without an error
type server struct {
	*endpoint
	api.UnimplementedDevicePluginServer

	socketPath string
	grpcServer *grpc.Server
	stopping   chan struct{} // closed to end the streams
	serveDone  chan struct{} // closed when Serve has returned
	serveErr   error         // result of Serve; written before serveDone is closed

	clientTracker
	kubeletStreamOpened  chan struct{} // closed when the kubelet's stream opens
	kubeletStreamEndOnce sync.Once     // closes kubeletStreamEnded
	kubeletStreamEnded   chan struct{} // closed when the kubelet's stream ends

	sentPreStartRequired atomic.Bool // newest answer to the kubelet; written by GetDevicePluginOptions
	emptySince           time.Time   // zero if the list has ids; belongs to watch
}

// startServer listens on a socket with a new name: a kubelet from 1.37 on rejects the name of a socket with a live connection, then for
// ever (https://github.com/kubernetes/kubernetes/pull/135437).
func (e *endpoint) startServer(ctx context.Context) (*server, error) {
	removeStaleSockets(e.Dir, e.resource)
	e.serverCount++
	e.socketName = socketPrefix(e.resource) + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(e.serverCount) + ".sock"
	s := &server{
		endpoint: e, socketPath: filepath.Join(e.Dir, e.socketName),
		grpcServer: grpc.NewServer(grpc.WaitForHandlers(true)),
		stopping:   make(chan struct{}), serveDone: make(chan struct{}),
		kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{}),
	}
	if err := checkPathLength(s.socketPath); err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.socketPath)
	if err != nil {
		return nil, err
	}
	api.RegisterDevicePluginServer(s.grpcServer, s)
	go func() { // until stop
		defer close(s.serveDone)
		s.serveErr = s.grpcServer.Serve(addressedListener{listener})
	}()
	return s, nil
}

// stop ends the streams and then the server, so no stream is live when the next server registers. Serve removes the socket.
func (s *server) stop() {
	close(s.stopping)
	s.grpcServer.Stop()
	<-s.serveDone
}

// register returns when the kubelet has connected to the socket or given up.
//
// A deleted socket does not end the wait: a late failure of a registration also ends the next registration
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
		Version: api.Version, Endpoint: filepath.Base(s.socketPath), ResourceName: s.resource, Options: s.pluginOptions(),
	})
	s.recordRegisterReturn()
	if err != nil {
		return fmt.Errorf("register %s: %w", s.resource, err)
	}
	return nil
}

// watch returns when the registration is no longer certain: the lifetime of the kubelet's stream and the reason of the end.
func (s *server) watch(ctx context.Context, kubelet socketID) (uptime time.Duration, err error) {
	tick := time.NewTicker(socketPollInterval)
	defer tick.Stop()
	timeout, opened := time.After(streamTimeout), s.kubeletStreamOpened
	var openedAt time.Time
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, nil
		case <-opened:
			opened, timeout, openedAt = nil, nil, time.Now()
			s.Log.Info("registered", "resource", s.resource, "socket", s.socketPath)
		case <-timeout:
			err = fmt.Errorf("kubelet opened no stream within %s", streamTimeout)
		case <-s.kubeletStreamEnded:
			err = errors.New("kubelet's stream ended")
		case <-s.serveDone:
			err = fmt.Errorf("serve: %w", cmp.Or(s.serveErr, errors.New("server stopped")))
		case <-tick.C:
			s.Beat()
			err = cmp.Or(s.checkSockets(kubelet), s.checkEmpty(time.Now()), s.checkOptions())
		}
	}
	if !openedAt.IsZero() {
		uptime = time.Since(openedAt)
	}
	return uptime, err
}

func (s *server) checkSockets(kubelet socketID) error {
	switch statSocket(s.kubeletSocket()) {
	case socketID{}:
		return nil
	case kubelet:
		if statSocket(s.socketPath) == (socketID{}) {
			return errors.New("own socket was deleted")
		}
		return nil
	default:
		return errors.New("kubelet's socket was replaced")
	}
}

// checkEmpty gives the kubelet time to process an empty list: after an early end of the stream, the kubelet keeps the old devices.
func (s *server) checkEmpty(now time.Time) error {
	if len(s.list().items) > 0 {
		s.emptySince = time.Time{}
		return nil
	}
	if s.emptySince.IsZero() {
		s.emptySince = now
	}
	if now.Sub(s.emptySince) < emptyListTimeout {
		return nil
	}
	return errors.New("device list is empty")
}

func (s *server) checkOptions() error {
	if s.pluginOptions().PreStartRequired != s.sentPreStartRequired.Load() {
		return errors.New("plugin options changed")
	}
	return nil
}
