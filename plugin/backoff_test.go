package plugin_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/pubsub"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/bubble"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/expect"
	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testlog"
)

// bubbleFixture is a folder with a plugin that polls the folder, with the clock
// of a bubble, and without a kubelet that answers.
type bubbleFixture struct {
	*plugin.Plugin
	options     plugin.Options
	kubelet     string // its socket
	log         testlog.Buffer
	inventory   device.Inventory // of a GPU
	rules       pubsub.Value[plugin.Rules]
	allocations pubsub.Value[allocation.Snapshot]
	resources   pubsub.Value[[]plugin.Resource]
}

// inBubble runs a test in a folder whose path is short enough for the kubelet's
// socket, but not for the plugin's: no server starts a goroutine that waits for
// the network.
func inBubble(t *testing.T, test func(t *testing.T, s *bubbleFixture)) {
	t.Helper()
	dir := background.Dir(t)
	dir = filepath.Join(dir, strings.Repeat("x", 80-len(dir)))
	require.NoError(t, os.Mkdir(dir, 0o755))
	inBubbleOf(t, dir, test)
}

// inBubbleOf runs a test with a folder.
func inBubbleOf(t *testing.T, dir string, test func(t *testing.T, s *bubbleFixture)) {
	bubble.Test(t, func(t *testing.T) {
		s := &bubbleFixture{kubelet: filepath.Join(dir, "kubelet.sock")}
		s.options = plugin.Options{
			Dir: dir, Hooks: &hookRecorder{}, Log: s.log.Logger(), Devices: &s.inventory, Rules: &s.rules,
			Allocations: &s.allocations, Resources: &s.resources,
		}
		s.inventory.Set(statuses(1))
		test(t, s)
	})
}

// start starts the plugin.
func (s *bubbleFixture) start(t *testing.T) (end func()) {
	s.Plugin = plugin.New(s.options).WithoutInotify()
	return background.Run(t, s.Run)
}

// attempts returns the number of registrations of a resource.
func (s *bubbleFixture) attempts(resource string) int {
	return len(s.log.Matching("msg=registering resource=" + resource))
}

func TestFolderWithoutRoomForSockets(t *testing.T) {
	short := background.Dir(t)
	for _, c := range []struct{ name, dir, reason string }{
		{"too long", filepath.Join(short, strings.Repeat("long/", 20)), "at most 107"},
		{"missing", filepath.Join(short, "missing"), "no such file or directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubbleOf(t, c.dir, func(t *testing.T, s *bubbleFixture) {
				defer s.start(t)()
				time.Sleep(time.Hour)
				expect.NoError(t, s.Alive(), "Alive")
				polling := len(s.log.Matching("polling every second"))
				if s.log.Count("\n") != 2 || len(s.log.Matching(c.reason)) != 1 || polling != 1 {
					t.Errorf("want a line with %q and a line about polling in an hour, got\n%s", c.reason, &s.log)
				}
			})
		})
	}
}

// listenUnix replaces a socket by one with a listener but without a server. The
// returned function ends the listener and leaves the socket.
func listenUnix(t *testing.T, path string) (end func()) {
	t.Helper()
	os.Remove(path) //nolint:errcheck // may not exist
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrUnix{Name: path})
	}
	if err == nil {
		err = syscall.Listen(fd, 4096) // connections of an hour
	}
	require.NoError(t, err)
	return func() { syscall.Close(fd) } //nolint:errcheck // a test's
}

// TestAliveWithoutADevice checks that a plugin without devices stays alive for
// an hour.
func TestAliveWithoutADevice(t *testing.T) {
	inBubble(t, func(t *testing.T, s *bubbleFixture) {
		defer listenUnix(t, s.kubelet)()
		defer s.start(t)()
		time.Sleep(time.Second) // the first registration has failed
		if s.Ready() == nil {
			t.Error("ready without a registration")
		}
		s.inventory.Set([]device.Status{})
		time.Sleep(time.Hour)
		if err := errors.Join(s.Alive(), s.Ready()); err != nil {
			t.Errorf("without a device: got error %v", err)
		}
		if resources, _ := s.resources.Get(); len(resources) != 0 {
			t.Errorf("published resources without a device: got %+v", resources)
		}
		s.inventory.Set(statuses(1))
		time.Sleep(time.Hour)
		if resources, _ := s.resources.Get(); len(resources) != 1 || s.Ready() == nil {
			t.Errorf("with a device again, unregistered: got published resources %+v, ready %t", resources, s.Ready() == nil)
		}
	})
}

