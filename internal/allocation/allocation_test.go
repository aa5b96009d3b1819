package allocation_test

import (
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
)

func TestAllocationState(t *testing.T) {
	row := func(id device.AdvertisedID, pod string) allocation.Allocation {
		h := allocation.Allocation{Resource: "nvidia.com/gpu", DeviceID: id}
		if pod != "" {
			h.Owner = allocation.Owner{Namespace: "n", Pod: pod, Container: "c"}
		}
		return h
	}
	list := allocation.Snapshot{At: time.Now(), Complete: true, All: []allocation.Allocation{
		row("A", "one"), row("AA", "two"), row("B", ""), row("C::0", "one"), row("C::1", "two"), row("D::0", "one"), row("D::1", "one"),
	}}
	for id, want := range map[device.ID]allocation.State{
		"A": allocation.Allocated, "AA": allocation.Allocated, "B": allocation.OwnerUnknown, "C": allocation.Shared, "D": allocation.Allocated, "E": allocation.Unallocated, "": allocation.Unallocated,
	} {
		state, owner := list.State(id)
		if state != want || (state == allocation.Allocated) != (owner != allocation.Owner{}) {
			t.Errorf("state of %s: got %d of %v, want %d", id, state, owner, want)
		}
	}
	incomplete := list
	incomplete.Complete = false
	if state, _ := incomplete.State("E"); state != allocation.Unknown {
		t.Error("state of a device without an allocation in an incomplete list: want unknown")
	}
	if state, _ := incomplete.State("A"); state != allocation.Allocated {
		t.Error("state of a device with an owner in an incomplete list: want allocated")
	}
	if state, _ := (allocation.Snapshot{}).State("A"); state != allocation.Unknown {
		t.Error("state before the first response of the kubelet: want unknown")
	}
}

// TestOwnerOfContainersOfOnePod checks that containers of one pod that share a device have the pod as owner.
func TestOwnerOfContainersOfOnePod(t *testing.T) {
	pod := allocation.Owner{Namespace: "n", Pod: "one"}
	row := func(id device.AdvertisedID, pod, container string) allocation.Allocation {
		return allocation.Allocation{Resource: "nvidia.com/gpu", DeviceID: id, Owner: allocation.Owner{Namespace: "n", Pod: pod, Container: container}}
	}
	unnamed := allocation.Allocation{Resource: "nvidia.com/gpu", DeviceID: "D::2"}
	list := allocation.Snapshot{All: []allocation.Allocation{
		row("A", "one", "c1"), row("A", "one", "c2"), row("B::0", "one", "c1"), row("B::1", "one", "c2"), row("B::2", "one", "c1"),
		row("C::0", "one", "c1"), row("C::1", "one", "c2"), row("C::2", "two", "c1"), row("D::0", "one", "c1"), row("D::1", "one", "c2"), unnamed,
	}}
	for id, want := range map[device.ID]allocation.Owner{"A": pod, "B": pod, "C": {}, "D": {}} {
		if state, owner := list.State(id); state != allocation.Shared || owner != want {
			t.Errorf("owner of %s: got %d of %v, want %v", id, state, owner, want)
		}
	}
}

// TestOwnerOfClaimedDevices checks that claims count only without a plugin's allocation. Monitoring pods have claims with admin access.
func TestOwnerOfClaimedDevices(t *testing.T) {
	const plugin, driver = "nvidia.com/gpu", "gpu.nvidia.com"
	row := func(resource, pod string) allocation.Allocation {
		h := allocation.Allocation{Resource: resource, DeviceID: "A"}
		if pod != "" {
			h.Owner = allocation.Owner{Namespace: "n", Pod: pod, Container: "c"}
		}
		return h
	}
	for _, c := range []struct {
		name  string
		rows  []allocation.Allocation
		state allocation.State
		pod   string
	}{
		{"a claim", []allocation.Allocation{row(driver, "one")}, allocation.Allocated, "one"},
		{"two claims", []allocation.Allocation{row(driver, "one"), row(driver, "two")}, allocation.Shared, ""},
		{"a claim beside the owner", []allocation.Allocation{row(driver, "monitor"), row(plugin, "one")}, allocation.Allocated, "one"},
		{"claims beside the owner", []allocation.Allocation{row(driver, "monitor"), row(driver, "other"), row(plugin, "one")}, allocation.Allocated, "one"},
		{"a claim beside two owners", []allocation.Allocation{row(driver, "one"), row(plugin, "one"), row(plugin, "two")}, allocation.Shared, ""},
		{"a claim beside an allocation without a name", []allocation.Allocation{row(driver, "monitor"), row(plugin, "")}, allocation.OwnerUnknown, ""},
	} {
		slices.SortFunc(c.rows, allocation.Compare)
		if state, owner := (allocation.Snapshot{All: c.rows}).State("A"); state != c.state || owner.Pod != c.pod {
			t.Errorf("%s: got %d of %q, want %d of %q", c.name, state, owner.Pod, c.state, c.pod)
		}
	}
}
