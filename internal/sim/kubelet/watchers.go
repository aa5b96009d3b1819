package kubelet

import (
	"bytes"

	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// maxWatcherBacklog is the capacity of a stream
// (pkg/kubelet/apis/pods/server.go:295).
const maxWatcherBacklog = 100

// podWatcher receives the events of a WatchPods stream, and is closed if the
// stream is dropped.
type podWatcher chan *podsapi.WatchPodsEvent

// podWatchers are the WatchPods streams. Guarded by nodeState.mu.
type podWatchers map[podWatcher]bool

// announcedPod is the state of a pod after the latest event, current only while
// there is a stream.
type announcedPod struct {
	message []byte
	ended   bool
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

// announce sends the change of a pod. DELETED follows the end of a pod,
// although the API server still has the pod
// (pkg/kubelet/status/status_manager.go:1110).
func (w podWatchers) announce(p *pod) {
	if len(w) == 0 {
		return
	}
	message, last := p.marshal(), p.announced
	switch {
	case last.message == nil:
		w.broadcast(podsapi.EventType_ADDED, message)
	case !bytes.Equal(last.message, message):
		w.broadcast(podsapi.EventType_MODIFIED, message)
	}
	ended := last.ended || p.isFinished() || p.removed
	if ended && !last.ended && p.hasWorker() {
		w.broadcast(podsapi.EventType_DELETED, p.marshalName())
	}
	p.announced = announcedPod{message, ended}
}

// broadcast drops streams with a full backlog.
func (w podWatchers) broadcast(event podsapi.EventType, pod []byte) {
	for stream := range w {
		select {
		case stream <- &podsapi.WatchPodsEvent{Type: event, Pod: pod}:
		default:
			delete(w, stream)
			close(stream)
		}
	}
}
