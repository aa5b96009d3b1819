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

// life is one server on one socket, from its listening to its end.
type life struct {
	*endpoint
	api.UnimplementedDevicePluginServer

	socket   string
	server   *grpc.Server
	done     chan struct{} // closed to end the streams
	served   chan struct{} // closed when Serve has returned
	serveErr error         // what it returned; not written once served is closed

	callers
	streaming chan struct{} // closed when the kubelet's stream opens
	gone      sync.Once     // closes broken
	broken    chan struct{} // closed when the kubelet's stream ends

	preStart atomic.Bool // what the kubelet was told of it; written by GetDevicePluginOptions

	empty time.Time // since when nothing is offered; belongs to watch
}

// begin listens under a name that was never used before: a kubelet from 1.37 on
// refuses a socket that it believes it is connected to, and from then on for ever
// (https://github.com/kubernetes/kubernetes/pull/135437).
func (e *endpoint) begin(ctx context.Context) (*life, error) {
	e.sweep()
	e.lives++
	e.socket = e.prefix() + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(e.lives) + ".sock"
	l := &life{
		endpoint: e, socket: filepath.Join(e.Dir, e.socket),
		server: grpc.NewServer(grpc.WaitForHandlers(true)),
		done:   make(chan struct{}), served: make(chan struct{}),
		streaming: make(chan struct{}), broken: make(chan struct{}),
	}
	listener, err := listen(ctx, l.socket)
	if err != nil {
		return nil, fmt.Errorf("listen in %s: %w", e.Dir, err)
	}
	api.RegisterDevicePluginServer(l.server, l)
	listener = connections{listener}
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
		ResourceName: l.resource,
		Options:      l.options(),
	})
	l.answered()
	if err != nil {
		return fmt.Errorf("register %s: %w", l.resource, err)
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
			l.Log.Info("registered", "resource", l.resource, "socket", l.socket)
		case <-late:
			err = fmt.Errorf("the kubelet took the registration and opened no stream within %s", streamBy)
		case <-l.broken:
			err = errors.New("the kubelet's stream ended")
		case <-l.served:
			err = fmt.Errorf("serve: %w", cmp.Or(l.serveErr, errors.New("the server has stopped")))
		case <-tick.C:
			l.Beat()
			err = cmp.Or(l.orphaned(kubelet), l.emptied(time.Now()), l.outdated())
		}
	}
	if !since.IsZero() {
		stood = time.Since(since)
	}
	return stood, err
}

// emptied says that nothing has been offered for long. The kubelet had the time to
// take the empty list in, which a stream that ends would not have told it.
func (l *life) emptied(now time.Time) error {
	if o, _ := l.look(); len(o.items) > 0 {
		l.empty = time.Time{}
		return nil
	}
	if l.empty.IsZero() {
		l.empty = now
	}
	if now.Sub(l.empty) < leaveAfter {
		return nil
	}
	return errors.New("there is nothing to offer")
}

// outdated says that the kubelet was told of options that no longer hold. It asks
// for them once a registration.
func (l *life) outdated() error {
	if l.options().PreStartRequired != l.preStart.Load() {
		return errors.New("the options have changed")
	}
	return nil
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