// TestNotReadyBeforeAnUpdate checks readiness after a driver's start: no
// resource has an endpoint, although the list of an empty node was updated.
func TestNotReadyBeforeAnUpdate(t *testing.T) {
	inBubble(t, func(t *testing.T, s *bubbleFixture) {
		release := make(chan struct{})
		s.rules.Set(plugin.Rules{Select: func(device.Device) bool {
			<-release
			return true
		}})
		s.inventory.Set([]device.Status{})
		defer s.start(t)()
		time.Sleep(time.Second)
		if err := s.Ready(); err != nil {
			t.Errorf("without a device: got %v", err)
		}
		s.inventory.Set(statuses(1))
		time.Sleep(time.Second)
		if s.Ready() == nil {
			t.Error("ready before the update")
		}
		close(release)
		time.Sleep(time.Second)
		if s.Ready() == nil {
			t.Error("ready without a kubelet")
		}
	})
}

// TestUpdatesFollowTheInput checks that lists are made from new input alone:
// tens of thousands of replicas take a while.
func TestUpdatesFollowTheInput(t *testing.T) {
	inBubble(t, func(t *testing.T, s *bubbleFixture) {
		var updates atomic.Int64
		s.rules.Set(plugin.Rules{Select: func(device.Device) bool {
			updates.Add(1)
			return true
		}})
		defer s.start(t)()
		wants := func(event string, want int64) {
			t.Helper()
			time.Sleep(time.Minute)
			expect.Equal(t, updates.Swap(0), want, event, "updates")
		}
		wants("at first", 1)
		allocated := parseAllocations("GPU-0")
		s.allocations.Set(allocated)
		wants("an allocation", 1)
		allocated.At, allocated.All = time.Now(), slices.Clone(allocated.All)
		allocated.All[0].Owner.Pod = "one"
		s.allocations.Set(allocated)
		wants("its owner", 0)
		s.rules.Update(func(r plugin.Rules) plugin.Rules { return r })
		wants("rules", 1)
		s.inventory.Set(statuses(1))
		wants("statuses", 1)
	})
}

// TestBackoff checks the pauses between servers that fail, and that a new
// kubelet starts again.
func TestBackoff(t *testing.T) {
	inBubble(t, func(t *testing.T, s *bubbleFixture) {
		end := listenUnix(t, s.kubelet)
		s.options.Rules, s.options.Allocations, s.options.Resources = nil, nil, nil // the defaults
		defer s.start(t)()
		time.Sleep(33 * time.Second)
		end()
		defer listenUnix(t, s.kubelet)()
		time.Sleep(2 * time.Second)
		var attempts []time.Time
		for _, line := range s.log.Matching("msg=registering") {
			_, text, _ := strings.Cut(line, "time=")
			at, err := time.Parse(time.RFC3339, strings.Fields(text)[0])
			require.NoError(t, err)
			attempts = append(attempts, at)
		}
		want := []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000}
		if len(attempts) < len(want)+4 {
			t.Fatalf("got attempts at %v", attempts)
		}
		for i, pause := range want {
			expect.Equal(t, attempts[i+1].Sub(attempts[i]), pause*time.Millisecond, "pause", i)
		}
	})
}

// TestRenamedBeforeTheFirstRegistration has a kubelet that registers nothing:
// the kubelet does not know the old name, and must not learn it.
func TestRenamedBeforeTheFirstRegistration(t *testing.T) {
	inBubble(t, func(t *testing.T, s *bubbleFixture) {
		defer listenUnix(t, s.kubelet)()
		defer s.start(t)()
		time.Sleep(time.Second)
		before := s.attempts(resource)
		s.rules.Set(renamingRules())
		time.Sleep(time.Minute)
		if before == 0 || s.attempts(resource) != before || s.attempts(renamedResource) == 0 {
			t.Errorf("got %d registrations of the old name, %d after the change, and %d of the new name",
				before, s.attempts(resource)-before, s.attempts(renamedResource))
		}
		if all, _ := s.resources.Get(); len(all) != 1 || all[0].Name != renamedResource {
			t.Errorf("published: got %+v, want only %s", all, renamedResource)
		}
	})
}

