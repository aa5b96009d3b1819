package device_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

func TestIdentities(t *testing.T) {
	const id = device.ID("GPU-5eed")
	for advertised, want := range map[device.AdvertisedID]device.ID{
		id.Advertised(): id, "GPU-5eed::0": id, "GPU-5eed::12": id, "MIG-1/2/3": "MIG-1/2/3", "": "", "::3": "",
	} {
		if got := advertised.Device(); got != want {
			t.Errorf("device of %q: got %q, want %q", advertised, got, want)
		}
	}
	if d := (device.Device{ID: id, GPU: "GPU-5eed"}); !d.WholeGPU() {
		t.Error("whole GPU reported as MIG device")
	}
	if d := (device.Device{ID: "MIG-1", GPU: "GPU-5eed"}); d.WholeGPU() {
		t.Error("MIG device reported as whole GPU")
	}
}

func TestAllocationState(t *testing.T) {
	row := func(id device.AdvertisedID, pod string) device.Allocation {
		h := device.Allocation{Resource: "nvidia.com/gpu", DeviceID: id}
		if pod != "" {
			h.Owner = device.Owner{Namespace: "n", Pod: pod, Container: "c"}
		}
		return h
	}
	list := device.Allocations{At: time.Now(), Complete: true, All: []device.Allocation{
		row("A", "one"), row("AA", "two"), row("B", ""), row("C::0", "one"), row("C::1", "two"), row("D::0", "one"), row("D::1", "one"),
	}}
	for id, want := range map[device.ID]device.AllocationState{
		"A": device.Allocated, "AA": device.Allocated, "B": device.AllocatedOwnerUnknown, "C": device.AllocatedShared, "D": device.Allocated, "E": device.Unallocated, "": device.Unallocated,
	} {
		state, owner := list.State(id)
		if state != want || (state == device.Allocated) != (owner != device.Owner{}) {
			t.Errorf("state of %s: got %d of %v, want %d", id, state, owner, want)
		}
	}
	incomplete := list
	incomplete.Complete = false
	if state, _ := incomplete.State("E"); state != device.AllocationUnknown {
		t.Error("state of a device without an allocation in an incomplete list: want unknown")
	}
	if state, _ := incomplete.State("A"); state != device.Allocated {
		t.Error("state of a device with an owner in an incomplete list: want allocated")
	}
	if state, _ := (device.Allocations{}).State("A"); state != device.AllocationUnknown {
		t.Error("state before the first response of the kubelet: want unknown")
	}
}

// TestOwnerOfContainersOfOnePod checks that containers of one pod that share a device have the pod as owner.
func TestOwnerOfContainersOfOnePod(t *testing.T) {
	pod := device.Owner{Namespace: "n", Pod: "one"}
	row := func(id device.AdvertisedID, pod, container string) device.Allocation {
		return device.Allocation{Resource: "nvidia.com/gpu", DeviceID: id, Owner: device.Owner{Namespace: "n", Pod: pod, Container: container}}
	}
	unnamed := device.Allocation{Resource: "nvidia.com/gpu", DeviceID: "D::2"}
	list := device.Allocations{All: []device.Allocation{
		row("A", "one", "c1"), row("A", "one", "c2"), row("B::0", "one", "c1"), row("B::1", "one", "c2"), row("B::2", "one", "c1"),
		row("C::0", "one", "c1"), row("C::1", "one", "c2"), row("C::2", "two", "c1"), row("D::0", "one", "c1"), row("D::1", "one", "c2"), unnamed,
	}}
	for id, want := range map[device.ID]device.Owner{"A": pod, "B": pod, "C": {}, "D": {}} {
		if state, owner := list.State(id); state != device.AllocatedShared || owner != want {
			t.Errorf("owner of %s: got %d of %v, want %v", id, state, owner, want)
		}
	}
}

// TestOwnerOfClaimedDevices checks that claims count only without a plugin's allocation. Monitoring pods have claims with admin access.
func TestOwnerOfClaimedDevices(t *testing.T) {
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
			t.Errorf("%s: got %d of %q, want %d of %q", c.name, state, owner.Pod, c.state, c.pod)
		}
	}
}

func TestDeviceCompare(t *testing.T) {
	want := []device.Device{
		{ID: "GPU-b", GPU: "GPU-b", Index: 0, MIGDeviceIndex: -1},
		{ID: "GPU-a", GPU: "GPU-a", Index: 1, MIGDeviceIndex: -1, MIGEnabled: true},
		{ID: "MIG-y", GPU: "GPU-a", Index: 1, MIGDeviceIndex: 0},
		{ID: "MIG-x", GPU: "GPU-a", Index: 1, MIGDeviceIndex: 3},
		{ID: "GPU-c", GPU: "GPU-c", Index: 1, MIGDeviceIndex: -1}, // GPU-a or GPU-c was removed
	}
	for i, a := range want {
		for j, b := range want {
			if got := a.Compare(b); got != cmp.Compare(i, j) {
				t.Errorf("%s compared with %s: got %d, want %d", a.ID, b.ID, got, cmp.Compare(i, j))
			}
		}
	}
}
