package plugin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestOtherPlugin covers the rows of the table at otherPlugin, as steps of a node's life.
func TestOtherPlugin(t *testing.T) {
	type step struct {
		name   string
		after  time.Duration
		away   bool // no kubelet listened until now
		known  bool // the kubelet's list of allocatable devices is known
		listed bool
		want   bool
	}
	for name, steps := range map[string][]step{
		"a foreign plugin": {
			{"list unknown", 0, false, false, false, true},
			{"listed", time.Hour, false, true, true, true},
			{"list unknown later", time.Hour, false, false, false, true},
			{"kubelet restarted, list unknown", time.Hour, true, false, false, true},
			{"empty list", time.Second, false, true, false, true},
			{"the plugin registers again", kubeletStartTimeout - 2*time.Second, false, true, true, true},
			{"kubelet restarted again, empty list", time.Hour, true, true, false, true},
			{"the plugin does not register again", kubeletStartTimeout, false, true, false, false},
		},
		"the foreign plugin is removed": {
			{"listed", 0, false, true, true, true},
			{"an hour later, not listed", time.Hour, false, true, false, false},
		},
		"no foreign plugin": {
			{"list unknown", 0, false, false, false, true},
			{"empty list", time.Second, false, true, false, false},
			{"list unknown later", kubeletStartTimeout, false, false, false, false},
		},
		"withdrawn": {
			{"at first", 0, false, true, false, true},
			{"a plugin is updated", 50 * time.Second, false, true, false, true},
			{"registered by the updated plugin", 5 * time.Second, false, true, true, true},
			{"updated again", 50 * time.Second, false, true, false, true},
			{"kubelet restarted", time.Hour, true, true, false, true},
			{"no plugin for a minute", time.Minute, false, true, false, false},
		},
		"the list remains unknown": {
			{"at first", 0, false, false, false, true},
			{"kubelet restarted", time.Hour, true, false, false, true},
			{"later", kubeletStartTimeout, false, false, false, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				e := endpointFor("", Rules{})
				e.devices.Set(&deviceList{withdrawn: name == "withdrawn"})
				for _, s := range steps {
					time.Sleep(s.after)
					if s.away {
						e.other.onKubeletAway(time.Now())
					}
					h := device.Allocations{Resources: device.NodeResources{AllocatableKnown: s.known}}
					if s.listed {
						h.Resources.Allocatable.Devices = []device.ResourceDevice{{Resource: gpuResource, ID: "GPU-0"}}
					}
					e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
					if got := e.hasOtherPlugin(); got != s.want {
						t.Errorf("%s: got foreign plugin %t, want %t", s.name, got, s.want)
					}
				}
			})
		})
	}
}

// TestOtherPluginWhileTheKubeletIsAway checks that a foreign plugin has time to register again after any absence of the kubelet.
func TestOtherPluginWhileTheKubeletIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		e := endpointFor(t.TempDir(), Rules{}, parseStatuses("0")...)
		e.other.seen = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*kubeletStartTimeout)
		defer cancel()
		e.waitForKubelet(ctx, backoff{})
		if !e.hasOtherPlugin() {
			t.Error("after 50 s without a kubelet: got no foreign plugin")
		}
	})
}

// TestOtherPluginAfterAnOwnRegistration checks that the last response of a restarted kubelet still lists this process's registration.
func TestOtherPluginAfterAnOwnRegistration(t *testing.T) {
	e := endpointFor("", Rules{})
	e.other.registeredByUs = true
	h := device.Allocations{Resources: device.NodeResources{
		AllocatableKnown: true, Allocatable: device.ResourceSet{Devices: []device.ResourceDevice{{Resource: gpuResource, ID: "GPU-0"}}},
	}}
	e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
	if !e.hasOtherPlugin() {
		t.Error("while the old registration is listed: got no foreign plugin")
	}
	h.Resources.Allocatable.Devices = nil
	if e.hasOtherPlugin() {
		t.Error("resource not listed: got a foreign plugin")
	}
	h.Resources.AllocatableKnown = false
	if e.hasOtherPlugin() {
		t.Error("resource registered by this process: got a foreign plugin")
	}
}

// TestFirstRegistrationWaits checks that a first registration waits for a foreign plugin, and without the list of allocatable devices for
// a foreign socket, for a limited time.
func TestFirstRegistrationWaits(t *testing.T) {
	dir := t.TempDir()
	e := endpointFor(dir, Rules{}, parseStatuses("0")...)
	if e.waitsForOtherPlugin() {
		t.Error("without another socket: waits")
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "other.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was sent
	if !e.waitsForOtherPlugin() || e.ready() == nil {
		t.Error("with another socket, allocatable devices unknown: does not wait, or is ready")
	}
	e.other.since = time.Now().Add(-kubeletStartTimeout)
	if e.waitsForOtherPlugin() {
		t.Error("allocatable devices unknown for 10 s: waits")
	}
	h := device.Allocations{Resources: device.NodeResources{
		AllocatableKnown: true, Allocatable: device.ResourceSet{Devices: []device.ResourceDevice{{Resource: gpuResource, ID: "GPU-0"}}},
	}}
	e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
	if !e.waitsForOtherPlugin() || e.ready() != nil {
		t.Error("resource of another plugin: does not wait, or is not ready")
	}
	if e.TakeOver = true; e.waitsForOtherPlugin() {
		t.Error("--take-over: waits")
	}
	e.TakeOver, e.other.registeredByUs = false, true
	if e.waitsForOtherPlugin() {
		t.Error("registered by this process: waits")
	}
}

// TestSocketWithAReusedInode covers a new socket with the inode number of the old socket.
func TestSocketWithAReusedInode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was sent
	old := statSocket(path)
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if got := statSocket(path); got == old || got.inode != old.inode {
		t.Errorf("socket: got %+v, before %+v, want another socket with the same inode", got, old)
	}
}
