package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

func TestWaitsForTheKubelet(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		s.startPlugin()
		s.waitLine(1, "waiting for the kubelet") // without its folder
		expect.Error(s, s.plugin.Ready(), "waiting for the kubelet: ", "readiness without a kubelet")
		s.startKubelet()
		s.Logf("registered %s after the socket", s.waitRegistered(4))
		s.poll("the plugin is ready", func() bool { return s.plugin.Ready() == nil })
		s.wantRegistrations(1)
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
			s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir}) // the longer folder
			s.startKubelet()
			s.inventory.Set(statuses(1))
			end := s.startPlugin()
			if !fits {
				s.waitLine(1, "108 bytes, at most 107")
				return
			}
			s.waitRegistered(1)
			first := s.socket()
			end()
			s.startPlugin()
			s.waitNewSocket(1, first)
			if second := s.socket(); len(first) != 31 || second == first || second[:18] != first[:18] {
				t.Errorf("sockets: got %s, then %s, want one name per resource with different ends", first, second)
			}
		})
	}
}

// wantRegistrations checks for n registrations without an error, each with a new
// socket name without a folder.
func (s *fixture) wantRegistrations(n int) {
	s.Helper()
	names := map[string]bool{}
	for _, r := range s.kubelet.State().Registrations {
		if names[r.Endpoint] || strings.Contains(r.Endpoint, "/") {
			s.Errorf("registered as %q after %v, want a new name", r.Endpoint, names)
		}
		names[r.Endpoint] = true
	}
	if got := s.recorded.registrations(); len(got) != n || errors.Join(got...) != nil {
		s.Errorf("registrations: got %v, want %d without an error\n%s", got, n, &s.log)
	}
}

// TestRegistersNothingWithoutADevice covers an unknown and an empty node, and a
// device that is gone when the kubelet starts.
func TestRegistersNothingWithoutADevice(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.startPlugin()
		if err := s.plugin.Ready(); err != nil {
			s.Errorf("readiness before the first health check: got %v", err)
		}
		s.inventory.Set(statuses(2))
		s.waitLine(1, "waiting for the kubelet")
		s.inventory.Set([]device.Status{})
		s.poll("the list is empty", func() bool { return s.plugin.Ready() == nil })
		s.startKubelet()
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
		s.wantRegistrations(1)
	})
}

func TestInventoryBecomesEmpty(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(s *fixture) {
		s.start(2)
		s.inventory.Set([]device.Status{})
		empty := func(k kubelet.KubeletState) bool { return k.Resources[resource].Capacity == 0 }
		s.wait("the kubelet has no device", empty)
		old := s.socket()
		s.inventory.Set(statuses(2)) // within 10 s, the registration stays
		s.waitRegistered(2)
		if now := s.socket(); now != old {
			s.Errorf("stream: got %s, want still %s", now, old)
		}
		s.inventory.Set([]device.Status{})
		s.wait("the kubelet has no device", empty)
		updates := s.kubelet.Resource(resource).Updates
		s.kubelet.CutStreams(resource)
		s.waitLine(1, "registration ended")
		s.poll("the plugin's socket is removed", func() bool { return len(s.leftSockets()) == 0 })
		s.waitPollInterval()
		s.waitPollInterval()
		expect.EqualSlices(s, s.leftSockets(), nil, "sockets without a device")
		s.inventory.Set(statuses(2))
		s.waitRegistered(2)
		if r := s.kubelet.Resource(resource); r.Updates != updates+1 {
			s.Errorf("got %d lists with the second registration, want 1", r.Updates-updates)
		}
		s.wantRegistrations(2)
	})
}

