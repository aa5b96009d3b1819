package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// registrar is the Registration service. Every error of its own is without a status, and so of
// code Unknown: plugins can tell reasons apart by their text alone.
type registrar struct {
	pluginapi.UnimplementedRegistrationServer
	l *life
}

// Register takes a plugin that serves already, and returns before its first list has come
// (plugin/v1beta1/server.go:159).
func (r *registrar) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	l := r.l
	l.k.update(func() { l.k.registering++ })
	err := l.register(ctx, request)
	l.k.update(func() {
		l.k.registering--
		const remembered = 1000
		if len(l.k.registrations) == remembered {
			l.k.registrations = slices.Delete(l.k.registrations, 0, remembered/2)
		}
		l.k.registrations = append(l.k.registrations, Registration{Resource: request.ResourceName, Endpoint: request.Endpoint, Err: err})
	})
	l.k.options.Log.Info("plugin registers", "resource", request.ResourceName, "endpoint", request.Endpoint, "error", err)
	if err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (l *life) register(ctx context.Context, request *pluginapi.RegisterRequest) error {
	trouble := l.k.troubles()
	if err := pass(ctx, trouble.HoldRegister); err != nil {
		return err
	}
	if trouble.Register != nil {
		return trouble.Register
	}
	if !slices.Contains(pluginapi.SupportedVersions[:], request.Version) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			request.Version, pluginapi.SupportedVersions)
	}
	if !isExtendedResource(request.ResourceName) {
		return fmt.Errorf("the ResourceName %q is invalid", request.ResourceName)
	}
	return l.connect(ctx, request.ResourceName, filepath.Join(filepath.Dir(l.k.RegistrationSocket()), request.Endpoint))
}

// isExtendedResource is the rule of pkg/apis/core/v1/helper/helpers.go:39. The name counts as
// it appears in a quota, with the prefix "requests.", so that the part before the slash has to
// be short enough for both.
func isExtendedResource(name string) bool {
	domain, last, _ := strings.Cut(name, "/")
	return strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/") && !strings.HasPrefix(name, "requests.") &&
		len("requests."+domain) <= 253 && subdomain.MatchString(domain) && len(last) <= 63 && qualified.MatchString(last)
}

// The patterns of k8s.io/apimachinery/pkg/api/validate/content; never written.
var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualified = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
)

// connect is plugin/v1beta1/handler.go:77, with its trap: the client is entered before the
// dial, and when the registration fails, whatever is entered under its name goes, the client
// that works included.
func (l *life) connect(ctx context.Context, resource, socket string) error {
	c, err := newClient(resource, socket)
	if err != nil {
		return err
	}
	l.k.update(func() {
		l.addClient(c)
		l.conns = append(l.conns, c)
	})
	if err := l.greet(ctx, c); err != nil {
		l.k.update(func() { l.dropClient(resource, socket) })
		return err
	}
	l.tasks.Go(func() error { l.watch(c); return nil })
	return nil
}

// greet dials a plugin and asks for its options. Those in the RegisterRequest are ignored.
func (l *life) greet(ctx context.Context, c *client) error {
	if err := c.dial(ctx); err != nil {
		return fmt.Errorf("failed to dial device plugin: %s", err.Error()) // not wrapped: its code would become the answer's
	}
	options, err := c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("failed to get device plugin options: %s", err.Error())
	}
	l.k.mu.Lock()
	defer l.k.mu.Unlock()
	return l.pluginConnected(c, options)
}

// watch takes a plugin's lists until its stream ends, and then disconnects the client that is
// found under the plugin's name: itself, another, or none. The stream is opened once and never
// again (plugin/v1beta1/handler.go:133).
func (l *life) watch(c *client) {
	err := l.receive(c)
	l.k.options.Log.Info("plugin's stream ended", "resource", c.resource, "socket", c.socket, "error", err)
	l.k.mu.Lock()
	found := l.findClient(c.resource, c.socket)
	l.dropClient(c.resource, c.socket)
	l.k.mu.Unlock()
	if found == nil {
		return
	}
	_ = found.conn.Close()
	l.k.update(func() { l.pluginDisconnected(found.resource, found.socket) })
}

func (l *life) receive(c *client) error {
	stream, err := c.api.ListAndWatch(l.ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	l.k.update(func() { c.watched = true })
	defer l.k.update(func() { c.watched = false })
	var last []*pluginapi.Device
	for first := true; ; first = false {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		repeats := !first && sameDevices(last, answer.Devices)
		last = answer.Devices
		l.k.update(func() {
			l.pluginListed(c.resource, answer.Devices)
			l.k.listed(c.resource, repeats)
			l.writeCheckpoint() // after every list, changed or not (manager.go:342)
		})
	}
}

// client is the kubelet's end of a plugin. It keeps the raw connections that gRPC hides,
// because a kubelet that is killed does not close them in gRPC's way.
type client struct {
	resource, socket string
	conn             *grpc.ClientConn
	api              pluginapi.DevicePluginClient

	watched bool // a ListAndWatch stream is open; guarded by Kubelet.mu

	mu  sync.Mutex // guards raw
	raw []net.Conn // every connection that conn has made
}

func newClient(resource, socket string) (*client, error) {
	c := &client{resource: resource, socket: socket}
	conn, err := grpc.NewClient("passthrough:///"+socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(c.connect))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	c.conn, c.api = conn, pluginapi.NewDevicePluginClient(conn)
	return c, nil
}

func (c *client) connect(ctx context.Context, _ string) (net.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err == nil {
		c.mu.Lock()
		c.raw = append(c.raw, raw)
		c.mu.Unlock()
	}
	return raw, err
}

// cut breaks the connection under gRPC's feet: the plugin reads an end of file where Close
// would have told it first.
func (c *client) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, raw := range c.raw {
		_ = raw.Close()
	}
	c.raw = nil
}

// dial waits until the plugin answers, at most ten seconds, and tries again meanwhile
// (plugin/v1beta1/client.go:132).
func (c *client) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		state := c.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			c.conn.Connect()
		case connectivity.Shutdown:
			return errors.New("the connection is closed")
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
}
