package plugin

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pluginOptions selects the calls of the kubelet, which reads the options from GetDevicePluginOptions, not from the registration.
func (e *endpoint) pluginOptions() *api.DevicePluginOptions {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: e.list().rules.PreStartCheck}
}

// GetDevicePluginOptions returns the options. The kubelet asks from within Register.
func (s *server) GetDevicePluginOptions(ctx context.Context, _ *api.Empty) (*api.DevicePluginOptions, error) {
	s.recordOptionsCall(ctx)
	o := s.pluginOptions()
	s.sentPreStartRequired.Store(o.PreStartRequired)
	return o, nil
}

// ListAndWatch sends the device list, and again after each change of the message: the kubelet writes each list to disk.
//
// Changes during a Send show in the next list. All clients get the same lists, but only the kubelet's stream matters for the
// registration.
func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	ls := s.openStream(stream.Context())
	defer s.closeStream(ls)
	sent := &api.ListAndWatchResponse{} // an empty first list is not sent
	for {
		list, changed := s.devices.Get()
		resp := list.toResponse()
		if !proto.Equal(resp, sent) {
			isKubelet := s.isKubeletStream(ls)
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

func (s *server) openStream(ctx context.Context) *listStream {
	ls := &listStream{}
	if s.addStream(ctx, ls) {
		close(s.kubeletStreamOpened)
		s.Hooks.OnStreamCount(s.resource, 1)
	}
	return ls
}

// closeStream ends the server with the kubelet's stream: the kubelet opens a single stream per registration.
func (s *server) closeStream(ls *listStream) {
	if s.isKubeletStream(ls) {
		s.kubeletStreamEndOnce.Do(func() { close(s.kubeletStreamEnded) })
		s.Hooks.OnStreamCount(s.resource, 0)
	}
}
