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
		close(s.kubeletStreamOpened)
		s.unregistered.Set(nil)
		s.Hooks.OnStreamCount(s.resource, 1)
		defer func() {
			close(s.kubeletStreamEnded)
			s.unregistered.Set(errors.New("the kubelet's stream ended"))
			s.Hooks.OnStreamCount(s.resource, 0)
		}()
	}
	sent := &api.ListAndWatchResponse{} // an empty first list is not sent
	for {
		list, changed := s.devices.Get()
		resp := list.toResponse()
		if !proto.Equal(resp, sent) {
			if isKubelet {
				s.sentList.Store(list) // before Send: the kubelet may choose from the list before Send returns
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
			sent = resp
			if isKubelet {
				s.Hooks.OnListSent(s.resource, len(list.items), list.healthyCount())
			}
		}
		select {
		case <-changed:
		case <-s.stopping:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}
