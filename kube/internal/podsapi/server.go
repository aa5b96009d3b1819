// Package podsapi serves the kubelet's Pods API (v1alpha1.Pods) from the pods
// at the API server, for kubelets without that API: before Kubernetes 1.37.
//
// Pods have identity, labels, owners, short annotations, phase and container
// states (package source).
package podsapi

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/podgauge/podgauge/kube/internal/source"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// SocketName is the name of the socket, as in the kubelet's folder.
const SocketName = "pods-api.sock"

// maxBacklog is the number of unread events that ends a stream
// (pkg/kubelet/apis/pods/server.go).
const maxBacklog = 100

// Server serves the pods of a source.
type Server struct {
	api.UnimplementedPodsServer

	socket string
	source *source.Source
	synced cache.ResourceEventHandlerRegistration
	log    *slog.Logger

	mu       sync.Mutex
	pods     map[cache.ObjectName]pod          // guarded by mu
	watchers map[chan *api.WatchPodsEvent]bool // guarded by mu
}

// pod is a pod as sent.
type pod struct {
	uid  types.UID
	wire []byte // v1.Pod
}

// New returns a server on a socket. The source runs beside it.
func New(socket string, pods *source.Source, log *slog.Logger) *Server {
	return &Server{
		socket: socket, source: pods, log: log,
		pods:     map[cache.ObjectName]pod{},
		watchers: map[chan *api.WatchPodsEvent]bool{},
	}
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) (err error) {
	s.synced, err = s.source.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.set(cache.MetaObjectToName(o.(*v1.Pod)), o.(*v1.Pod)) },
		UpdateFunc: func(_, o any) { s.set(cache.MetaObjectToName(o.(*v1.Pod)), o.(*v1.Pod)) },
		DeleteFunc: func(o any) {
			name, _ := cache.DeletionHandlingObjectToName(o) // informers have only named objects
			s.set(name, nil)
		},
	})
	if err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	_ = os.Remove(s.socket) // of an earlier process
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	defer listener.Close() //nolint:errcheck // Serve has closed the listener
	// before, the umask of a container lets only root connect
	if err := os.Chmod(s.socket, 0o600); err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterPodsServer(server, s)
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(listener)
}

// set adds, changes or, if p is nil, removes a pod. A pod of the same name with
// another UID is a new pod, whose predecessor ended while the API server was
// away.
func (s *Server) set(name cache.ObjectName, p *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.pods[name]
	if known && (p == nil || p.UID != before.uid) {
		delete(s.pods, name)
		meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, UID: before.uid}
		s.broadcast(api.EventType_DELETED, marshal(&v1.Pod{ObjectMeta: meta})) // as the kubelet does
		known = false
	}
	if p == nil {
		return
	}
	sent := *p
	sent.ResourceVersion = "" // changes with fields that are not sent
	wire := marshal(&sent)
	s.pods[name] = pod{p.UID, wire}
	switch {
	case !known:
		s.broadcast(api.EventType_ADDED, wire)
	case !bytes.Equal(before.wire, wire):
		s.broadcast(api.EventType_MODIFIED, wire)
	}
}

// marshal encodes a pod, which cannot fail: the buffer has the size of the pod.
func marshal(p *v1.Pod) []byte {
	wire, _ := p.Marshal()
	return wire
}

// broadcast ends the streams with a full backlog. mu is held.
func (s *Server) broadcast(kind api.EventType, wire []byte) {
	for w := range s.watchers {
		select {
		case w <- &api.WatchPodsEvent{Type: kind, Pod: wire}:
		default:
			delete(s.watchers, w)
			close(w)
		}
	}
}

// list returns the pods in order of their UIDs, as the kubelet does, or an error
// unless they are those of the API server. It adds a watcher, unless nil.
func (s *Server) list(watcher chan *api.WatchPodsEvent) (sorted []pod, err error) {
	if err, _ := s.source.Err.Get(); err != nil {
		return nil, status.Errorf(codes.Unavailable, "follow pods at the API server: %v", err)
	}
	if !s.synced.HasSynced() {
		return nil, status.Error(codes.FailedPrecondition, "the API server has not listed the pods yet")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if watcher != nil {
		s.watchers[watcher] = true
	}
	return slices.SortedFunc(maps.Values(s.pods), func(a, b pod) int { return cmp.Compare(a.uid, b.uid) }), nil
}

// ListPods returns all pods.
func (s *Server) ListPods(context.Context, *api.ListPodsRequest) (*api.ListPodsResponse, error) {
	pods, err := s.list(nil)
	r := &api.ListPodsResponse{}
	for _, p := range pods {
		r.Pods = append(r.Pods, p.wire)
	}
	return r, err
}

// GetPod returns a pod.
func (s *Server) GetPod(_ context.Context, r *api.GetPodRequest) (*api.GetPodResponse, error) {
	pods, err := s.list(nil)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods, func(p pod) bool { return p.uid == types.UID(r.PodUID) })
	if i < 0 {
		return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.PodUID)
	}
	return &api.GetPodResponse{Pod: pods[i].wire}, nil
}

// WatchPods sends all pods, and then changes. The stream ends if the API server
// is away, so that the client knows of it.
func (s *Server) WatchPods(
	_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent],
) error {
	events := make(chan *api.WatchPodsEvent, maxBacklog)
	pods, err := s.list(events)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	for i := 0; err == nil && i < len(pods); i++ {
		err = stream.Send(&api.WatchPodsEvent{Type: api.EventType_ADDED, Pod: pods[i].wire})
	}
	if err == nil {
		err = stream.Send(&api.WatchPodsEvent{Type: api.EventType_INITIAL_SYNC_COMPLETE})
	}
	for err == nil {
		away, changed := s.source.Err.Get()
		if away != nil {
			return status.Errorf(codes.Unavailable, "follow pods at the API server: %v", away)
		}
		select {
		case <-stream.Context().Done():
			err = stream.Context().Err()
		case <-changed:
		case e, ok := <-events:
			if !ok {
				return status.Error(codes.ResourceExhausted, "watch client channel closed")
			}
			err = stream.Send(e)
		}
	}
	return err
}
