package kubelet

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// The Pods service is pkg/kubelet/apis/pods/server.go. Pods have names, labels, phase and container states, and no spec.

// readyPods returns the pods, or an error until all pods have been read. mu is held.
func (kp *kubeletProcess) readyPods() ([]*pod, error) {
	if err := kp.faults.PodsErr; err != nil {
		return nil, err
	}
	if !kp.podsRead {
		return nil, status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	return kp.managedPods(), nil
}

// GetPod returns a pod.
func (kp *kubeletProcess) GetPod(_ context.Context, r *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	kp.mu.Lock()
	defer kp.mu.Unlock()
	pods, err := kp.readyPods()
	if err != nil {
		return nil, err
	}
	for _, p := range pods {
		if p.uid == r.PodUID {
			return &podsapi.GetPodResponse{Pod: p.marshal()}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.PodUID)
}

// WatchPods sends all pods, and then changes.
func (kp *kubeletProcess) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	var events podWatcher
	var first []*podsapi.WatchPodsEvent
	var err error
	kp.locked(func() {
		var pods []*pod
		if pods, err = kp.readyPods(); err == nil {
			events, first = kp.watchers.add(pods)
		}
	})
	if err != nil {
		return err
	}
	defer kp.locked(func() { delete(kp.watchers.streams, events) })
	for _, e := range first {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
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
