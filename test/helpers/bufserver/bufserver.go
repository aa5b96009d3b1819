// Package bufserver has a gRPC server in memory, for tests in a bubble of
// synctest.
package bufserver

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// Server is a gRPC server that stops and starts again. The zero Server is
// stopped.
type Server struct {
	mu       sync.Mutex
	listener *bufconn.Listener // nil while stopped; guarded by mu, as all below
	server   *grpc.Server
	served   chan error
}

// Start starts a stopped server.
func (s *Server) Start(register func(grpc.ServiceRegistrar), options ...grpc.ServerOption) {
	listener, server, served := bufconn.Listen(1<<16), grpc.NewServer(options...), make(chan error, 1)
	register(server)
	go func() { served <- server.Serve(listener) }()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener, s.server, s.served = listener, server, served
}

// Stop ends a running server with its connections.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	server, served := s.server, s.served
	s.listener, s.server = nil, nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	server.Stop()
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		t.Errorf("Serve: %v", err)
	}
}

// Dial connects to a running server.
func (s *Server) Dial(ctx context.Context) (net.Conn, error) {
	s.mu.Lock()
	listener := s.listener
	s.mu.Unlock()
	if listener == nil {
		return nil, errors.New("connection refused")
	}
	return listener.DialContext(ctx)
}
