package kubelet

import (
	"bytes"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
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

// marshal encodes the simulated fields of the pod like v1.Pod#Marshal
// (core/v1/generated.proto in k8s.io/api). nodeState.mu is held.
func (p *pod) marshal() []byte {
	metadata := p.marshalMetadata()
	if !p.Static { // only the API server sets a creation time
		metadata = appendTime(metadata, 8, p.addedAt)
	}
	metadata = appendTime(metadata, 9, p.deleteAt)
	for _, name := range slices.Sorted(maps.Keys(p.Labels)) {
		metadata = appendMessage(metadata, 11, appendText(appendText(nil, 1, name), 2, p.Labels[name]))
	}
	status := appendText(appendText(appendText(nil, 1, p.phase), 3, p.message), 4, p.reason)
	for _, c := range p.orderedContainers() {
		if p.reason == reasonRejected { // has no container statuses
			break
		}
		number := protowire.Number(8)
		if c.init {
			number = 10
		}
		status = appendMessage(status, number, p.marshalContainer(c.Name))
	}
	return appendMessage(appendMessage(nil, 1, metadata), 3, status)
}

// marshalName encodes the pod for DELETED events.
func (p *pod) marshalName() []byte { return appendMessage(nil, 1, p.marshalMetadata()) }

func (p *pod) marshalMetadata() []byte {
	return appendText(appendText(appendText(nil, 1, p.Name), 3, p.Namespace), 5, p.uid)
}

func (p *pod) marshalContainer(name string) []byte {
	s := p.states[name]
	b := appendMessage(appendText(nil, 1, name), 2, s.marshal())
	if s.previousExit != nil {
		b = appendMessage(b, 3, appendMessage(nil, 3, s.previousExit.marshal()))
	}
	b = appendNumber(b, 5, int32(max(0, s.starts-1)))
	if s.starts > 0 {
		b = appendText(b, 8, "containerd://"+p.containerID(name))
	}
	return b
}

func (s *containerState) marshal() []byte {
	switch {
	case s.running:
		return appendMessage(nil, 2, appendTime(nil, 1, s.startedAt))
	case s.exit != nil:
		return appendMessage(nil, 3, s.exit.marshal())
	case s.starts > 0:
		return appendMessage(nil, 1, appendText(nil, 1, "CrashLoopBackOff"))
	}
	return appendMessage(nil, 1, appendText(nil, 1, "ContainerCreating"))
}

func (e *exitRecord) marshal() []byte {
	b := appendText(appendNumber(nil, 1, e.Code), 3, e.Reason)
	return appendTime(appendTime(b, 5, e.startedAt), 6, e.exitedAt)
}

func appendText(b []byte, number protowire.Number, value string) []byte {
	return appendMessage(b, number, []byte(value))
}

func appendMessage(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

func appendNumber(b []byte, number protowire.Number, value int32) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(int64(value)))
}

// appendTime omits the zero time.
func appendTime(b []byte, number protowire.Number, at time.Time) []byte {
	if at.IsZero() {
		return b
	}
	return appendMessage(b, number, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType),
		uint64(at.Unix())))
}
