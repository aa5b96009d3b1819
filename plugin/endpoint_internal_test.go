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

// TestOtherPlugin has the rows of the table at otherPlugin, as steps of a node's life.
func TestOtherPlugin(t *testing.T) {
	type step struct {
		name    string
		after   time.Duration
		kubelet uint64
		known   bool // the kubelet's list of allocatable devices is known
		listed  bool
		want    bool
	}
	for name, steps := range map[string][]step{
		"a foreign plugin": {
			{"list unknown", 0, 1, false, false, true},
			{"listed", 0, 1, true, true, true},
			{"list unknown later", time.Hour, 1, false, false, true},
			{"second kubelet, list unknown", time.Second, 2, false, false, true},
			{"second kubelet, empty list", time.Second, 2, true, false, true},
			{"the plugin registers again", kubeletStartTimeout - 2*time.Second, 2, true, true, true},
			{"third kubelet, empty list", time.Hour, 3, true, false, true},
			{"the plugin does not register again", kubeletStartTimeout, 3, true, false, false},
		},
		"the foreign plugin is removed": {
			{"listed", 0, 1, true, true, true},
			{"an hour later, not listed", time.Hour, 1, true, false, false},
		},
		"no foreign plugin": {
			{"list unknown", 0, 1, false, false, true},
			{"empty list", time.Second, 1, true, false, false},
		},
		"the list stays unknown": {
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
						t.Errorf("%s: foreign plugin: %t, want %t", s.name, got, s.want)
					}
				}
			})
		})
	}
}

// TestOtherPluginAfterAnOwnRegistration: the last answer of a restarted kubelet still lists the registration of this process.
func TestOtherPluginAfterAnOwnRegistration(t *testing.T) {
	e := endpointFor("", Rules{})
	e.other.registeredByUs = true
	h := device.Allocations{Resources: device.NodeResources{AllocatableKnown: true, AllocatableDevices: []device.ResourceDevice{{Resource: gpuResource, ID: "GPU-0"}}}}
	e.fakeSource().GetAllocations = func() (device.Allocations, <-chan struct{}) { return h, nil }
	if !e.hasOtherPlugin(socketID{inode: 2}) {
		t.Error("no foreign plugin while the old registration is listed")
	}
	h.Resources.AllocatableDevices = nil
	if e.hasOtherPlugin(socketID{inode: 2}) {
		t.Error("foreign plugin, but the resource is not listed")
	}
	h.Resources.AllocatableKnown = false
	if e.hasOtherPlugin(socketID{inode: 3}) {
		t.Error("foreign plugin, but this process registered the resource")
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
