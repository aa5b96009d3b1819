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

// watcherEvents is how many events a watcher of the Pods API may be behind
// (pkg/kubelet/apis/pods/server.go:295).
const watcherEvents = 100

// PodsSocket is where the Pods API answers, from 1.37 on.
func (k *Kubelet) PodsSocket() string {
	return filepath.Join(k.options.Dir, "pods-api", "pods-api.sock")
}

// DropWatchers does to those who watch pods what happens to whoever is too slow.
func (k *Kubelet) DropWatchers() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.life != nil {
		for w := range k.life.watchers {
			k.life.drop(w)
		}
	}
}

// servePods closes listening when the socket answers: to whoever asks while the pods are not
// read from their sources yet, with an error.
func (l *life) servePods(listening chan<- struct{}) error {
	if l.k.options.Version == V136 {
		close(listening)
		return nil
	}
	listener, err := listenPodResources(l.k.PodsSocket())
	if err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	close(listening)
	var limit bucket // of its own, and not for streams
	limit.fill()
	server := grpc.NewServer(grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(ctx context.Context, request any, method *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			return l.limited(ctx, &limit, request, method, handle)
		}),
		grpc.StreamInterceptor(func(s any, stream grpc.ServerStream, method *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			l.k.update(func() { l.k.calls[path.Base(method.FullMethod)]++ })
			return handle(s, stream)
		}))
	podsapi.RegisterPodsServer(server, &podsServer{l: l})
	return l.serve(server, listener)
}

// podsServer is the Pods service (pkg/kubelet/apis/pods/server.go).
type podsServer struct {
	podsapi.UnimplementedPodsServer
	l *life
}

// watcher takes the events of one stream.
type watcher chan *podsapi.WatchPodsEvent

// podsAPI is what a life knows of those who watch its pods. It is guarded by Kubelet.mu.
type podsAPI struct {
	watchers map[watcher]bool
	// announced are the pods as the watchers know them, and over those of whom they know that
	// they are. Both are of no use while there are no watchers.
	announced map[*pod][]byte
	over      map[*pod]bool
}

// ready is the error of one that comes too early. mu is held.
func (s *podsServer) ready() error {
	if err := s.l.k.trouble.Pods; err != nil {
		return err
	}
	if !s.l.ready {
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	return nil
}

// ListPods names all pods.
func (s *podsServer) ListPods(context.Context, *podsapi.ListPodsRequest) (*podsapi.ListPodsResponse, error) {
	s.l.k.mu.Lock()
	defer s.l.k.mu.Unlock()
	if err := s.ready(); err != nil {
		return nil, err
	}
	answer := &podsapi.ListPodsResponse{}
	for _, p := range s.l.managed() {
		answer.Pods = append(answer.Pods, p.marshal())
	}
	return answer, nil
}

// GetPod names one.
func (s *podsServer) GetPod(_ context.Context, r *podsapi.GetPodRequest) (*podsapi.GetPodResponse, error) {
	s.l.k.mu.Lock()
	defer s.l.k.mu.Unlock()
	if err := s.ready(); err != nil {
		return nil, err
	}
	for _, p := range s.l.managed() {
		if p.uid == r.PodUID {
			return &podsapi.GetPodResponse{Pod: p.marshal()}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.PodUID)
}

// WatchPods names all pods, and then what becomes of them.
func (s *podsServer) WatchPods(_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent]) error {
	events, first, err := s.watch()
	if err != nil {
		return err
	}
	defer s.unwatch(events)
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

// watch begins to watch, and returns the pods that there are.
func (s *podsServer) watch() (watcher, []*podsapi.WatchPodsEvent, error) {
	s.l.k.mu.Lock()
	defer s.l.k.mu.Unlock()
	if err := s.ready(); err != nil {
		return nil, nil, err
	}
	if len(s.l.watchers) == 0 {
		s.l.podsAPI = podsAPI{watchers: map[watcher]bool{}, announced: map[*pod][]byte{}, over: map[*pod]bool{}}
	}
	events := make(watcher, watcherEvents)
	s.l.watchers[events] = true
	var first []*podsapi.WatchPodsEvent
	for _, p := range s.l.managed() {
		s.l.announced[p] = p.marshal()
		s.l.over[p] = p.over()
		first = append(first, &podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: s.l.announced[p]})
	}
	return events, first, nil
}

func (s *podsServer) unwatch(w watcher) {
	s.l.k.mu.Lock()
	defer s.l.k.mu.Unlock()
	delete(s.l.watchers, w)
}

// drop ends a stream. mu is held.
func (l *life) drop(w watcher) {
	delete(l.watchers, w)
	close(w)
}

// managed are the pods of the kubelet's pod manager, by uid: those that it has read, and those
// that are over and that the API server still has. mu is held.
func (l *life) managed() []*pod {
	var all []*pod
	for _, p := range l.k.pods {
		if l.read[p] || p.over() && !p.Static {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pod) int { return cmp.Compare(a.uid, b.uid) })
	return all
}

// announce tells the watchers what has become of the pods. mu is held.
func (l *life) announce() {
	if len(l.watchers) == 0 {
		return
	}
	there := map[*pod]bool{}
	for _, p := range l.managed() {
		there[p] = true
		l.announcePod(p)
	}
	for p := range l.announced {
		if !there[p] {
			l.announceEnd(p)
		}
	}
}

func (l *life) announcePod(p *pod) {
	wire := p.marshal()
	if old, known := l.announced[p]; !known {
		l.say(podsapi.EventType_ADDED, wire)
	} else if !bytes.Equal(old, wire) {
		l.say(podsapi.EventType_MODIFIED, wire)
	}
	l.announced[p] = wire
	// A pod is said to be deleted when it is over, though the API server still has it
	// (pkg/kubelet/status/status_manager.go:1110).
	if p.over() && !l.over[p] {
		l.over[p] = true
		if !p.workless() {
			l.say(podsapi.EventType_DELETED, p.marshalName())
		}
	}
}

// announceEnd tells of a pod that is not there any more.
func (l *life) announceEnd(p *pod) {
	if !l.over[p] && !p.workless() {
		l.say(podsapi.EventType_MODIFIED, p.marshal())
		l.say(podsapi.EventType_DELETED, p.marshalName())
	}
	delete(l.announced, p)
	delete(l.over, p)
}

// say drops those who cannot follow.
func (l *life) say(what podsapi.EventType, pod []byte) {
	for w := range l.watchers {
		select {
		case w <- &podsapi.WatchPodsEvent{Type: what, Pod: pod}:
		default:
			l.drop(w)
		}
	}
}
