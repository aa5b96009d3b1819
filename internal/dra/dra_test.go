package dra_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/allocation"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/dra"
)

// testStatuses has four whole GPUs, a partitioned GPU and a lost GPU. Some
// indices differ from the minor numbers:
//
//	GPU-0: index 0, minor 0   GPU-1: index 1, minor 2   GPU-2: index 2, minor 1
//	GPU-3: index 3, minor 7   GPU-4: index 4, minor 4, partitioned   GPU-9: index 5, minor 9, gone
func testStatuses() []device.Status {
	gpu := func(index, minor int) device.Status {
		id := fmt.Sprintf("GPU-%d", index)
		return device.Status{Device: device.Device{
			ID: device.ID(id), GPU: device.GPU(id), Index: index, Minor: minor, MIGDeviceIndex: -1, GI: -1, CI: -1,
		}}
	}
	migStatus := func(id, profile string, number, start, size int) device.Status {
		s := gpu(4, 4)
		s.ID, s.Profile, s.MIGDeviceIndex = device.ID(id), profile, 0
		s.Placement = device.Placement{Profile: number, Start: start, Size: size}
		return s
	}
	statuses := []device.Status{gpu(0, 0), gpu(1, 2), gpu(2, 1), gpu(3, 7), gpu(4, 4)}
	statuses[4].MIGEnabled = true
	gone := gpu(9, 9)
	gone.Index, gone.Gone = 5, true
	former := migStatus("MIG-former", "1g.10gb", 19, 0, 1)
	former.Gone, former.Reason = true, "xid_79"
	unplaced := migStatus("MIG-unplaced", "2g.20gb", 0, 0, 0)
	return append(statuses,
		migStatus("MIG-a", "1g.10gb", 19, 0, 1), former, migStatus("MIG-b", "1g.10gb+me", 20, 1, 1),
		migStatus("MIG-c", "1c.3g.40gb", 9, 4, 4), migStatus("MIG-d", "2c.3g.40gb", 9, 4, 4),
		migStatus("MIG-e", "1c.4g.40gb", 5, 8, 4), migStatus("MIG-f", "1c.4g.40gb", 5, 8, 4), unplaced, gone)
}

const draDriver = "gpu.nvidia.com"

