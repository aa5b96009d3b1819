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

	"github.com/podgauge/podgauge/internal/text"
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
	source *source.Source[*v1.Pod]
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

// New returns a server on a socket. The caller runs the source afterwards.
func New(socket string, pods *source.Source[*v1.Pod], log *slog.Logger) (*Server, error) {
	s := &Server{
		socket: socket, source: pods, log: log,
		pods:     map[cache.ObjectName]pod{},
		watchers: map[chan *api.WatchPodsEvent]bool{},
	}
	var err error
	s.synced, err = pods.AddTypedEventHandler(cache.TypedResourceEventHandlerFuncs[*v1.Pod]{
		AddFunc:    s.set,
		UpdateFunc: func(_, p *v1.Pod) { s.set(p) },
		DeleteFunc: func(d cache.DeletedObject[*v1.Pod]) { s.remove(d.GetObjectName()) },
	})
	return s, err
}

// Run serves until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	listener, err := s.listen()
	if err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterPodsServer(server, s)
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(listener)
}

// listen replaces the socket of an earlier process. The umask of a container
// lets only root connect before Chmod.
func (s *Server) listen() (net.Listener, error) {
	if err := text.CheckSocketPath(s.socket); err != nil {
		return nil, err
	}
	if err := os.Remove(s.socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(s.socket, 0o600); err != nil {
		listener.Close() //nolint:errcheck // without a connection
		return nil, err
	}
	return listener, nil
}

// set adds or changes a pod. A pod of the same name with another UID is a new
// pod, whose predecessor ended while the API server was away.
func (s *Server) set(p *v1.Pod) {
	sent := *p
	sent.ResourceVersion = "" // changes with fields that are not sent
	wire := s.marshal(&sent)
	name := cache.MetaObjectToName(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.pods[name]
	if known && before.uid != p.UID {
		s.removeLocked(name)
		known = false
	}
	s.pods[name] = pod{p.UID, wire}
	switch {
	case !known:
		s.broadcast(api.EventType_ADDED, wire)
	case !bytes.Equal(before.wire, wire):
		s.broadcast(api.EventType_MODIFIED, wire)
	}
}

func (s *Server) remove(name cache.ObjectName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(name)
}

// removeLocked sends a pod with name and UID only, as the kubelet does. mu is
// held.
func (s *Server) removeLocked(name cache.ObjectName) {
	gone, known := s.pods[name]
	if !known {
		return
	}
	delete(s.pods, name)
	meta := metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, UID: gone.uid}
	s.broadcast(api.EventType_DELETED, s.marshal(&v1.Pod{ObjectMeta: meta}))
}

// marshal encodes a pod. Pods of the API server have no field that fails.
func (s *Server) marshal(p *v1.Pod) []byte {
	wire, err := p.Marshal()
	if err != nil {
		s.log.Error("cannot encode pod", "namespace", p.Namespace, "pod", p.Name, "err", err)
	}
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

// ready returns an error unless the pods are those of the API server.
func (s *Server) ready() error {
	err, _ := s.source.Err.Get()
	switch {
	case err != nil:
		return status.Errorf(codes.Unavailable, "follow pods at the API server: %v", err)
	case !s.synced.HasSynced():
		return status.Error(codes.FailedPrecondition, "the API server has not listed the pods yet")
	}
	return nil
}

// listLocked returns the pods in order of their UIDs, as the kubelet does. mu is
// held.
func (s *Server) listLocked() (wires [][]byte) {
	sorted := slices.SortedFunc(maps.Values(s.pods), func(a, b pod) int { return cmp.Compare(a.uid, b.uid) })
	for _, p := range sorted {
		wires = append(wires, p.wire)
	}
	return wires
}

// ListPods returns all pods.
func (s *Server) ListPods(context.Context, *api.ListPodsRequest) (*api.ListPodsResponse, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &api.ListPodsResponse{Pods: s.listLocked()}, nil
}

// GetPod returns a pod.
func (s *Server) GetPod(_ context.Context, r *api.GetPodRequest) (*api.GetPodResponse, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if p.uid == types.UID(r.PodUID) {
			return &api.GetPodResponse{Pod: p.wire}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", r.PodUID)
}

// WatchPods sends all pods, and then changes. The stream ends if the API server
// is away, so that the client knows of it.
func (s *Server) WatchPods(
	_ *api.WatchPodsRequest, stream grpc.ServerStreamingServer[api.WatchPodsEvent],
) error {
	if err := s.ready(); err != nil {
		return err
	}
	events := make(chan *api.WatchPodsEvent, maxBacklog)
	s.mu.Lock()
	list := s.listLocked()
	s.watchers[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	for _, wire := range list {
		if err := stream.Send(&api.WatchPodsEvent{Type: api.EventType_ADDED, Pod: wire}); err != nil {
			return err
		}
	}
	err := stream.Send(&api.WatchPodsEvent{Type: api.EventType_INITIAL_SYNC_COMPLETE})
	for err == nil {
		_, changed := s.source.Err.Get()
		if err = s.ready(); err != nil {
			break
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
