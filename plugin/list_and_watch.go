package plugin

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// GetDevicePluginOptions returns the options. The kubelet asks from within
// Register.
func (s *server) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	o := s.pluginOptions()
	s.sentPreStartRequired.Store(o.PreStartRequired)
	return o, nil
}

// ListAndWatch sends the device list, and again after each change of the
// message: the kubelet writes each list to disk.
//
// Changes during a Send show in the next list. All clients get the same lists,
// but only the kubelet's stream matters for the registration. The first stream
// is the kubelet's: the name of the socket is new, and the kubelet knows the
// name first.
func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	isKubelet := s.kubeletStream.CompareAndSwap(false, true)
	if isKubelet {
		s.wasRegistered.Store(true)
		close(s.kubeletStreamOpened)
		s.unregistered.Set(nil)
		s.publish(func(r *Resource) { r.Registered = true })
		defer func() {
			close(s.kubeletStreamEnded)
			s.unregistered.Set(errors.New("the kubelet's stream ended"))
			s.publish(func(r *Resource) { r.Registered = false })
		}()
	}
	sent := &api.ListAndWatchResponse{} // an empty first list is not sent
	processes := 0
	for {
		list, changed := s.devices.Get()
		_, socketsChanged := s.sockets.Get()
		before := processes
		processes = len(resourceSockets(s.Dir, s.resource))
		if resp := list.toResponse(); processes < before || !proto.Equal(resp, sent) {
			if err := stream.Send(resp); err != nil {
				return err
			}
			sent = resp
			if isKubelet {
				s.Hooks.OnListSent()
				s.publish(func(r *Resource) { r.Devices, r.Healthy = len(list.items), list.healthyCount() })
			}
		}
		select {
		case <-changed:
		case <-socketsChanged:
		case <-s.stopping:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
