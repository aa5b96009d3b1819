package plugin

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/bubble"
)

// TestOtherPlugin covers the rows of the table at otherPlugin, as steps of a
// node's life.
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
		"registered by this process": {
			{"the old registration is listed", 0, false, true, true, true},
			{"not listed", 0, false, true, false, false},
			{"list unknown", 0, false, false, false, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				e := endpointFor("", Rules{}, nil)
				e.devices.Set(&deviceList{withdrawn: name == "withdrawn"})
				e.other.registeredByUs = name == "registered by this process"
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
					if got := e.other.serves(); got != s.want {
						t.Errorf("%s: got foreign plugin %t, want %t", s.name, got, s.want)
					}
				}
			})
		})
	}
}

// TestOtherPluginWhileTheKubeletIsAway checks that a foreign plugin has time to
// register again after any absence of the kubelet.
func TestOtherPluginWhileTheKubeletIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		e := endpointFor(t.TempDir(), Rules{}, ParseStatuses("0"))
		e.other.seen = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*kubeletStartTimeout)
		defer cancel()
		e.waitForKubelet(ctx, backoff{})
		if !e.other.serves() {
			t.Error("after 50 s without a kubelet: got no foreign plugin")
		}
	})
}

// TestFirstRegistrationWaits checks that a first registration waits for a
// foreign plugin, and without the list of allocatable devices for a foreign
// socket, for a limited time.
func TestFirstRegistrationWaits(t *testing.T) {
	dir := t.TempDir()
	e := endpointFor(dir, Rules{}, ParseStatuses("0"))
	if e.other.blocks() {
		t.Error("without another socket: waits")
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "other.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing was sent
	if !e.other.blocks() || e.ready() == nil {
		t.Error("with another socket, allocatable devices unknown: does not wait, or is ready")
	}
	e.other.since = time.Now().Add(-kubeletStartTimeout)
	if e.other.blocks() {
		t.Error("allocatable devices unknown for 10 s: waits")
	}
	h := device.Allocations{Resources: device.NodeResources{
		AllocatableKnown: true, Allocatable: device.ResourceSet{Devices: []device.ResourceDevice{{
			Resource: gpuResource,
			ID:       "GPU-0",
		}}},
	}}
	e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
	if !e.other.blocks() || e.ready() != nil {
		t.Error("resource of another plugin: does not wait, or is not ready")
	}
	if e.TakeOver = true; e.other.blocks() {
		t.Error("--take-over: waits")
	}
	e.TakeOver, e.other.registeredByUs = false, true
	if e.other.blocks() {
		t.Error("registered by this process: waits")
	}
}
