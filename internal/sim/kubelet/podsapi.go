package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// maxWatcherBacklog is how many events a watcher of the Pods API may be behind
// (pkg/kubelet/apis/pods/server.go:295).
const maxWatcherBacklog = 100

// PodsSocket is where the Pods API answers, from 1.37 on.
func (k *Kubelet) PodsSocket() string {
	return filepath.Join(k.options.Dir, "pods-api", "pods-api.sock")
}

// DropWatchers does to those who watch pods what happens to whoever is too slow.
func (k *Kubelet) DropWatchers() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.process != nil {
		for w := range k.process.watchers {
			k.process.dropWatcher(w)
		}
	}
}

// servePodsAPI closes listening when the socket answers: to whoever asks while the pods are not
// read from their sources yet, with an error.
func (kp *kubeletProcess) servePodsAPI(listening chan<- struct{}) error {
	if kp.k.options.Version == V136 {
		close(listening)
		return nil
	}
	listener, err := listenPodResources(kp.k.PodsSocket())
	if err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	close(listening)
	server := grpc.NewServer(grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(kp.countCall),
		grpc.StreamInterceptor(func(s any, stream grpc.ServerStream, method *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			kp.k.update(func() { kp.k.calls[path.Base(method.FullMethod)]++ })
			return handle(s, stream)
		}))
	podsapi.RegisterPodsServer(server, &podsServer{process: kp})
	return kp.serve(server, listener)
}

// podsServer is the Pods service (pkg/kubelet/apis/pods/server.go).
type podsServer struct {
	podsapi.UnimplementedPodsServer
	process *kubeletProcess
}

// podWatcher takes the events of one stream.
type podWatcher chan *podsapi.WatchPodsEvent

// podWatchers is what a life knows of those who watch its pods. It is guarded by Kubelet.mu.
type podWatchers struct {
	watchers map[podWatcher]bool
	// announced are the pods as the watchers know them, and over those of whom they know that
	// they are. Both are of no use while there are no watchers.
	announced map[*pod][]byte
	finished  map[*pod]bool
}

// podsReadErr is the error of one that comes too early. mu is held.
func (s *podsServer) podsReadErr() error {
	if err := s.process.k.faults.PodsErr; err != nil {
		return err
	}
	if !s.process.podsRead {
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	return nil
}

// ListPods names all pods.
func (s *podsServer) ListPods(context.Context, *podsapi.ListPodsRequest) (*podsapi.ListPodsResponse, error) {
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	if err := s.podsReadErr(); err != nil {
		return nil, err
	}
	answer := &podsapi.ListPodsResponse{}
	for _, p := range s.process.managedPods() {
		answer.Pods = append(answer.Pods, p.marshal())
	}
	return answer, nil
}

// GetPod names one.
func (s *podsServer) GetPod(_ context.Context, r *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	if err := s.podsReadErr(); err != nil {
		return nil, err
	}
	for _, p := range s.process.managedPods() {
		if p.uid == r.PodUID {
			return &podsapi.GetPodResponse{Pod: p.marshal()}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.PodUID)
}

// WatchPods names all pods, and then what becomes of them.
func (s *podsServer) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	events, first, err := s.addWatcher()
	if err != nil {
		return err
	}
	defer s.removeWatcher(events)
	for _, e := range append(first, &podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE}) {
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

// addWatcher begins to watch, and returns the pods that there are.
func (s *podsServer) addWatcher() (podWatcher, []*podsapi.WatchPodsEvent, error) {
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	if err := s.podsReadErr(); err != nil {
		return nil, nil, err
	}
	if len(s.process.watchers) == 0 {
		s.process.podWatchers = podWatchers{watchers: map[podWatcher]bool{}, announced: map[*pod][]byte{}, finished: map[*pod]bool{}}
	}
	events := make(podWatcher, maxWatcherBacklog)
	s.process.watchers[events] = true
	var first []*podsapi.WatchPodsEvent
	for _, p := range s.process.managedPods() {
		s.process.announced[p] = p.marshal()
		s.process.finished[p] = p.isFinished()
		first = append(first, &podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: s.process.announced[p]})
	}
	return events, first, nil
}

func (s *podsServer) removeWatcher(w podWatcher) {
	s.process.k.mu.Lock()
	defer s.process.k.mu.Unlock()
	delete(s.process.watchers, w)
}

// dropWatcher ends a stream. mu is held.
func (kp *kubeletProcess) dropWatcher(w podWatcher) {
	delete(kp.watchers, w)
	close(w)
}

// managedPods are the pods of the kubelet's pod manager, by uid: those that it has read, and those
// that are over and that the API server still has. mu is held.
func (kp *kubeletProcess) managedPods() []*pod {
	var all []*pod
	for _, p := range kp.k.pods {
		if kp.knownPods[p] || p.isFinished() && !p.Static {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pod) int { return cmp.Compare(a.uid, b.uid) })
	return all
}

// announcePods tells the watchers what has become of the pods. mu is held.
func (kp *kubeletProcess) announcePods() {
	if len(kp.watchers) == 0 {
		return
	}
	there := map[*pod]bool{}
	for _, p := range kp.managedPods() {
		there[p] = true
		kp.announcePod(p)
	}
	for p := range kp.announced {
		if !there[p] {
			kp.announceEnd(p)
		}
	}
}

func (kp *kubeletProcess) announcePod(p *pod) {
	wire := p.marshal()
	if previous, known := kp.announced[p]; !known {
		kp.broadcast(podsapi.EventType_ADDED, wire)
	} else if !bytes.Equal(previous, wire) {
		kp.broadcast(podsapi.EventType_MODIFIED, wire)
	}
	kp.announced[p] = wire
	// A pod is said to be deleted when it is over, though the API server still has it
	// (pkg/kubelet/status/status_manager.go:1110).
	if p.isFinished() && !kp.finished[p] {
		kp.finished[p] = true
		if !p.hasNoWorker() {
			kp.broadcast(podsapi.EventType_DELETED, p.marshalName())
		}
	}
}

// announceEnd tells of a pod that is not there any more.
func (kp *kubeletProcess) announceEnd(p *pod) {
	if !kp.finished[p] && !p.hasNoWorker() {
		kp.broadcast(podsapi.EventType_MODIFIED, p.marshal())
		kp.broadcast(podsapi.EventType_DELETED, p.marshalName())
	}
	delete(kp.announced, p)
	delete(kp.finished, p)
}

// broadcast drops those who cannot follow.
func (kp *kubeletProcess) broadcast(what podsapi.EventType, pod []byte) {
	for w := range kp.watchers {
		select {
		case w <- &podsapi.WatchPodsEvent{Type: what, Pod: pod}:
		default:
			kp.dropWatcher(w)
		}
	}
}
