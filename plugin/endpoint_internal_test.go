package plugin

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// TestAnotherPluginsResource: whether a resource that the rules do not offer has another plugin,
// step by step.
func TestAnotherPluginsResource(t *testing.T) {
	type step struct {
		name    string
		after   time.Duration
		kubelet uint64
		known   bool // whether the kubelet says what is allocatable
		listed  bool
		want    bool
	}
	for name, steps := range map[string][]step{
		"another plugin has it": {
			{"not answered yet", 0, 1, false, false, true},
			{"listed", 0, 1, true, true, true},
			{"the kubelet does not answer", time.Hour, 1, false, false, true},
			{"nor the next one", time.Second, 2, false, false, true},
			{"the next one answers first", time.Second, 2, true, false, true},
			{"the other plugin has registered", kubeletStartTimeout - 2*time.Second, 2, true, true, true},
			{"a third one", time.Hour, 3, true, false, true},
			{"the other plugin does not come back", kubeletStartTimeout, 3, true, false, false},
		},
		"the other plugin is removed": {
			{"listed", 0, 1, true, true, true},
			{"an hour later it is not", time.Hour, 1, true, false, false},
		},
		"no other plugin": {
			{"not answered yet", 0, 1, false, false, true},
			{"answered", time.Second, 1, true, false, false},
		},
		"a kubelet that never answers": {
			{"at first", 0, 1, false, false, true},
			{"later", kubeletStartTimeout, 1, false, false, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := endpointFor("", Rules{})
				for _, s := range steps {
					time.Sleep(s.after)
					h := device.Allocations{Resources: device.NodeResources{AllocatableKnown: s.known}}
					if s.listed {
						h.Resources.AllocatableDevices = []device.ResourceDevice{{Resource: gpuResource, ID: "GPU-0"}}
					}
					e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
					if got := e.hasOtherPlugin(socketID{inode: s.kubelet}); got != s.want {
						t.Errorf("%s: another plugin may have it: %t", s.name, got)
					}
				}
			})
		})
	}
}

// TestOurOwnResourceIsNotAnotherPlugins: after a restart of the kubelet its last answer still
// lists what this process had registered.
func TestOurOwnResourceIsNotAnotherPlugins(t *testing.T) {
	e := endpointFor("", Rules{})
	e.other.registeredByUs = true
	h := device.Allocations{Resources: device.NodeResources{AllocatableKnown: true, AllocatableDevices: []device.ResourceDevice{{Resource: gpuResource, ID: "GPU-0"}}}}
	e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
	if !e.hasOtherPlugin(socketID{inode: 2}) {
		t.Error("it is registered while it is listed")
	}
	h.Resources.AllocatableDevices = nil
	if e.hasOtherPlugin(socketID{inode: 2}) {
		t.Error("it is not registered again though it is not listed")
	}
	h.Resources.AllocatableKnown = false
	if e.hasOtherPlugin(socketID{inode: 3}) {
		t.Error("it is not registered again while the kubelet does not answer")
	}
}

// TestSocketWithAReusedInode has a new socket that the file system gave the inode number of the old one.
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
		t.Errorf("socket %+v, before %+v: want another socket with the same inode", got, old)
	}
}
