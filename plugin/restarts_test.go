package plugin_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/background"
)

func TestKubeletRestarts(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(s *fixture) {
		const restarts = 50
		s.start(8)
		var took []time.Duration
		for range restarts {
			s.restart(nil)
			took = append(took, s.waitRegistered(8))
		}
		slices.Sort(took)
		s.Logf("registered after the new socket: median %s, slowest %s", took[len(took)/2], took[len(took)-1])
		s.wantFast("registered at the slowest", took[len(took)-1])
		s.wantRegistrations(1 + restarts) // a single success per kubelet
		if r := s.kubelet.Resource(resource); r.Updates != 1+restarts || r.Repeats > 0 {
			s.Errorf("got %d lists, %d of them repeated, want a list per stream", r.Updates, r.Repeats)
		}
		if remaining := s.leftSockets(); len(remaining) != 1 {
			s.Errorf("sockets: got %q, want 1", remaining)
		}
	})
}

func TestLongKubeletOutage(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		end := s.startKubelet()
		s.startPlugin()
		s.waitRegistered(4)
		end()
		s.waitLine(1, "connection refused") // to the socket of the ended kubelet
		if remaining := s.leftSockets(); len(remaining) > 0 {
			s.Errorf("sockets: got %q, want none: a starting kubelet deletes them", remaining)
		}
		s.inventory.Set(unhealthy(statuses(4), 1, "lost"))
		s.startKubelet()
		s.wantFast("registered", s.waitRegistered(3))
		s.wantRegistrations(2)
	})
}

func TestRegistersAgain(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		name string
		do   func(s *fixture)
	}{
		{"own socket deleted", func(s *fixture) { s.must(os.Remove(s.sockets(s.socket()))) }},
		{"socket folder wiped", func(s *fixture) {
			entries, err := os.ReadDir(s.sockets(""))
			s.must(err)
			for _, e := range entries {
				if e.Name() != "kubelet.sock" {
					s.must(os.RemoveAll(s.sockets(e.Name())))
				}
			}
		}},
		{"stream cut", func(s *fixture) { s.kubelet.CutStreams(resource) }},
		{"stream cut while a second client watches", func(s *fixture) {
			_, err := s.stream(s.ctx, s.socket())
			s.must(err)
			s.kubelet.CutStreams(resource)
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			eachVersion(t, func(s *fixture) {
				s.start(4)
				for range 2 {
					old := s.socket()
					fault.do(s)
					s.wantFast("registered", s.waitNewSocket(4, old))
				}
				s.inventory.Set(unhealthy(statuses(4), 2, "lost"))
				s.waitRegistered(3)
				if remaining := s.leftSockets(); len(remaining) != 1 {
					s.Errorf("sockets: got %q, want 1", remaining)
				}
				s.wantRegistrations(3)
			})
		})
	}
}

// TestSecondClientDisconnects checks that a registration outlasts the stream of
// a second client.
func TestSecondClientDisconnects(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.start(4)
		uptime := s.socket()
		ctx, disconnect := context.WithCancel(s.ctx)
		second, err := s.stream(ctx, uptime)
		s.must(err)
		disconnect()
		if _, err := second.stream.Recv(); err == nil {
			s.Error("the client's stream did not end")
		}
		s.waitPollInterval() // a wrong end would show within the interval
		s.inventory.Set(unhealthy(statuses(4), 2, "lost"))
		s.waitRegistered(3)
		if now := s.socket(); now != uptime {
			s.Errorf("stream: got %s, want still %s", now, uptime)
		}
		s.wantRegistrations(1)
	})
}

// TestOverlappingProcesses covers a rolling update that starts the next
// podgauge before the old process ends. Up to Kubernetes 1.36, the end of the
// old stream also ends the new registration.
func TestOverlappingProcesses(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.inventory.Set(statuses(4))
		s.startKubelet()
		end := s.startPlugin()
		s.waitRegistered(4)
		old := s.socket()
		s.startPlugin()
		s.wait("both are connected", func(k kubelet.KubeletState) bool {
			return len(k.Resources[resource].Sockets) == 2
		})
		end()
		s.wantFast("the new process is registered", s.waitNewSocket(4, old))
		s.inventory.Set(unhealthy(statuses(4), 0, "lost"))
		s.waitRegistered(3)
	})
}

