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

// GetDevicePluginOptions is called by the kubelet from within Register, on the connection
// on which it then calls ListAndWatch.
func (l *life) GetDevicePluginOptions(ctx context.Context, _ *api.Empty) (*api.DevicePluginOptions, error) {
	l.askedBy(ctx)
	o := l.options()
	l.preStart.Store(o.PreStartRequired)
	return o, nil
}

// ListAndWatch sends the list of devices, and again whenever it differs from the
// one sent: the kubelet writes each to disk. What happens while a list is being
// sent shows in the next.
//
// Other clients get the same lists. Their streams say nothing of the registration.
func (l *life) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	w := l.opened(stream.Context())
	defer l.closed(w)
	sent := &api.ListAndWatchResponse{} // a first list without a device says no more than none
	for {
		offered, changed := l.look()
		list := offered.list()
		if !proto.Equal(list, sent) {
			kubelets := l.isKubelets(w)
			if kubelets {
				l.told.Store(offered) // before it is: the kubelet may choose from it at once
			}
			if err := stream.Send(list); err != nil {
				return err
			}
			sent = list
			if kubelets && l.Trace.Sent != nil {
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

// opened notes a stream that has opened.
func (l *life) opened(ctx context.Context) *watcher {
	w := &watcher{}
	if l.watches(ctx, w) {
		close(l.streaming)
		l.tellStreams(1)
	}
	return w
}

// closed ends the life with the kubelet's stream: the kubelet opens one and never another.
func (l *life) closed(w *watcher) {
	if l.isKubelets(w) {
		l.gone.Do(func() { close(l.broken) })
		l.tellStreams(0)
	}
}

func (l *life) tellStreams(n int) {
	if l.Trace.Streaming != nil {
		l.Trace.Streaming(l.resource, n)
	}
}
