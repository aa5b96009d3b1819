package device_test

import (
	"cmp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func TestIdentities(t *testing.T) {
	const id = device.ID("GPU-5eed")
	for offered, want := range map[device.AdvertisedID]device.ID{
		id.Advertised(): id, "GPU-5eed::0": id, "GPU-5eed::12": id, "MIG-1/2/3": "MIG-1/2/3", "": "", "::3": "",
	} {
		if got := offered.Device(); got != want {
			t.Errorf("%q is offered for %q, want %q", offered, got, want)
		}
	}
	if d := (device.Device{ID: id, GPU: "GPU-5eed"}); !d.WholeGPU() {
		t.Error("a whole GPU is not seen as one")
	}
	if d := (device.Device{ID: "MIG-1", GPU: "GPU-5eed"}); d.WholeGPU() {
		t.Error("a slice is seen as a whole GPU")
	}
}

func TestHoldersOf(t *testing.T) {
	row := func(id device.AdvertisedID, pod string) device.Allocation {
		h := device.Allocation{Resource: "nvidia.com/gpu", DeviceID: id}
		if pod != "" {
			h.Owner = device.Owner{Namespace: "n", Pod: pod, Container: "c"}
		}
		return h
	}
	known := device.Allocations{At: time.Now(), Complete: true, All: []device.Allocation{
		row("A", "one"), row("AA", "two"), row("B", ""), row("C::0", "one"), row("C::1", "two"), row("D::0", "one"), row("D::1", "one"),
	}}
	for id, want := range map[device.ID]device.AllocationState{
		"A": device.Allocated, "AA": device.Allocated, "B": device.AllocatedOwnerUnknown, "C": device.AllocatedShared, "D": device.Allocated, "E": device.Unallocated, "": device.Unallocated,
	} {
		hold, owner := known.State(id)
		if hold != want || (hold == device.Allocated) != (owner != device.Owner{}) {
			t.Errorf("%s: %d by %v, want %d", id, hold, owner, want)
		}
	}
	unsettled := known
	unsettled.Complete = false
	if hold, _ := unsettled.State("E"); hold != device.AllocationUnknown {
		t.Error("before anything is settled, a device that nobody names is taken for idle")
	}
	if hold, _ := unsettled.State("A"); hold != device.Allocated {
		t.Error("a named holder is not taken before all is settled")
	}
	if hold, _ := (device.Allocations{}).State("A"); hold != device.AllocationUnknown {
		t.Error("a device is known to be idle before the kubelet has said anything")
	}
}

// TestHoldersOfOnePod: containers of one pod that share a device leave its owner the pod.
func TestHoldersOfOnePod(t *testing.T) {
	pod := device.Owner{Namespace: "n", Pod: "one"}
	row := func(id device.AdvertisedID, pod, container string) device.Allocation {
		return device.Allocation{Resource: "nvidia.com/gpu", DeviceID: id, Owner: device.Owner{Namespace: "n", Pod: pod, Container: container}}
	}
	unnamed := device.Allocation{Resource: "nvidia.com/gpu", DeviceID: "D::2"}
	known := device.Allocations{All: []device.Allocation{
		row("A", "one", "c1"), row("A", "one", "c2"), row("B::0", "one", "c1"), row("B::1", "one", "c2"), row("B::2", "one", "c1"),
		row("C::0", "one", "c1"), row("C::1", "one", "c2"), row("C::2", "two", "c1"), row("D::0", "one", "c1"), row("D::1", "one", "c2"), unnamed,
	}}
	for id, want := range map[device.ID]device.Owner{"A": pod, "B": pod, "C": {}, "D": {}} {
		if state, owner := known.State(id); state != device.AllocatedShared || owner != want {
			t.Errorf("%s: %d of %v, want %v", id, state, owner, want)
		}
	}
}

// TestHoldersOfClaimedDevices: an allocation by a device plugin decides, whatever claims
// exist beside it, such as those with admin access of monitoring pods.
func TestHoldersOfClaimedDevices(t *testing.T) {
	const plugin, driver = "nvidia.com/gpu", "gpu.nvidia.com"
	row := func(resource, pod string) device.Allocation {
		h := device.Allocation{Resource: resource, DeviceID: "A"}
		if pod != "" {
			h.Owner = device.Owner{Namespace: "n", Pod: pod, Container: "c"}
		}
		return h
	}
	for _, c := range []struct {
		name  string
		rows  []device.Allocation
		state device.AllocationState
		pod   string
	}{
		{"a claim", []device.Allocation{row(driver, "one")}, device.Allocated, "one"},
		{"two claims", []device.Allocation{row(driver, "one"), row(driver, "two")}, device.AllocatedShared, ""},
		{"a claim beside the owner", []device.Allocation{row(driver, "monitor"), row(plugin, "one")}, device.Allocated, "one"},
		{"claims beside the owner", []device.Allocation{row(driver, "monitor"), row(driver, "other"), row(plugin, "one")}, device.Allocated, "one"},
		{"a claim beside two owners", []device.Allocation{row(driver, "one"), row(plugin, "one"), row(plugin, "two")}, device.AllocatedShared, ""},
		{"a claim beside an allocation without a name", []device.Allocation{row(driver, "monitor"), row(plugin, "")}, device.AllocatedOwnerUnknown, ""},
	} {
		slices.SortFunc(c.rows, device.CompareAllocations)
		if state, owner := (device.Allocations{All: c.rows}).State("A"); state != c.state || owner.Pod != c.pod {
			t.Errorf("%s: %d of %q, want %d of %q", c.name, state, owner.Pod, c.state, c.pod)
		}
	}
}

func TestBoardLosesNoChange(t *testing.T) {
	var b device.Inventory
	if statuses, _ := b.Get(); statuses != nil {
		t.Error("something is on a new board")
	}
	const posts = 1000
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for seen := 0; seen < posts; {
				statuses, changed := b.Get()
				if len(statuses) < seen {
					t.Error("the board went back")
					return
				}
				if seen = len(statuses); seen < posts {
					<-changed
				}
			}
		})
	}
	all := make([]device.Status, posts)
	b.Set(nil)
	if statuses, _ := b.Get(); statuses == nil {
		t.Error("no devices is not told from nothing known")
	}
	for n := range posts {
		b.Set(all[:n+1])
	}
	readers.Wait()
}

func TestOrderOfDevices(t *testing.T) {
	want := []device.Device{
		{ID: "GPU-b", GPU: "GPU-b", Index: 0, MIGDeviceIndex: -1},
		{ID: "GPU-a", GPU: "GPU-a", Index: 1, MIGDeviceIndex: -1, MIGEnabled: true},
		{ID: "MIG-y", GPU: "GPU-a", Index: 1, MIGDeviceIndex: 0},
		{ID: "MIG-x", GPU: "GPU-a", Index: 1, MIGDeviceIndex: 3},
		{ID: "GPU-c", GPU: "GPU-c", Index: 1, MIGDeviceIndex: -1}, // one of the two is gone
	}
	for i, a := range want {
		for j, b := range want {
			if got := a.Compare(b); got != cmp.Compare(i, j) {
				t.Errorf("%s against %s: %d", a.ID, b.ID, got)
			}
		}
	}
}