// TestFolderIsRemovedAndRestored checks that the stream survives, also a
// deleted socket of the kubelet: registration is neither possible nor
// necessary.
func TestFolderIsRemovedAndRestored(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		s.start(4)
		uptime := s.socket()
		s.must(os.Remove(s.sockets("kubelet.sock")))
		s.waitPollInterval()
		s.removeSockets()
		s.waitPollInterval()
		s.inventory.Set(unhealthy(statuses(4), 0, "lost"))
		s.wait("the list reaches the kubelet",
			func(k kubelet.KubeletState) bool { return k.Resources[resource].Allocatable == 3 })
		s.must(os.Mkdir(s.sockets(), 0o755))
		s.waitPollInterval()
		s.inventory.Set(statuses(4))
		s.waitRegistered(4)
		if now := s.socket(); now != uptime {
			s.Errorf("stream: got %s, want still %s", now, uptime)
		}
		s.restart(s.removeSockets)
		s.wantFast("registered with the next kubelet", s.waitRegistered(4))
		s.wantRegistrations(2)
	})
}

// removeSockets removes the folder of the sockets, in which the plugin may just
// create one.
func (s *fixture) removeSockets() {
	s.Helper()
	s.poll("the folder is removed", func() bool { return os.RemoveAll(s.sockets()) == nil })
}

// waitPollInterval gives the plugin time for a wrong reaction to the sockets,
// which has no notification.
func (s *fixture) waitPollInterval() {
	s.Helper()
	began := time.Now()
	s.poll("a poll has passed", func() bool { return time.Since(began) > 120*time.Millisecond })
}

// TestNoLiveStreamDuringRegister checks that streams do not overlap. Up to
// Kubernetes 1.36, a late end of the old stream ends the new registration; from
// 1.37 on, the lists of two streams overwrite each other.
func TestNoLiveStreamDuringRegister(t *testing.T) {
	s := newFixture(t)
	s.inventory.Set(statuses(4))
	var live atomic.Int64
	endpoints := make(chan string, 1)
	s.serveRegistration(func(_ context.Context, endpoint string) error {
		if n := live.Load(); n != 0 {
			t.Errorf("got %d live streams during Register of %s", n, endpoint)
		}
		lists, err := s.stream(s.ctx, endpoint)
		if err != nil {
			return err
		}
		live.Add(1)
		background.Run(s, func(context.Context) error {
			defer live.Add(-1)
			for {
				if _, err := lists.stream.Recv(); err != nil {
					return nil
				}
			}
		})
		endpoints <- endpoint
		return nil
	})
	s.startPlugin()
	seen := map[string]bool{}
	for range 5 {
		endpoint := receive(s, endpoints)
		if seen[endpoint] {
			t.Errorf("got socket name %s, which was used before", endpoint)
		}
		seen[endpoint] = true
		s.waitLine(len(seen), "registered resource")
		s.must(os.Remove(s.sockets(endpoint)))
	}
}

// TestShortStreams checks the backoff if a kubelet ends each stream at once, as
// for a list above the limit.
func TestShortStreams(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	s.inventory.Set(statuses(1))
	s.serveRegistration(func(_ context.Context, endpoint string) error {
		ctx, hangUp := context.WithCancel(s.ctx)
		defer hangUp()
		_, err := s.stream(ctx, endpoint)
		return err
	})
	s.startPlugin()
	began := time.Now()
	s.poll("five registrations", func() bool { return len(s.recorded.registrations()) >= 5 })
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("five registrations: got %s, want more than 1.5 s", took)
	}
}

