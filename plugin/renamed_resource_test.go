package plugin_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/podresources"
	"github.com/podgauge/podgauge/test/helpers/background"
	"golang.org/x/sync/errgroup"
)

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
	hasEnded := func(socket string) bool { return !s.hasSocket(socket) }
	s.wait("the streams have ended", func(k kubelet.KubeletState) bool {
		for _, r := range k.Resources {
			if slices.ContainsFunc(r.Sockets, hasEnded) {
				return false
			}
		}
		return true
	})
}

// hasSocket reports whether a socket exists.
func (s *fixture) hasSocket(socket string) bool {
	_, err := os.Lstat(s.sockets(socket))
	return err == nil
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
