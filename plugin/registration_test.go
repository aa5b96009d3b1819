package plugin_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
)

func TestWaitsForTheKubelet(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		s.startPlugin()
		s.waitLine(1, "waiting for the kubelet") // without its folder
		if err := s.plugin.Ready(); err == nil || !strings.Contains(err.Error(), "waiting for the kubelet: ") {
			s.Errorf("readiness without a kubelet: got %v", err)
		}
		s.startKubelet()
		s.Logf("registered %s after the socket", s.waitRegistered(4))
		s.poll("the plugin is ready", func() bool { return s.plugin.Ready() == nil })
		s.wantOutcomes(nil)
	})
}

// TestLongFolder registers in folders as long as k0s's, MicroK8s's and the
// longest possible. Beyond, the log has the length and the limit.
func TestLongFolder(t *testing.T) {
	for length, fits := range map[int]bool{
		len("/var/lib/k0s/kubelet/device-plugins"):                      true,
		len("/var/snap/microk8s/common/var/lib/kubelet/device-plugins"): true, 75: true, 76: false,
	} {
		t.Run(strconv.Itoa(length), func(t *testing.T) {
			s := newFixture(t)
			s.dir += "/" + strings.Repeat("k", length-len(s.sockets())-1)
			s.options.Dir = s.sockets()
			s.must(os.MkdirAll(s.sockets(), 0o755))
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
			s.startKubelet()
			s.inventory.Set(statuses(1))
			end := s.startPlugin()
			if !fits {
				s.waitLine(1, "108 bytes, at most 107")
				return
			}
			s.waitRegistered(1)
			first := s.socket()
			s.must(end())
			s.startPlugin()
			s.waitNewSocket(1, first)
			if second := s.socket(); len(first) != 31 || second == first || second[:18] != first[:18] {
				t.Errorf("sockets: got %s, then %s, want one name per resource with different ends", first, second)
			}
		})
	}
}

// wantOutcomes checks the results of all registrations.
func (s *fixture) wantOutcomes(want ...error) {
	s.Helper()
	s.wantCleanRegistrations()
	got := s.recorded.registrations()
	if len(got) != len(want) {
		s.Fatalf("registrations: got %v, want %v\n%s", got, want, s.log)
	}
	for i := range want {
		if (got[i] == nil) != (want[i] == nil) {
			s.Errorf("registration %d: got %v, want %v", i, got[i], want[i])
		}
	}
}

func TestRegistersNothingWithoutADevice(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		reads := s.countStatusReads()
		s.startKubelet()
		s.startPlugin()
		s.poll("the plugin reads the unknown statuses", func() bool { return reads.Load() >= 1 })
		s.inventory.Set(nil)
		s.poll("the plugin reads the empty statuses", func() bool { return reads.Load() >= 2 })
		if err := s.plugin.Ready(); err != nil {
			s.Errorf("readiness without a device: got %v", err)
		}
		s.waitPollInterval()
		s.waitPollInterval()
		if r := s.kubelet.State().Registrations; len(r) > 0 || len(s.leftSockets()) > 0 {
			s.Errorf("got registrations %v and sockets %q, want none", r, s.leftSockets())
		}
		s.inventory.Set(unhealthy(statuses(3), 0, "lost"))
		s.waitRegistered(2)
		if r := s.kubelet.Resource(resource); r.Updates != 1 || r.Capacity != 3 {
			s.Errorf("after the first list: got %+v", r)
		}
	})
}

// countStatusReads counts the reads of the statuses.
func (s *fixture) countStatusReads() *atomic.Int64 {
	reads := &atomic.Int64{}
	s.source.GetStatuses = func() ([]device.Status, <-chan struct{}) {
		statuses, changed := s.inventory.Get()
		reads.Add(1)
		return statuses, changed
	}
	return reads
}

func TestInventoryBecomesEmpty(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.start(2)
		s.inventory.Set(nil)
		empty := func(k kubelet.KubeletState) bool { return k.Resources[resource].Capacity == 0 }
		s.wait("the kubelet has no device", empty)
		old := s.socket()
		s.inventory.Set(statuses(2)) // within 10 s, the registration stays
		s.waitRegistered(2)
		if now := s.socket(); now != old {
			s.Errorf("stream: got %s, want still %s", now, old)
		}
		s.inventory.Set(nil)
		s.wait("the kubelet has no device", empty)
		reads := s.kubelet.Resource(resource).Updates
		s.kubelet.CutStreams(resource)
		s.waitLine(1, "registration ended")
		s.poll("the plugin's socket is removed", func() bool { return len(s.leftSockets()) == 0 })
		s.waitPollInterval()
		s.waitPollInterval()
		if remaining := s.leftSockets(); len(remaining) > 0 {
			s.Errorf("sockets without a device: got %q", remaining)
		}
		s.inventory.Set(statuses(2))
		s.waitRegistered(2)
		if r := s.kubelet.Resource(resource); r.Updates != reads+1 {
			s.Errorf("got %d lists with the second registration, want 1", r.Updates-reads)
		}
		s.wantOutcomes(nil, nil)
	})
}

// TestInventoryBecomesEmptyBeforeTheKubeletStarts covers a plugin that waits
// for the kubelet with a device, which is gone when the kubelet starts.
func TestInventoryBecomesEmptyBeforeTheKubeletStarts(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(2))
		s.startPlugin()
		s.waitLine(1, "waiting for the kubelet")
		s.inventory.Set(nil)
		s.poll("the list is empty", func() bool { return s.plugin.Ready() == nil })
		s.startKubelet()
		s.waitPollInterval()
		s.waitPollInterval()
		if r := s.kubelet.State().Registrations; len(r) > 0 {
			s.Errorf("registrations without a device: got %v", r)
		}
		s.inventory.Set(statuses(2))
		s.waitRegistered(2)
		if r := s.kubelet.Resource(resource); r.Updates != 1 {
			s.Errorf("got %d lists, want 1: none without a device", r.Updates)
		}
		s.wantOutcomes(nil)
	})
}