func TestStaleSocketsAreRemoved(t *testing.T) {
	s := newFixture(t)
	s.startKubelet()
	// the latter of earlier versions
	const prefix, oldPrefix = "podgauge-cbcbbfae-", "podgauge-nvidia-com_gpu-cbcbbfae-"
	stale := s.staleSocket(prefix + "stale-1.sock")
	s.must(stale.Close())
	s.must(s.staleSocket(oldPrefix + "stale-1.sock").Close())
	s.must(s.staleSocket("podgauge-cbcbbfaf-stale.sock").Close())
	foreign := s.staleSocket("nvidia-gpu.sock")
	s.must(foreign.Close())
	live := s.staleSocket(prefix + "live-1.sock")
	defer live.Close() //nolint:errcheck // end of the test
	busy := s.busySocket(prefix + "busy-1.sock")
	defer busy()
	s.must(os.WriteFile(s.sockets(prefix+"file.sock"), nil, 0o644))
	s.inventory.Set(statuses(1))
	s.startPlugin()
	s.waitRegistered(1)
	for name, want := range map[string]bool{
		prefix + "stale-1.sock": false, oldPrefix + "stale-1.sock": false, "podgauge-cbcbbfaf-stale.sock": true,
		"nvidia-gpu.sock": true, prefix + "live-1.sock": true,
		prefix + "busy-1.sock": true, prefix + "file.sock": true,
	} {
		if _, err := os.Lstat(s.sockets(name)); (err == nil) != want {
			t.Errorf("%s: got %v, want existence %t", name, err, want)
		}
	}
}

// staleSocket listens on a socket. Close leaves the file, as SIGKILL does.
func (s *fixture) staleSocket(name string) net.Listener {
	s.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.sockets(name)})
	s.must(err)
	listener.SetUnlinkOnClose(false)
	return listener
}

// busySocket creates a socket with a full backlog: a connection is neither
// accepted nor refused.
func (s *fixture) busySocket(name string) (end func()) {
	s.Helper()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	s.must(err)
	s.must(syscall.Bind(fd, &syscall.SockaddrUnix{Name: s.sockets(name)}))
	s.must(syscall.Listen(fd, 0))
	var conns []net.Conn
	for err == nil {
		var conn net.Conn
		if conn, err = net.Dial("unix", s.sockets(name)); err == nil {
			conns = append(conns, conn)
		}
	}
	if !errors.Is(err, syscall.EAGAIN) {
		s.Errorf("connection to a full backlog: got error %v", err)
	}
	return func() {
		for _, conn := range conns {
			conn.Close() //nolint:errcheck // end of the test
		}
		syscall.Close(fd) //nolint:errcheck // end of the test
	}
}

const renamedResource = "nvidia.com/a100"

// renamingRules returns rules with the new name for all devices.
func renamingRules() plugin.Rules {
	renamed := []config.NamePattern{{Pattern: "*", Name: renamedResource}}
	return plugin.Rules{Resources: config.ResourceNames{GPUs: renamed}}
}

// eachVersionWithClock runs a test with each kubelet version and a test clock.
// The kubelet has run for an hour, so that its responses are trusted at once.
func eachVersionWithClock(t *testing.T, test func(s *fixture, later func(time.Duration))) {
	for _, version := range []kubelet.Version{kubelet.V136, kubelet.V137} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			s := newFixture(t)
			var offset atomic.Int64
			s.kubelet = kubelet.New(kubelet.Options{
				Dir: s.dir, Version: version, RunningSince: time.Now().Add(-time.Hour),
				Now: func() time.Time { return time.Now().Add(time.Duration(offset.Load())) },
			})
			s.startKubelet()
			test(s, func(d time.Duration) { offset.Add(int64(d)) })
		})
	}
}

// allocationHooks passes events to the client for allocations.
type allocationHooks struct {
	plugin.EndpointHooks
	client *podresources.Client
}

func (h allocationHooks) OnListSent() { h.client.OnListSent() }

func (h allocationHooks) OnAllocated(resource string, ids []device.AdvertisedID) {
	h.client.OnAllocated(resource, ids)
}

// startProcess runs a plugin and a client for allocations, as a process of
// podgauge does.
func (s *fixture) startProcess(rules plugin.Rules) (end func()) {
	s.Helper()
	allocations := &pubsub.Value[allocation.Snapshot]{}
	client, err := podresources.New(s.kubelet.PodResourcesSocket(), podresources.Options{
		Log: s.log.Logger(), CheckpointPath: s.sockets(podresources.CheckpointFile), Allocations: allocations,
	})
	s.must(err)
	o := s.options
	o.WithdrawnTimeout = time.Second
	o.Rules = &pubsub.Value[plugin.Rules]{}
	o.Rules.Set(rules)
	o.Allocations = allocations
	o.Hooks = allocationHooks{o.Hooks, client}
	p := plugin.New(o)
	return background.Run(s, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return client.Run(ctx) })
		g.Go(func() error { return p.Run(ctx) })
		return g.Wait()
	})
}