// TestReadyWithAStream checks readiness and the published resource during the
// first registrations.
func TestReadyWithAStream(t *testing.T) {
	s := newFixture(t)
	noSpecs := errors.New("no CDI specs")
	s.rules.Set(plugin.Rules{NotReady: noSpecs})
	s.inventory.Set(statuses(1))
	requests, result := make(chan struct{}, 10), make(chan error)
	s.serveRegistration(func(ctx context.Context, endpoint string) error {
		requests <- struct{}{}
		select {
		case err := <-result:
			if err == nil {
				_, err = s.stream(s.ctx, endpoint)
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	s.startPlugin()
	s.waitPollInterval()
	if err := s.plugin.Ready(); !errors.Is(err, noSpecs) || len(requests) > 0 {
		t.Errorf("readiness without CDI specs: got %v, %d registrations", err, len(requests))
	}
	s.rules.Set(plugin.Rules{})
	receive(s, requests)
	if s.plugin.Ready() == nil {
		t.Error("ready before the end of the first registration")
	}
	result <- errors.New("no")
	receive(s, requests)
	if err := s.plugin.Ready(); err == nil || !strings.HasSuffix(err.Error(), "desc = no") {
		t.Errorf("readiness after a rejection: got %v", err)
	}
	if r, _ := s.resources.Get(); len(r) != 1 || r[0].Registered || !strings.HasSuffix(r[0].Err, "desc = no") {
		t.Errorf("published after a rejection: got %+v", r)
	}
	result <- nil
	s.poll("the plugin is ready", func() bool { return s.plugin.Ready() == nil })
	s.poll("the registration is published", func() bool {
		r, _ := s.resources.Get()
		all := plugin.Rules{}.WithRegistrations(statuses(1), r)
		return len(all) == 1 && all[0].Registered && all[0].Healthy == 1 && all[0].Err == "" && len(all[0].IDs) == 1
	})
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
		s.wantRegistrations(1)
	})
}

// TestKubeletEndsEarly ends the kubelet during Register, or before the stream.
func TestKubeletEndsEarly(t *testing.T) {
	for name, register := range map[string]func(ctx context.Context, endpoint string) error{
		"during Register":   hangRegister,
		"before the stream": func(context.Context, string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			eachVersion(t, func(s *fixture) {
				requests := make(chan struct{}, 10)
				end := s.serveRegistration(func(ctx context.Context, endpoint string) error {
					requests <- struct{}{}
					return register(ctx, endpoint)
				})
				s.inventory.Set(statuses(4))
				s.startPlugin()
				receive(s, requests)
				end()
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
		s.Errorf("%s: got %s, want less than the backoff\n%s", event, took, &s.log)
	}
}

// maxBackoff is the longest pause between servers.
const maxBackoff = 10 * time.Second

// TestKubeletHangs checks the timeouts of a registration and of the stream.
func TestKubeletHangs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		register func(ctx context.Context, endpoint string) error
		timeout  time.Duration
		log      string
	}{
		"no stream":   {func(context.Context, string) error { return nil }, 5 * time.Second, "opened no stream within 5s"},
		"no response": {hangRegister, 15 * time.Second, "registration failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFixture(t)
			s.inventory.Set(statuses(4))
			began := time.Now()
			requests := make(chan string, 2)
			var attempts atomic.Int64
			s.serveRegistration(func(ctx context.Context, endpoint string) error {
				requests <- endpoint
				if attempts.Add(1) == 1 {
					return c.register(ctx, endpoint)
				}
				_, err := s.stream(s.ctx, endpoint)
				return err
			})
			s.startPlugin()
			first, second := receive(s, requests), receive(s, requests)
			if took := time.Since(began); first == second || took < c.timeout || took > c.timeout+4*time.Second {
				t.Errorf("%s replaced by %s after %s", first, second, took)
			}
			s.waitLine(1, c.log)
			s.waitLine(1, "registered resource")
		})
	}
}

func TestKubeletRejectsRegister(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		s.startKubelet()
		s.kubelet.SetFaults(kubelet.Faults{RegisterErr: errors.New("no room")})
		s.startPlugin()
		s.poll("registrations have failed", func() bool { return len(s.recorded.registrations()) >= 6 })
		if lines := s.log.Matching("no room"); len(lines) != 1 {
			s.Errorf("repeated rejection: got log lines %q", lines)
		}
		s.restart(func() { s.kubelet.SetFaults(kubelet.Faults{}) })
		s.wantFast("a new kubelet had the registration", s.waitRegistered(4)) // without a new kubelet, after 3.2 s
	})
}

// partitioned returns GPUs; the last is MIG-enabled and has MIG devices of
// these profiles.
func partitioned(gpus int, profiles ...string) []device.Status {
	all := statuses(gpus)
	parent := &all[gpus-1].Device
	parent.MIGEnabled = true
	for i, profile := range profiles {
		migDevice := all[gpus-1]
		migDevice.MIGEnabled, migDevice.Profile = false, profile
		migDevice.ID = device.ID(fmt.Sprintf("MIG-%s-%d", profile, i))
		all = append(all, migDevice)
	}
	return all
}

// waitCounts waits for the kubelet's numbers of allocatable devices, such as
// "gpu=1 mig-1g.10gb=2".
func (s *fixture) waitCounts(want string) {
	s.Helper()
	s.wait(want, func(k kubelet.KubeletState) bool {
		for field := range strings.FieldsSeq(want) {
			name, count, _ := strings.Cut(field, "=")
			if fmt.Sprint(k.Resources["nvidia.com/"+name].Allocatable) != count {
				return false
			}
		}
		return true
	})
}

func TestResourcesComeAndGo(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(s *fixture) {
		s.rules.Set(plugin.Rules{MIGStrategy: config.MIGMixed})
		s.inventory.Set(partitioned(2, "1g.10gb", "1g.10gb", "3g.40gb"))
		s.startKubelet()
		s.startPlugin()
		s.waitCounts("gpu=1 mig-1g.10gb=2 mig-3g.40gb=1")
		s.must(s.kubelet.RunPod(s.ctx, pod("small", "nvidia.com/mig-1g.10gb", 1)))
		s.inventory.Set(partitioned(2, "1g.10gb", "1g.10gb", "2g.20gb"))
		s.waitCounts("gpu=1 mig-1g.10gb=2 mig-3g.40gb=0 mig-2g.20gb=1")
		s.wait("the resource without a device has no capacity", func(k kubelet.KubeletState) bool {
			return k.Resources["nvidia.com/mig-3g.40gb"].Capacity == 0
		})
		s.waitLine(1, "device list is empty")
		s.restart(nil)
		s.waitCounts("gpu=1 mig-1g.10gb=2 mig-2g.20gb=1")
		if r := s.kubelet.Resource("nvidia.com/mig-3g.40gb"); r.Capacity > 0 {
			t.Errorf("withdrawn resource: %+v", r)
		}
		s.inventory.Set(partitioned(2, "3g.40gb"))
		s.waitCounts("gpu=1 mig-1g.10gb=0 mig-2g.20gb=0 mig-3g.40gb=1")
		s.poll("the plugin is ready", func() bool { return s.plugin.Ready() == nil })
		s.must(s.plugin.Alive())
	})
}
