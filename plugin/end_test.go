package plugin_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

// SIGTERM is the end of Run's ctx, whatever it waits for.
func TestEnds(t *testing.T) {
	for _, phase := range []struct {
		name     string
		reach    func(s *stage) (end func() error)
		outcomes int // of registrations
	}{
		{"waiting for a device", func(s *stage) func() error {
			looks := s.countLooks()
			end := s.startPlugin()
			s.await("it looks", func() bool { return looks.Load() > 0 })
			return end
		}, 0},
		{"waiting for the kubelet", func(s *stage) func() error {
			s.board.Post(statuses(1))
			end := s.startPlugin()
			s.waitLine(1, "wait for the kubelet")
			return end
		}, 0},
		{"registering", func(s *stage) func() error {
			s.board.Post(statuses(1))
			arrived := make(chan struct{}, 1)
			s.openDesk(func(ctx context.Context, _ string) error {
				arrived <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			end := s.startPlugin()
			next(s, arrived)
			return end
		}, 0},
		{"waiting for the stream", func(s *stage) func() error {
			s.board.Post(statuses(1))
			s.openDesk(func(context.Context, string) error { return nil })
			end := s.startPlugin()
			s.await("it is registered", func() bool { return len(s.seen.registrations()) == 1 })
			return end
		}, 1},
		{"backing off", func(s *stage) func() error {
			s.board.Post(statuses(1))
			s.openDesk(func(context.Context, string) error { return errors.New("no") })
			end := s.startPlugin()
			s.await("it was refused", func() bool { return len(s.seen.registrations()) == 3 })
			return end
		}, 3},
		{"watching", func(s *stage) func() error {
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
			s.board.Post(statuses(1))
			s.startKubelet()
			end := s.startPlugin()
			s.waitRegistered(1)
			s.waitLine(1, "registered resource")
			return end
		}, 1},
	} {
		t.Run(phase.name, func(t *testing.T) {
			s := newStage(t)
			end := phase.reach(s)
			began := time.Now()
			if err := end(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if took := time.Since(began); took > againMost {
				t.Errorf("it took %s", took)
			}
			if left := s.left(); len(left) > 0 {
				t.Errorf("sockets are left: %q", left)
			}
			if got := s.seen.registrations(); len(got) != phase.outcomes {
				t.Errorf("registrations went %v", got)
			}
			s.seen.mu.Lock()
			defer s.seen.mu.Unlock()
			if s.seen.streams != 0 {
				t.Errorf("%d streams are told to be live", s.seen.streams)
			}
		})
	}
}

// The kubelet sees the end of the stream at once, and keeps the devices' place.
func TestAKubeletWhosePluginEnds(t *testing.T) {
	versions(t, func(s *stage) {
		s.board.Post(statuses(4))
		s.startKubelet()
		end := s.startPlugin()
		s.waitRegistered(4)
		if err := end(); err != nil {
			s.Fatal(err)
		}
		s.wait("no device is allocatable", func(k kubelet.State) bool {
			r := k.Resources[resource]
			return r.Allocatable == 0 && r.Capacity == 4 && len(r.Sockets) == 0
		})
		s.startPlugin() // the next process
		s.waitRegistered(4)
		s.wantOutcomes(nil, nil)
	})
}