func TestClaimedDevice(t *testing.T) {
	const other = "gpu.example.com"
	uuids := func(ids ...string) (names []string) {
		for _, id := range ids {
			names = append(names, "nvidia.com/gpu="+id)
		}
		return names
	}
	for _, c := range []struct {
		what   string
		driver string // default: draDriver
		name   string
		cdi    []string
		want   device.ID
	}{
		{what: "whole GPU", name: "gpu-0", want: "GPU-0"},
		{what: "minor number above all indices", name: "gpu-7", want: "GPU-3"},
		{what: "minor number that is another GPU's index", name: "gpu-1", want: "GPU-2"},
		{what: "index without a minor number", name: "gpu-3"},
		{what: "unknown number", name: "gpu-12"},
		{what: "lost GPU, still allocated", name: "gpu-9", want: "GPU-9"},
		{what: "partitioned GPU", name: "gpu-4"},
		{what: "GPU of a virtual machine", name: "gpu-vfio-0"},
		{what: "number with a zero", name: "gpu-00"},

		{what: "MIG device of 2025", name: "gpu-4-mig-19-0-1", want: "MIG-a"},
		{what: "media extensions, 2025", name: "gpu-4-mig-20-1-1", want: "MIG-b"},
		{what: "MIG device of 2026", name: "gpu-4-mig-1g10gb-19-0", want: "MIG-a"},
		{what: "media extensions, 2026", name: "gpu-4-mig-1g10gb-me-20-1", want: "MIG-b"},
		{what: "another profile at the place", name: "gpu-4-mig-15-0-2"},
		{what: "another size", name: "gpu-4-mig-19-0-2"},
		{what: "another place", name: "gpu-4-mig-1g10gb-19-3"},
		{what: "another GPU", name: "gpu-0-mig-1g10gb-19-0"},
		{what: "two in one GPU instance", name: "gpu-4-mig-9-4-4"},
		{what: "two in one GPU instance, 2026", name: "gpu-4-mig-1c4g40gb-5-8"},
		{what: "unknown place", name: "gpu-4-mig-2g20gb-0-0"},
		{what: "simulated driver", name: "gpu-0001-0001-0001-0001"},
		{what: "empty"},

		{what: "UUID, any driver", driver: other, name: "x", cdi: uuids("GPU-1"), want: "GPU-1"},
		{what: "MIG device by UUID", driver: other, name: "gpu-0", cdi: append(uuids("MIG-e"), "a.example/x=1"), want: "MIG-e"},
		{what: "the same UUID twice", name: "gpu-0", cdi: []string{"a.example/x=GPU-2", "nvidia.com/gpu=GPU-2"}, want: "GPU-2"},
		{what: "two UUIDs", driver: other, name: "gpu-0", cdi: uuids("GPU-1", "GPU-2")},
		{what: "name beside two UUIDs", name: "gpu-0", cdi: uuids("GPU-1", "GPU-2"), want: "GPU-0"},
		{what: "UUID of another node", driver: other, cdi: uuids("GPU-77")},
		{what: "another driver", driver: other, name: "gpu-0", cdi: []string{"gpu.example.com/gpu=gpu-0"}},
	} {
		claim := allocation.Claim{Driver: cmp.Or(c.driver, draDriver), Pool: "node-a", Device: c.name, CDI: c.cdi}
		if got, ok := dra.ClaimedDevice(claim, testStatuses()); got != c.want || ok != (c.want != "") {
			t.Errorf("%s: %s with CDI names %q got %q, %t; want %q", c.what, c.name, c.cdi, got, ok, c.want)
		}
	}
	if _, ok := dra.ClaimedDevice(allocation.Claim{Driver: draDriver, Device: "gpu-0"}, nil); ok {
		t.Error("claim without devices: got a device, want none")
	}
}

// TestClaimedReplacement has a replaced GPU with the minor number of its
// predecessor.
func TestClaimedReplacement(t *testing.T) {
	statuses := testStatuses()[:1:1]
	old := statuses[0]
	old.ID, old.GPU, old.Gone = "GPU-old", "GPU-old", true
	statuses = append([]device.Status{old}, statuses...)
	claim := allocation.Claim{Driver: draDriver, Device: "gpu-0"}
	if id, _ := dra.ClaimedDevice(claim, statuses); id != "GPU-0" {
		t.Errorf("gpu-0: got %q, want GPU-0", id)
	}
}

// FuzzClaimedDevice uses device names of any driver. The name of a MIG device
// must match the device's GPU and placement.
func FuzzClaimedDevice(f *testing.F) {
	for _, name := range []string{
		"gpu-0", "gpu-12", "gpu-4-mig-19-0-1", "gpu-4-mig-1g10gb-19-0", "gpu-4-mig-1g10gb-me-20-1", "gpu-vfio-0",
		"gpu-00", "gpu-4-mig---", "gpu-4-mig--19-0",
	} {
		f.Add(name)
	}
	statuses := testStatuses()
	f.Fuzz(func(t *testing.T, name string) {
		id, ok := dra.ClaimedDevice(allocation.Claim{Driver: draDriver, Device: name}, statuses)
		if !ok {
			return
		}
		s := statuses[slices.IndexFunc(statuses, func(s device.Status) bool { return s.ID == id })]
		p := s.Placement
		switch gpu := fmt.Sprintf("gpu-%d", s.Minor); {
		case s.WholeGPU() && name == gpu:
		case name == fmt.Sprintf("%s-mig-%d-%d-%d", gpu, p.Profile, p.Start, p.Size):
		case strings.HasPrefix(name, gpu+"-mig") && strings.HasSuffix(name, fmt.Sprintf("-%d-%d", p.Profile, p.Start)):
		default:
			t.Errorf("%q: got %s, which has another name", name, id)
		}
	})
}
