package plugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// life is one server on one socket, from its listening to its end.
type life struct {
	*Plugin
	api.UnimplementedDevicePluginServer

	socket   string
	server   *grpc.Server
	done     chan struct{} // closed to end the streams
	served   chan struct{} // closed when Serve has returned
	serveErr error         // what it returned; not written once served is closed

	first, gone sync.Once     // close the two channels
	streaming   chan struct{} // closed when the first stream opens
	broken      chan struct{} // closed when any stream ends

	mu      sync.Mutex
	streams int // live ones; guarded by mu
}

// begin listens under a name that was never used before: a kubelet from 1.37 on
// refuses a socket that it believes it is connected to, and from then on for ever
// (https://github.com/kubernetes/kubernetes/pull/135437).
func (p *Plugin) begin(ctx context.Context) (*life, error) {
	p.sweep()
	p.lives++
	name := p.prefix() + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(p.lives) + ".sock"
	l := &life{
		Plugin: p, socket: filepath.Join(p.Dir, name),
		server: grpc.NewServer(grpc.WaitForHandlers(true)),
		done:   make(chan struct{}), served: make(chan struct{}),
		streaming: make(chan struct{}), broken: make(chan struct{}),
	}
	listener, err := listen(ctx, l.socket)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", p.Dir, err)
	}
	api.RegisterDevicePluginServer(l.server, l)
	go func() { // end waits for it
		defer close(l.served)
		l.serveErr = l.server.Serve(listener)
	}()
	return l, nil
}

// listen gives the system's error alone: the socket's name, new each time, would
// make the same error look like another one.
func listen(ctx context.Context, socket string) (net.Listener, error) {
	if err := fits(socket); err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, op.Err
	}
	return listener, err
}

// end ends the streams and then the server, so that no stream of this life is
// left when the next one registers. Serve closes the listener, which removes the
// socket.
func (l *life) end() {
	close(l.done)
	l.server.Stop()
	<-l.served
}

// register returns when the kubelet has connected to the socket, or has given up
// doing so. It waits for that even where the socket was deleted meanwhile: a
// failed registration takes a later one down with it when it ends after that one
// (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).
func (l *life) register(ctx context.Context) error {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", l.kubeletSocket())
		}))
	if err != nil {
		return fmt.Errorf("make a client of the kubelet: %w", err)
	}
	defer conn.Close() //nolint:errcheck // it was used for one call
	ctx, cancel := context.WithTimeout(ctx, registerMost)
	defer cancel()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     filepath.Base(l.socket),
		ResourceName: l.Resource,
		Options:      l.options(),
	})
	if err != nil {
		return fmt.Errorf("register %s: %w", l.Resource, err)
	}
	return nil
}

// watch returns when the registration can no longer be trusted, and tells for how
// long the kubelet's stream stood.
func (l *life) watch(ctx context.Context, kubelet socketID) (stood time.Duration, err error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	late := time.After(streamBy)
	streaming := l.streaming
	var since time.Time
	for err == nil {
		select {
		case <-ctx.Done():
			return 0, nil
		case <-streaming:
			streaming, late, since = nil, nil, time.Now()
			l.Log.Info("registered", "resource", l.Resource, "socket", l.socket)
		case <-late:
			err = fmt.Errorf("the kubelet took the registration and opened no stream within %s", streamBy)
		case <-l.broken:
			err = errors.New("the kubelet's stream ended")
		case <-l.served:
			err = fmt.Errorf("serve: %w", l.serveErr)
		case <-tick.C:
			l.Beat()
			err = l.orphaned(kubelet)
		}
	}
	if !since.IsZero() {
		stood = time.Since(since)
	}
	return stood, err
}

// orphaned says why there may be a kubelet that does not know this life. One
// whose socket is gone is not replaced: its stream still stands, and it has no
// other to give.
func (l *life) orphaned(kubelet socketID) error {
	switch identify(l.kubeletSocket()) {
	case socketID{}:
		return nil
	case kubelet:
		if identify(l.socket) == (socketID{}) {
			return errors.New("our socket was deleted")
		}
		return nil
	default:
		return errors.New("the kubelet's socket was replaced")
	}
}
