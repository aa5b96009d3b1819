package kubelet

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	dialTimeout      = 10 * time.Second
	maxRegistrations = 1000 // in State
)

// Register connects to a running plugin, and returns before the plugin's first list (plugin/v1beta1/server.go:159). Errors
// have no status, and so code Unknown: only the texts differ.
func (kp *kubeletProcess) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := kp.register(ctx, request)
	kp.update(func() {
		kp.registrations = append(kp.registrations, Registration{Resource: request.ResourceName, Endpoint: request.Endpoint, Err: err})
		kp.registrations = kp.registrations[max(0, len(kp.registrations)-maxRegistrations):]
	})
	if err != nil {
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

func (kp *kubeletProcess) register(ctx context.Context, request *pluginapi.RegisterRequest) error {
	faults := kp.currentFaults()
	if err := waitRelease(ctx, faults.HoldRegister); err != nil {
		return err
	}
	switch {
	case faults.RegisterErr != nil:
		return faults.RegisterErr
	case !slices.Contains(pluginapi.SupportedVersions[:], request.Version):
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", request.Version, pluginapi.SupportedVersions)
	case !isExtendedResource(request.ResourceName):
		return fmt.Errorf("the ResourceName %q is invalid", request.ResourceName)
	}
	return kp.connectPlugin(ctx, request.ResourceName, filepath.Join(kp.dir, request.Endpoint))
}

// isExtendedResource implements pkg/apis/core/v1/helper/helpers.go:39. The part before the slash must leave room for "requests.",
// the prefix of names in quotas.
func isExtendedResource(name string) bool {
	domain, last, _ := strings.Cut(name, "/")
	return strings.Contains(name, "/") && !strings.Contains(name, "kubernetes.io/") && !strings.HasPrefix(name, "requests.") &&
		len("requests."+domain) <= 253 && subdomainPattern.MatchString(domain) && len(last) <= 63 && qualifiedNamePattern.MatchString(last)
}

// The patterns of k8s.io/apimachinery/pkg/api/validate/content.
var (
	subdomainPattern     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualifiedNamePattern = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
)

// connectPlugin implements plugin/v1beta1/handler.go:77 including the defect: a failed registration deletes the client of the key, even
// of a connected plugin. The end of the stream then disconnects no plugin, and the devices stay healthy.
func (kp *kubeletProcess) connectPlugin(ctx context.Context, resource, socket string) error {
	c, err := newClient(resource, socket)
	if err != nil {
		return err
	}
	kp.update(func() {
		kp.clients[kp.key(c)] = c
		kp.conns = append(kp.conns, c)
	})
	if err := kp.dialPlugin(ctx, c); err != nil {
		kp.update(func() { delete(kp.clients, kp.key(c)) })
		return err
	}
	kp.tasks.Go(func() error { kp.watchDevices(c); return nil })
	return nil
}

// dialPlugin connects and reads the plugin's options; options in the RegisterRequest are ignored (plugin/v1beta1/client.go:132).
// Errors are not wrapped: the codes would become the response's.
func (kp *kubeletProcess) dialPlugin(ctx context.Context, c *pluginClient) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	options, err := c.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil && c.conn.GetState() != connectivity.Ready && ctx.Err() != nil {
		return fmt.Errorf("failed to dial device plugin: %s", ctx.Err().Error())
	}
	if err != nil {
		return fmt.Errorf("failed to get device plugin options: %s", err.Error())
	}
	kp.mu.Lock()
	defer kp.mu.Unlock()
	return kp.pluginConnected(c, options)
}

// watchDevices receives a plugin's lists until the stream ends, and disconnects the client of the plugin's key, if there is a client.
// The stream is never opened again (plugin/v1beta1/handler.go:133).
func (kp *kubeletProcess) watchDevices(c *pluginClient) {
	_ = kp.receiveLists(c)
	kp.mu.Lock()
	key := kp.key(c)
	found := kp.clients[key]
	delete(kp.clients, key)
	kp.mu.Unlock()
	if found == nil {
		return
	}
	_ = found.conn.Close()
	kp.update(func() { kp.pluginDisconnected(key) })
}

func (kp *kubeletProcess) receiveLists(c *pluginClient) error {
	stream, err := c.api.ListAndWatch(kp.ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	kp.update(func() { c.streamOpen = true })
	defer kp.update(func() { c.streamOpen = false })
	var last []string
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		list := formatDevices(response.Devices)
		kp.update(func() {
			kp.pluginListed(c.resource, response.Devices)
			count := kp.lists[c.resource]
			count.updates++
			if last != nil && slices.Equal(list, last) {
				count.repeats++
			}
			kp.lists[c.resource] = count
			kp.writeCheckpoint() // after each list, changed or not (manager.go:342)
		})
		last = list
	}
}

// formatDevices returns the content of a list in sorted order.
func formatDevices(list []*pluginapi.Device) []string {
	lines := make([]string, 0, len(list))
	for _, d := range list {
		lines = append(lines, fmt.Sprintf("%q %q %t %v", d.ID, d.Health, d.Topology == nil, d.GetTopology().GetNodes()))
	}
	slices.Sort(lines)
	return lines
}
