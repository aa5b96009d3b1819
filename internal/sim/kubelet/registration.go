package kubelet

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	dialTimeout      = 10 * time.Second
	maxRegistrations = 1000 // in State
)

// Register connects to a running plugin, and returns before the plugin's first
// list (plugin/v1beta1/server.go:159). Errors have no status, and so code
// Unknown: only the texts differ.
func (kp *kubeletProcess) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	err := kp.register(ctx, request)
	kp.update(func() {
		kp.registrations = append(kp.registrations,
			Registration{Resource: request.ResourceName, Endpoint: request.Endpoint, Err: err})
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
		return fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			request.Version, pluginapi.SupportedVersions)
	}
	return kp.connectPlugin(ctx, request.ResourceName, filepath.Join(kp.dir, request.Endpoint))
}

// connectPlugin implements plugin/v1beta1/handler.go:77 including the defect: a
// failed registration deletes the client of the key, even of a connected
// plugin. The end of the stream then disconnects no plugin, and the devices
// stay healthy.
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

// dialPlugin connects and reads the plugin's options; options in the
// RegisterRequest are ignored (plugin/v1beta1/client.go:132). Errors are not
// wrapped: the codes would become the response's.
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

// watchDevices receives a plugin's lists until the stream ends, and disconnects
// the client of the plugin's key, if there is a client. The stream is never
// opened again (plugin/v1beta1/handler.go:133).
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
	for first := true; ; first = false {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		kp.update(func() {
			before := kp.devices[c.resource]
			kp.pluginListed(c.resource, response.Devices)
			count := kp.lists[c.resource]
			count.updates++
			if !first && maps.EqualFunc(before, kp.devices[c.resource],
				func(a, b *pluginapi.Device) bool { return proto.Equal(a, b) }) {
				count.repeats++
			}
			kp.lists[c.resource] = count
			kp.writeCheckpoint() // after each list, changed or not (manager.go:342)
		})
	}
}
