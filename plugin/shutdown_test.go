package plugin_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/plugin"
)

// TestShutdown ends the context, as SIGTERM does, in each phase.
func TestShutdown(t *testing.T) {
	for _, phase := range []struct {
		name          string
		devices       int
		register      func(ctx context.Context, endpoint string) error // nil: no kubelet
		registrations int                                              // that have ended
	}{
		{"waiting for a device", 0, nil, 0},
		{"waiting for the kubelet", 1, nil, 0},
		{"registering", 1, hangRegister, 0},
		{"waiting for the stream", 1, func(context.Context, string) error { return nil }, 1},
		{"backing off", 1, func(context.Context, string) error { return errors.New("no") }, 3},
	} {
		t.Run(phase.name, func(t *testing.T) {
			s := newFixture(t)
			s.inventory.Set(statuses(phase.devices))
			requests := make(chan struct{}, 10)
			if phase.register != nil {
				s.serveRegistration(func(ctx context.Context, endpoint string) error {
					requests <- struct{}{}
					return phase.register(ctx, endpoint)
				})
			}
			end := s.startPlugin()
			switch {
			case phase.register != nil:
				receive(s, requests)
			case phase.devices > 0:
				s.waitLine(1, "waiting for the kubelet")
			}
			s.poll("registrations have ended", func() bool { return len(s.recorded.registrations()) == phase.registrations })
			s.wantShutdown(end)
		})
	}
	t.Run("watching", func(t *testing.T) {
		s := newFixture(t)
		s.inventory.Set(statuses(1))
		s.startKubelet()
		end := s.startPlugin()
		s.waitRegistered(1)
		s.wantShutdown(end)
	})
}

func (s *fixture) wantShutdown(end func()) {
	s.Helper()
	began := time.Now()
	end()
	s.wantFast("end of Run", time.Since(began))
	if remaining := s.leftSockets(); len(remaining) > 0 {
		s.Errorf("sockets: got %q, want none", remaining)
	}
	published, _ := s.resources.Get()
	if slices.ContainsFunc(published, func(r plugin.Resource) bool { return r.Registered }) {
		s.Errorf("published after the end: got %+v, want no registration", published)
	}
}
