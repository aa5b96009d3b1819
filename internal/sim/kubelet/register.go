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
	process *kubeletProcess
}

// Register takes a plugin that serves already, and returns before its first list has come
// (plugin/v1beta1/server.go:159).
func (r *registrar) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	l := r.process
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

func (kp *kubeletProcess) register(ctx context.Context, request *pluginapi.RegisterRequest) error {
	trouble := kp.k.currentFaults()
	if err := waitRelease(ctx, trouble.HoldRegister); err != nil {
		return err
	}
	if trouble.RegisterErr != nil {
		return trouble.RegisterErr
	}
	if !slices.Contains(pluginapi.SupportedVersions[:], request.Version) {
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			request.Version, pluginapi.SupportedVersions)
	}
	if !isExtendedResource(request.ResourceName) {
		return fmt.Errorf("the ResourceName %q is invalid", request.ResourceName)
	}
	return kp.connectPlugin(ctx, request.ResourceName, filepath.Join(filepath.Dir(kp.k.RegistrationSocket()), request.Endpoint))
}

// isExtendedResource is the rule of pkg/apis/core/v1/helper/helpers.go:39. The name counts as
// it appears in a quota, with the prefix "requests.", so that the part before the slash has to
// be short enough for both.
func isExtendedResource(name string) bool {
	domain, last, _ := strings.Cut(name, "/")
	return strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/") && !strings.HasPrefix(name, "requests.") &&
		len("requests."+domain) <= 253 && subdomainPattern.MatchString(domain) && len(last) <= 63 && qualifiedNamePattern.MatchString(last)
}

// The patterns of k8s.io/apimachinery/pkg/api/validate/content; never written.
var (
	subdomainPattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualifiedNamePattern = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
)

// connectPlugin is plugin/v1beta1/handler.go:77, with its trap: the client is entered before the
// dial, and when the registration fails, whatever is entered under its name goes, the client
// that works included.
func (kp *kubeletProcess) connectPlugin(ctx context.Context, resource, socket string) error {
	c, err := newClient(resource, socket)
	if err != nil {
		return err
	}
	kp.k.update(func() {
		kp.addClient(c)
		kp.conns = append(kp.conns, c)
	})
	if err := kp.dialPlugin(ctx, c); err != nil {
		kp.k.update(func() { kp.dropClient(resource, socket) })
		return err
	}
	kp.tasks.Go(func() error { kp.watchDevices(c); return nil })
	return nil
}

// dialPlugin dials a plugin and asks for its options. Those in the RegisterRequest are ignored.
func (kp *kubeletProcess) dialPlugin(ctx context.Context, c *pluginClient) error {
	if err := c.dial(ctx); err != nil {
		return fmt.Errorf("failed to dial device plugin: %s", err.Error()) // not wrapped: its code would become the answer's
	}
	options, err := c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return fmt.Errorf("failed to get device plugin options: %s", err.Error())
	}
	kp.k.mu.Lock()
	defer kp.k.mu.Unlock()
	return kp.pluginConnected(c, options)
}

// watchDevices takes a plugin's lists until its stream ends, and then disconnects the client that is
// found under the plugin's name: itself, another, or none. The stream is opened once and never
// again (plugin/v1beta1/handler.go:133).
func (kp *kubeletProcess) watchDevices(c *pluginClient) {
	err := kp.receiveLists(c)
	kp.k.options.Log.Info("plugin's stream ended", "resource", c.resource, "socket", c.socket, "error", err)
	kp.k.mu.Lock()
	found := kp.findClient(c.resource, c.socket)
	kp.dropClient(c.resource, c.socket)
	kp.k.mu.Unlock()
	if found == nil {
		return
	}
	_ = found.conn.Close()
	kp.k.update(func() { kp.pluginDisconnected(found.resource, found.socket) })
}

func (kp *kubeletProcess) receiveLists(c *pluginClient) error {
	stream, err := c.api.ListAndWatch(kp.ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	kp.k.update(func() { c.streamOpen = true })
	defer kp.k.update(func() { c.streamOpen = false })
	var last []*pluginapi.Device
	for first := true; ; first = false {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		repeats := !first && sameDevices(last, answer.Devices)
		last = answer.Devices
		kp.k.update(func() {
			kp.pluginListed(c.resource, answer.Devices)
			kp.k.countList(c.resource, repeats)
			kp.writeCheckpoint() // after every list, changed or not (manager.go:342)
		})
	}
}

// pluginClient is the kubelet's end of a plugin. It keeps the raw connections that gRPC hides,
// because a kubelet that is killed does not close them in gRPC's way.
type pluginClient struct {
	resource, socket string
	conn             *grpc.ClientConn
	api              pluginapi.DevicePluginClient

	streamOpen bool // a ListAndWatch stream is open; guarded by Kubelet.mu

	mu       sync.Mutex // guards raw
	rawConns []net.Conn // every connection that conn has made
}

func newClient(resource, socket string) (*pluginClient, error) {
	c := &pluginClient{resource: resource, socket: socket}
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

func (c *pluginClient) connect(ctx context.Context, _ string) (net.Conn, error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err == nil {
		c.mu.Lock()
		c.rawConns = append(c.rawConns, raw)
		c.mu.Unlock()
	}
	return raw, err
}

// cutConnections breaks the connection under gRPC's feet: the plugin reads an end of file where Close
// would have told it first.
func (c *pluginClient) cutConnections() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, raw := range c.rawConns {
		_ = raw.Close()
	}
	c.rawConns = nil
}

// dial waits until the plugin answers, at most ten seconds, and tries again meanwhile
// (plugin/v1beta1/client.go:132).
func (c *pluginClient) dial(ctx context.Context) error {
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
