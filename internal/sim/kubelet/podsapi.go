package kubelet

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// The Pods service is pkg/kubelet/apis/pods/server.go. Pods have names, labels,
// phase and container states, and no spec.

// podsErr returns an error until all pods have been read. mu is held.
func (kp *kubeletProcess) podsErr() error {
	if !kp.podsRead {
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	return nil
}

// GetPod finds no pod: clients only check the access.
func (kp *kubeletProcess) GetPod(_ context.Context, r *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	if err := kp.podsErr(); err != nil {
		return nil, err
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.PodUID)
}

// WatchPods sends all pods, and then changes.
func (kp *kubeletProcess) WatchPods(
	_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent],
) error {
	var events podWatcher
	var err error
	kp.locked(func() {
		if err = kp.podsErr(); err == nil {
			events = kp.addWatcher()
		}
	})
	if err != nil {
		return err
	}
	defer kp.locked(func() { delete(kp.watchers, events) })
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case e, ok := <-events:
			if !ok {
				return status.Error(codes.ResourceExhausted, "watch client channel closed")
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

// addWatcher starts a stream with the existing pods. mu is held.
func (n *nodeState) addWatcher() podWatcher {
	pods := n.managedPods()
	events := make(podWatcher, len(pods)+1+maxWatcherBacklog)
	n.watchers[events] = true
	for _, p := range pods {
		p.announced = announcedPod{p.marshal(), p.isFinished()}
		events <- &podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: p.announced.message}
	}
	events <- &podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE}
	return events
}
