package kubelet

import (
	"bytes"

	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// maxWatcherBacklog is the capacity of a stream (pkg/kubelet/apis/pods/server.go:295).
const maxWatcherBacklog = 100

// podWatcher receives the events of a WatchPods stream, and is closed if the stream is dropped.
type podWatcher chan *podsapi.WatchPodsEvent

// podWatchers sends changes of pods to the WatchPods streams. Guarded by nodeState.mu.
type podWatchers struct {
	streams   map[podWatcher]bool
	announced map[*pod]announcedPod // current only while there is a stream
}

// announcedPod is the state of a pod after the latest event.
type announcedPod struct {
	message []byte
	ended   bool
}

// add starts a stream and returns the events for the existing pods.
func (w *podWatchers) add(pods []*pod) (podWatcher, []*podsapi.WatchPodsEvent) {
	if len(w.streams) == 0 {
		*w = podWatchers{map[podWatcher]bool{}, map[*pod]announcedPod{}}
	}
	events := make(podWatcher, maxWatcherBacklog)
	w.streams[events] = true
	var first []*podsapi.WatchPodsEvent
	for _, p := range pods {
		w.announced[p] = announcedPod{p.marshal(), p.isFinished()}
		first = append(first, &podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: w.announced[p].message})
	}
	return events, append(first, &podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE})
}

// announce sends the changes since the last call.
func (w *podWatchers) announce(pods []*pod) {
	if len(w.streams) == 0 {
		return
	}
	for _, p := range pods {
		w.announcePod(p)
	}
	for p, last := range w.announced {
		if !p.removed {
			continue
		}
		if !last.ended && p.hasWorker() {
			w.broadcast(podsapi.EventType_MODIFIED, p.marshal())
			w.broadcast(podsapi.EventType_DELETED, p.marshalName())
		}
		delete(w.announced, p)
	}
}

// announcePod sends DELETED when a pod has ended, although the API server still has the pod
// (pkg/kubelet/status/status_manager.go:1110).
func (w *podWatchers) announcePod(p *pod) {
	message := p.marshal()
	last, known := w.announced[p]
	if !known {
		w.broadcast(podsapi.EventType_ADDED, message)
	} else if !bytes.Equal(last.message, message) {
		w.broadcast(podsapi.EventType_MODIFIED, message)
	}
	if p.isFinished() && !last.ended && p.hasWorker() {
		w.broadcast(podsapi.EventType_DELETED, p.marshalName())
	}
	w.announced[p] = announcedPod{message, last.ended || p.isFinished()}
}

// broadcast drops streams with a full backlog.
func (w *podWatchers) broadcast(event podsapi.EventType, pod []byte) {
	for stream := range w.streams {
		select {
		case stream <- &podsapi.WatchPodsEvent{Type: event, Pod: pod}:
		default:
			w.drop(stream)
		}
	}
}

func (w *podWatchers) drop(stream podWatcher) {
	delete(w.streams, stream)
	close(stream)
}
