package plugin

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// options say which calls the kubelet is to make: it takes them from the answer
// of GetDevicePluginOptions and not from the registration.
func (l *life) options() *api.DevicePluginOptions {
	offered, _ := l.look()
	return &api.DevicePluginOptions{
		GetPreferredAllocationAvailable: true, PreStartRequired: l.Fit != nil && offered.rules.PreStart,
	}
}

// GetDevicePluginOptions is called by the kubelet from within Register.
func (l *life) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	o := l.options()
	l.preStart.Store(o.PreStartRequired)
	return o, nil
}

// ListAndWatch sends the list of devices, and again whenever it differs from the
// one sent: the kubelet writes each to disk. What happens while a list is being
// sent shows in the next.
func (l *life) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	l.opened()
	defer l.closed()
	sent := &api.ListAndWatchResponse{} // a first list without a device says no more than none
	for {
		offered, changed := l.look()
		list := offered.list()
		if !proto.Equal(list, sent) {
			l.told.Store(offered) // before it is: the kubelet may choose from it at once
			if err := stream.Send(list); err != nil {
				return err
			}
			sent = list
			if l.Trace.Sent != nil {
				l.Trace.Sent(l.resource, len(offered.items), offered.healthy())
			}
		}
		select {
		case <-changed:
		case <-l.done:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (l *life) opened() {
	l.first.Do(func() { close(l.streaming) })
	l.streamsMu.Lock()
	defer l.streamsMu.Unlock()
	l.streams++
	l.tellStreams()
}

// closed ends the life with any of its streams. The kubelet opens one and never
// another; should somebody else look in and leave, a new registration is the
// cheaper mistake.
func (l *life) closed() {
	l.gone.Do(func() { close(l.broken) })
	l.streamsMu.Lock()
	defer l.streamsMu.Unlock()
	l.streams--
	l.tellStreams()
}

func (l *life) tellStreams() {
	if l.Trace.Streaming != nil {
		l.Trace.Streaming(l.resource, l.streams)
	}
}
