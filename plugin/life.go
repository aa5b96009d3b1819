package plugin

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// life is one server on one socket, from its listening to its end.
type life struct {
	*Plugin
	api.UnimplementedDevicePluginServer

	socket string
	id     socketID
	server *grpc.Server
	served chan error    // what Serve returned
	done   chan struct{} // closed to end the streams

	streaming chan struct{} // closed when the first stream opens
	broken    chan struct{} // closed when any stream ends

	mu      sync.Mutex
	streams int  // live ones; guarded by mu
	ended   bool // whether broken is closed; guarded by mu
}

// begin listens under a name that was never used before: a kubelet from 1.37 on
// refuses a socket that it believes it is connected to, and from then on for ever
// (facts: kubernetes/kubernetes#135437).
func (p *Plugin) begin(ctx context.Context) (*life, error) {
	p.sweep(ctx)
	name := p.prefix() + strconv.FormatInt(time.Now().UnixNano(), 36) + "-" + strconv.Itoa(p.lives) + ".sock"
	socket := filepath.Join(p.Dir, name)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l := &life{
		Plugin: p, socket: socket, id: identify(socket),
		server: grpc.NewServer(grpc.WaitForHandlers(true)),
		served: make(chan error, 1), done: make(chan struct{}),
		streaming: make(chan struct{}), broken: make(chan struct{}),
	}
	api.RegisterDevicePluginServer(l.server, l)
	go func() { l.served <- l.server.Serve(listener) }() // end waits for it
	return l, nil
}

// end ends the streams and then the server, so that no stream of this life is
// left when the next one registers. Serve closes the listener, which removes the
// socket.
func (l *life) end() {
	close(l.done)
	l.server.Stop()
	<-l.served
}

// sweep removes the sockets of lives that were killed. The kubelet does so only
// when it starts. Those of another podgauge that still runs are left alone.
func (p *Plugin) sweep(ctx context.Context) {
	old, err := filepath.Glob(filepath.Join(p.Dir, p.prefix()+"*.sock"))
	if err != nil {
		return // the folder's name holds a pattern: nothing is found, and nothing harmed
	}
	for _, socket := range old {
		if !listens(ctx, socket) {
			os.Remove(socket) //nolint:errcheck // a stale socket does no harm
		}
	}
}

// prefix begins the names of this resource's sockets.
func (p *Plugin) prefix() string {
	return "podgauge-" + strings.NewReplacer("/", "_", ".", "-").Replace(p.Resource) + "-"
}

func (p *Plugin) kubeletSocket() string {
	return filepath.Join(p.Dir, filepath.Base(api.KubeletSocket))
}

func (p *Plugin) register(ctx context.Context, l *life) error {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", p.kubeletSocket())
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
		ResourceName: p.Resource,
		Options:      l.options(),
	})
	if err != nil {
		return fmt.Errorf("register %s: %w", p.Resource, err)
	}
	return nil
}

// socketID tells a socket from its successor under the same path. The inode
// number alone does not: a file system gives it out again, and a kubelet's new
// socket was seen to have the old one's in eight of ten restarts. The zero
// socketID is no socket.
type socketID struct {
	inode uint64
	ctime syscall.Timespec
}

func identify(path string) socketID {
	info, err := os.Lstat(path)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return socketID{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return socketID{}
	}
	return socketID{stat.Ino, stat.Ctim}
}

// listens tells whether somebody takes connections on a socket.
func listens(ctx context.Context, path string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	conn.Close() //nolint:errcheck // nothing was sent
	return true
}