func TestReadyWithAStream(t *testing.T) {
	s := newFixture(t)
	s.inventory.Set(statuses(1))
	requests, result := make(chan struct{}, 10), make(chan error)
	s.serveRegistration(func(ctx context.Context, endpoint string) error {
		requests <- struct{}{}
		select {
		case err := <-result:
			if err == nil {
				_, _, err = s.stream(s.ctx, endpoint)
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	s.startPlugin()
	receive(s, requests)
	if s.plugin.Ready() == nil {
		t.Error("ready before the end of the first registration")
	}
	result <- errors.New("no")
	receive(s, requests)
	if err := s.plugin.Ready(); err == nil || !strings.HasSuffix(err.Error(), "desc = no") {
		t.Errorf("readiness after a rejection: got %v", err)
	}
	result <- nil
	s.poll("the plugin is ready", func() bool { return s.plugin.Ready() == nil })
}

// TestSlowRegistration checks that a slow kubelet gets a single registration.
func TestSlowRegistration(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		s.startKubelet()
		release := make(chan struct{})
		s.kubelet.SetFaults(kubelet.Faults{HoldRegister: release})
		s.startPlugin()
		s.poll("the plugin serves", func() bool { return len(s.leftSockets()) == 1 })
		s.waitPollInterval() // during Register
		close(release)
		s.waitRegistered(4)
		s.wantOutcomes(nil)
	})
}

func TestKubeletEndsDuringRegister(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			eachVersion(t, func(s *fixture) {
				requests := make(chan struct{}, 1)
				end := s.serveRegistration(func(ctx context.Context, _ string) error {
					requests <- struct{}{}
					<-ctx.Done()
					return ctx.Err()
				})
				s.inventory.Set(statuses(4))
				s.startPlugin()
				receive(s, requests)
				end()
				s.waitLine(1, "registration failed")
				s.startKubelet()
				s.wantFast("registered", s.waitRegistered(4))
			})
		})
	}
}

// wantFast logs a duration that test/e2e limits to a second. On a busy machine
// the limit is maxBackoff: a longer time is a missed event.
func (s *fixture) wantFast(event string, took time.Duration) {
	s.Helper()
	s.Logf("%s after %s", event, took.Round(time.Millisecond))
	if took > maxBackoff {
		s.Errorf("%s: got %s, want less than the backoff\n%s", event, took, s.log)
	}
}

// maxBackoff is the longest pause between servers.
const maxBackoff = 10 * time.Second

func TestKubeletEndsBeforeTheStream(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		end := s.serveRegistration(func(context.Context, string) error { return nil })
		s.inventory.Set(statuses(4))
		s.startPlugin()
		s.poll("Register has returned", func() bool { return len(s.recorded.registrations()) == 1 })
		end()
		s.startKubelet()
		s.wantFast("registered", s.waitRegistered(4))
	})
}

func TestKubeletOpensNoStream(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.inventory.Set(statuses(4))
	began := time.Now()
	requests := make(chan string, 2)
	attempts := 0 // calls do not overlap
	s.serveRegistration(func(_ context.Context, endpoint string) error {
		requests <- endpoint
		if attempts++; attempts == 1 {
			return nil
		}
		_, _, err := s.stream(s.ctx, endpoint)
		return err
	})
	s.startPlugin()
	first, second := receive(s, requests), receive(s, requests)
	if took := time.Since(began); first == second || took < 5*time.Second || took > 8*time.Second {
		t.Errorf("%s replaced by %s after %s", first, second, took)
	}
	s.waitLine(1, "opened no stream within 5s")
	s.waitLine(1, "registered resource")
}

func TestKubeletNeverRespondsToRegister(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.inventory.Set(statuses(4))
	began := time.Now()
	requests := make(chan string, 2)
	s.serveRegistration(func(ctx context.Context, endpoint string) error {
		requests <- endpoint
		<-ctx.Done()
		return ctx.Err()
	})
	s.startPlugin()
	first, second := receive(s, requests), receive(s, requests)
	if took := time.Since(began); first == second || took < 15*time.Second || took > 20*time.Second {
		t.Errorf("%s replaced by %s after %s", first, second, took)
	}
}

func TestKubeletRejectsRegister(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		s.startKubelet()
		s.kubelet.SetFaults(kubelet.Faults{RegisterErr: errors.New("no room")})
		attempts := s.timeRegistrations()
		s.startPlugin()
		for range 6 { // TestBackoffUpToTheMaximum has the pauses
			receive(s, attempts)
		}
		if lines := s.log.matching("no room"); len(lines) != 1 {
			s.Errorf("repeated rejection: got log lines %q", lines)
		}
		s.restart(func() { s.kubelet.SetFaults(kubelet.Faults{}) })
		s.wantFast("a new kubelet had the registration", s.waitRegistered(4)) // without a new kubelet, after 3.2 s
		s.wantCleanRegistrations()
	})
}

// timeRegistrations returns a channel of the times at which Register ends.
func (s *fixture) timeRegistrations() <-chan time.Time {
	s.recorded.registeredAt = make(chan time.Time, 100)
	return s.recorded.registeredAt
}
