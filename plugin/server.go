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

// server is one server on one socket, from its listening to its end.
type server struct {
	*endpoint
	api.UnimplementedDevicePluginServer

	socketPath string
	grpcServer *grpc.Server
	stopping   chan struct{} // closed to end the streams
	serveDone  chan struct{} // closed when Serve has returned
	serveErr   error         // what it returned; not written once served is closed

	clientTracker
	kubeletStreamOpened  chan struct{} // closed when the kubelet's stream opens
	kubeletStreamEndOnce sync.Once     // closes broken
	kubeletStreamEnded   chan struct{} // closed when the kubelet's stream ends

	sentPreStartRequired atomic.Bool // what the kubelet was told of it; written by GetDevicePluginOptions

	emptySince time.Time // since when nothing is offered; belongs to watch
}

// startServer listens under a name that was never used before: a kubelet from 1.37 on
// refuses a socket that it believes it is connected to, and from then on for ever
// (https://github.com/kubernetes/kubernetes/pull/135437).
func (e *endpoint) startServer(ctx context.Context) (*server, error) {
	e.removeStaleSockets()
	e.serverCount++
	e.socketName = e.socketPrefix() + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(e.serverCount) + ".sock"
	s := &server{
		endpoint: e, socketPath: filepath.Join(e.Dir, e.socketName),
		grpcServer: grpc.NewServer(grpc.WaitForHandlers(true)),
		stopping:   make(chan struct{}), serveDone: make(chan struct{}),
		kubeletStreamOpened: make(chan struct{}), kubeletStreamEnded: make(chan struct{}),
	}
	listener, err := listen(ctx, s.socketPath)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", e.Dir, err)
	}
	api.RegisterDevicePluginServer(s.grpcServer, s)
	listener = addressedListener{listener}
	go func() { // end waits for it
		defer close(s.serveDone)
		s.serveErr = s.grpcServer.Serve(listener)
	}()
	return s, nil
}

// listen gives the system's error alone: the socket's name, new each time, would
// make the same error look like another one.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := checkPathLength(socket); err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, op.Err
	}
	return listener, err
}

// stop ends the streams and then the server, so that no stream of this life is
// left when the next one registers. Serve closes the listener, which removes the
// socket.
func (s *server) stop() {
	close(s.stopping)
	s.grpcServer.Stop()
	<-s.serveDone
}

// register returns when the kubelet has connected to the socket, or has given up
// doing so. It waits for that even where the socket was deleted meanwhile: a
// failed registration takes a later one down with it when it ends after that one
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
	defer conn.Close() //nolint:errcheck // it was used for one call
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     filepath.Base(s.socketPath),
		ResourceName: s.resource,
		Options:      s.pluginOptions(),
	})
	s.recordRegisterReturn()
	if err != nil {
		return fmt.Errorf("register %s: %w", s.resource, err)
	}
	return nil
}

// watch returns when the registration can no longer be trusted, and tells for how
// long the kubelet's stream stood.
func (s *server) watch(ctx context.Context, kubelet socketID) (uptime time.Duration, err error) {
	tick := time.NewTicker(socketPollInterval)
	defer tick.Stop()
	deadline := time.After(streamTimeout)
	opened := s.kubeletStreamOpened
	var since time.Time
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, nil
		case <-opened:
			opened, deadline, since = nil, nil, time.Now()
			s.Log.Info("registered", "resource", s.resource, "socket", s.socketPath)
		case <-deadline:
			err = fmt.Errorf("the kubelet took the registration and opened no stream within %s", streamTimeout)
		case <-s.kubeletStreamEnded:
			err = errors.New("the kubelet's stream ended")
		case <-s.serveDone:
			err = fmt.Errorf("serve: %w", cmp.Or(s.serveErr, errors.New("the server has stopped")))
		case <-tick.C:
			s.Beat()
			err = cmp.Or(s.checkSockets(kubelet), s.checkEmpty(time.Now()), s.checkOptions())
		}
	}
	if !since.IsZero() {
		uptime = time.Since(since)
	}
	return uptime, err
}

// checkEmpty says that nothing has been offered for long. The kubelet had the time to
// take the empty list in, which a stream that ends would not have told it.
func (s *server) checkEmpty(now time.Time) error {
	if list := s.list(); len(list.items) > 0 {
		s.emptySince = time.Time{}
		return nil
	}
	if s.emptySince.IsZero() {
		s.emptySince = now
	}
	if now.Sub(s.emptySince) < emptyListTimeout {
		return nil
	}
	return errors.New("there is nothing to offer")
}

// checkOptions says that the kubelet was told of options that no longer hold. It asks
// for them once a registration.
func (s *server) checkOptions() error {
	if s.pluginOptions().PreStartRequired != s.sentPreStartRequired.Load() {
		return errors.New("the options have changed")
	}
	return nil
}

// checkSockets says why there may be a kubelet that does not know this life. One
// whose socket is gone is not replaced: its stream still stands, and it has no
// other to give.
func (s *server) checkSockets(kubelet socketID) error {
	switch statSocket(s.kubeletSocket()) {
	case socketID{}:
		return nil
	case kubelet:
		if statSocket(s.socketPath) == (socketID{}) {
			return errors.New("our socket was deleted")
		}
		return nil
	default:
		return errors.New("the kubelet's socket was replaced")
	}
}