// TestOtherPlugin covers the rows of the table at otherPlugin, as steps of a
// node's life, until the first registration.
func TestOtherPlugin(t *testing.T) {
	type step struct {
		name    string
		restart bool // of the kubelet
		known   bool // the kubelet's list of allocatable devices is known
		listed  bool // with the resource
		waits   time.Duration
		ready   bool
	}
	for _, c := range []struct {
		name     string
		resource string
		alone    bool // no other socket
		takeOver bool
		steps    []step
	}{
		{name: "a foreign plugin", resource: resource, steps: []step{
			{"list unknown", false, false, false, 9 * time.Second, false},
			{"listed", false, true, true, 10 * time.Minute, true},
			{"list unknown later", false, false, false, 10 * time.Minute, true},
			{"kubelet restarted, list unknown", true, false, false, 10 * time.Minute, true},
			{"empty list", false, true, false, 8 * time.Second, true},
			{"the plugin registers again", false, true, true, time.Minute, true},
			{"kubelet restarted again, empty list", true, true, false, 9 * time.Second, true},
		}},
		{name: "the foreign plugin is removed", resource: resource, steps: []step{
			{"listed", false, true, true, 10 * time.Minute, true},
			{"not listed", false, true, false, 8 * time.Second, true},
		}},
		{name: "no foreign plugin", resource: resource, steps: []step{
			{"list unknown", false, false, false, 5 * time.Second, false},
			{"empty list", false, true, false, 0, false},
		}},
		{name: "the list remains unknown", resource: resource, steps: []step{
			{"at first", false, false, false, 5 * time.Second, false},
			{"kubelet restarted", true, false, false, 9 * time.Second, false},
		}},
		{name: "no other socket, list unknown", resource: resource, alone: true},
		{name: "take over", resource: resource, takeOver: true, steps: []step{{"listed", false, true, true, 0, false}}},
		{name: "withdrawn", resource: renamedResource, steps: []step{
			{"at first", false, true, false, 50 * time.Second, false},
			{"registered by an updated plugin", false, true, true, 5 * time.Second, false},
			{"updated again", false, true, false, 55 * time.Second, false},
			{"kubelet restarted", true, true, false, 59 * time.Second, false},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, s *bubbleFixture) {
				endKubelet := listenUnix(t, s.kubelet)
				defer func() { endKubelet() }()
				if !c.alone {
					defer listenUnix(t, filepath.Join(s.options.Dir, "other.sock"))()
				}
				set := func(step step) {
					a := allocation.Snapshot{Resources: allocation.NodeResources{AllocatableKnown: step.known}}
					if c.resource == renamedResource {
						a.All = parseAllocations(renamedResource + "=GPU-0").All
					}
					if step.listed {
						row := allocation.ResourceDevice{Resource: c.resource, ID: "GPU-0"}
						a.Resources.Allocatable.Devices = []allocation.ResourceDevice{row}
					}
					s.allocations.Set(a)
				}
				if len(c.steps) > 0 {
					set(c.steps[0])
				}
				s.options.TakeOver = c.takeOver
				defer s.start(t)()
				for _, step := range c.steps {
					if step.restart {
						endKubelet()
						time.Sleep(2 * time.Second)
					}
					set(step)
					if step.restart {
						endKubelet = listenUnix(t, s.kubelet)
					}
					time.Sleep(step.waits)
					n := s.attempts(c.resource)
					if step.waits > 0 && (n > 0 || c.resource == resource && (s.Ready() == nil) != step.ready) {
						t.Fatalf("%s: got %d registrations, readiness %v", step.name, n, s.Ready())
					}
				}
				time.Sleep(3 * time.Second)
				if s.attempts(c.resource) == 0 {
					t.Errorf("the resource is not registered:\n%s", &s.log)
				}
			})
		})
	}
}