// wantEnd ends a process, and waits until the kubelet has noticed the end of
// the streams.
func (s *fixture) wantEnd(end func()) {
	s.Helper()
	end()
	hasEnded := func(socket string) bool {
		_, err := os.Lstat(s.sockets(socket))
		return err != nil
	}
	s.wait("the streams have ended", func(k kubelet.KubeletState) bool {
		for _, r := range k.Resources {
			if slices.ContainsFunc(r.Sockets, hasEnded) {
				return false
			}
		}
		return true
	})
}

// waitList waits until the kubelet has exactly these devices of a resource,
// from a single plugin.
func (s *fixture) waitList(resource, want string) {
	s.Helper()
	s.wait(resource+" has "+want, func(k kubelet.KubeletState) bool {
		r := k.Resources[resource]
		var list []string
		for _, d := range r.Devices {
			if list = append(list, d.ID); !d.Healthy {
				list[len(list)-1] += "!"
			}
		}
		return len(r.Sockets) == 1 && strings.Join(list, " ") == want
	})
}

// waitNamedAllocations waits until a restarted kubelet has listed all pods: a
// container that ends before counts as running for a minute. A new device list
// makes podgauge call List.
func (s *fixture) waitNamedAllocations() {
	s.Helper()
	s.wait("all pods are read", func(k kubelet.KubeletState) bool { return k.PodsRead })
	lists := s.kubelet.State().Calls["List"]
	s.inventory.Set(unhealthy(statuses(2), 1, "lost"))
	s.wait("the pods are listed", func(k kubelet.KubeletState) bool { return k.Calls["List"] > lists })
	s.inventory.Set(statuses(2))
	s.wait("the response is read", func(k kubelet.KubeletState) bool { return k.Calls["List"] > lists+1 })
}

func (s *fixture) registrations(resource string) (n int) {
	for _, r := range s.kubelet.State().Registrations {
		if r.Resource == resource {
			n++
		}
	}
	return n
}

// TestRenamedResourceIsServedAfterARestart checks that the old name stays
// registered while it is allocated. Five minutes after the plugin ends, the
// kubelet removes a resource, and then cannot restart containers with its
// devices.
func TestRenamedResourceIsServedAfterARestart(t *testing.T) {
	t.Parallel()
	eachVersionWithClock(t, func(s *fixture, later func(time.Duration)) {
		s.inventory.Set(statuses(2))
		end := s.startProcess(plugin.Rules{})
		s.waitList(resource, "GPU-0 GPU-1")
		s.must(s.kubelet.RunPod(s.ctx, pod("owner", resource, 1)))
		s.wantEnd(end)

		end = s.startProcess(renamingRules())
		s.waitList(resource, "GPU-0")
		s.waitList(renamedResource, "GPU-0! GPU-1")
		later(6 * time.Minute)
		s.must(s.kubelet.RestartContainer(s.ctx, pod("owner", resource, 1), "main"))
		if err := s.kubelet.RunPod(s.ctx, pod("late", resource, 1)); err == nil {
			t.Error("a withdrawn id was allocated again")
		}
		s.must(s.kubelet.RunPod(s.ctx, pod("new", renamedResource, 1)))

		s.inventory.Set(unhealthy(statuses(2), 0, "xid_79")) // in the pod's status
		s.waitList(resource, "GPU-0!")
		s.inventory.Set(statuses(2))
		s.restart(nil)
		s.waitList(resource, "GPU-0")
		s.waitNamedAllocations()
		later(6 * time.Minute)
		s.must(s.kubelet.RestartContainer(s.ctx, pod("owner", resource, 1), "main"))

		s.must(s.kubelet.DeletePod(pod("owner", resource, 1)))
		s.waitList(renamedResource, "GPU-0 GPU-1")
		s.wait("the old resource is removed", func(k kubelet.KubeletState) bool {
			r := k.Resources[resource]
			return r.Capacity == 0 && len(r.Sockets) == 0
		})
		s.wantEnd(end)
		before := s.registrations(resource)
		s.startProcess(renamingRules())
		s.waitList(renamedResource, "GPU-0 GPU-1")
		s.waitPollInterval()
		if n := s.registrations(resource); n != before {
			t.Errorf("the withdrawn resource was registered %d more times", n-before)
		}
	})
}
