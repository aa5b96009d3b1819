package plugin_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// TestShutdown ends the context, as SIGTERM does, in each phase.
func TestShutdown(t *testing.T) {
	for _, phase := range []struct {
		name     string
		reach    func(s *fixture) (end func() error)
		outcomes int // number of finished registrations
	}{
		{"waiting for a device", func(s *fixture) func() error {
			reads := s.countStatusReads()
			end := s.startPlugin()
			s.poll("the plugin reads the statuses", func() bool { return reads.Load() > 0 })
			return end
		}, 0},
		{"waiting for the kubelet", func(s *fixture) func() error {
			s.inventory.Set(statuses(1))
			end := s.startPlugin()
			s.waitLine(1, "waiting for the kubelet")
			return end
		}, 0},
		{"registering", func(s *fixture) func() error {
			s.inventory.Set(statuses(1))
			requests := make(chan struct{}, 1)
			s.serveRegistration(func(ctx context.Context, _ string) error {
				requests <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			end := s.startPlugin()
			receive(s, requests)
			return end
		}, 0},
		{"waiting for the stream", func(s *fixture) func() error {
			s.inventory.Set(statuses(1))
			s.serveRegistration(func(context.Context, string) error { return nil })
			end := s.startPlugin()
			s.poll("Register has returned", func() bool { return len(s.recorded.registrations()) == 1 })
			return end
		}, 1},
		{"backing off", func(s *fixture) func() error {
			s.inventory.Set(statuses(1))
			s.serveRegistration(func(context.Context, string) error { return errors.New("no") })
			end := s.startPlugin()
			s.poll("Register has failed", func() bool { return len(s.recorded.registrations()) == 3 })
			return end
		}, 3},
		{"watching", func(s *fixture) func() error {
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
			s.inventory.Set(statuses(1))
			s.startKubelet()
			end := s.startPlugin()
			s.waitRegistered(1)
			s.waitLine(1, "registered resource")
			return end
		}, 1},
	} {
		t.Run(phase.name, func(t *testing.T) {
			s := newFixture(t)
			end := phase.reach(s)
			began := time.Now()
			if err := end(); err != nil {
				t.Errorf("Run: got error %v", err)
			}
			if took := time.Since(began); took > maxBackoff {
				t.Errorf("end of Run: got %s", took)
			}
			if remaining := s.leftSockets(); len(remaining) > 0 {
				t.Errorf("sockets: got %q, want none", remaining)
			}
			if got := s.recorded.registrations(); len(got) != phase.outcomes {
				t.Errorf("registrations: got %v", got)
			}
			s.recorded.mu.Lock()
			defer s.recorded.mu.Unlock()
			if s.recorded.streams != 0 {
				t.Errorf("hooks: got %d live streams, want none", s.recorded.streams)
			}
		})
	}
}
