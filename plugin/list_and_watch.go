package plugin

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pluginOptions say which calls the kubelet is to make: it takes them from the answer
// of GetDevicePluginOptions and not from the registration.
func (s *server) pluginOptions() *api.DevicePluginOptions {
	list := s.list()
	return &api.DevicePluginOptions{
		GetPreferredAllocationAvailable: true, PreStartRequired: s.CheckUsable != nil && list.rules.PreStartCheck,
	}
}

// GetDevicePluginOptions is called by the kubelet from within Register, on the connection
// on which it then calls ListAndWatch.
func (s *server) GetDevicePluginOptions(ctx context.Context, _ *api.Empty) (*api.DevicePluginOptions, error) {
	s.recordOptionsCall(ctx)
	o := s.pluginOptions()
	s.sentPreStartRequired.Store(o.PreStartRequired)
	return o, nil
}

// ListAndWatch sends the list of devices, and again whenever it differs from the
// one sent: the kubelet writes each to disk. What happens while a list is being
// sent shows in the next.
//
// Other clients get the same lists. Their streams say nothing of the registration.
func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	ls := s.openStream(stream.Context())
	defer s.closeStream(ls)
	sent := &api.ListAndWatchResponse{} // a first list without a device says no more than none
	for {
		devices, changed := s.devices.Get()
		list := devices.toResponse()
		if !proto.Equal(list, sent) {
			isKubelet := s.isKubeletStream(ls)
			if isKubelet {
				s.sentList.Store(devices) // before it is: the kubelet may choose from it at once
			}
			if err := stream.Send(list); err != nil {
				return err
			}
			sent = list
			if isKubelet && s.Hooks.OnListSent != nil {
				s.Hooks.OnListSent(s.resource, len(devices.items), devices.healthyCount())
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

// openStream notes a stream that has opened.
func (s *server) openStream(ctx context.Context) *listStream {
	ls := &listStream{}
	if s.addStream(ctx, ls) {
		close(s.kubeletStreamOpened)
		s.reportStreams(1)
	}
	return ls
}

// closeStream ends the life with the kubelet's stream: the kubelet opens one and never another.
func (s *server) closeStream(ls *listStream) {
	if s.isKubeletStream(ls) {
		s.kubeletStreamEndOnce.Do(func() { close(s.kubeletStreamEnded) })
		s.reportStreams(0)
	}
}

func (s *server) reportStreams(n int) {
	if s.Hooks.OnStreamCount != nil {
		s.Hooks.OnStreamCount(s.resource, n)
	}
}
