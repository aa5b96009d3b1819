package nvml

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

const claimUID = "dab5ab50-d59a-42a6-af16-cfd4628c0f7a"

// testBoard has four whole GPUs whose indices and minor numbers differ in part, one that is
// partitioned, and one that is gone:
//
//	GPU-0: index 0, minor 0   GPU-1: index 1, minor 2   GPU-2: index 2, minor 1
//	GPU-3: index 3, minor 7   GPU-4: index 4, minor 4, partitioned   GPU-9: index 5, minor 9, gone
func testBoard() []device.Status {
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
	board := []device.Status{gpu(0, 0), gpu(1, 2), gpu(2, 1), gpu(3, 7), gpu(4, 4)}
	board[4].MIGEnabled = true
	gone := gpu(9, 9)
	gone.Index, gone.Gone = 5, true
	former := migStatus("MIG-former", "1g.10gb", 19, 0, 1)
	former.Gone, former.Reason = true, "xid_79" // its GPU has a fault besides
	unplaced := migStatus("MIG-unplaced", "2g.20gb", 0, 0, 0)
	return append(board,
		migStatus("MIG-a", "1g.10gb", 19, 0, 1), former, migStatus("MIG-b", "1g.10gb+me", 20, 1, 1),
		migStatus("MIG-c", "1c.3g.40gb", 9, 4, 4), migStatus("MIG-d", "2c.3g.40gb", 9, 4, 4),
		migStatus("MIG-e", "1c.4g.40gb", 5, 8, 4), migStatus("MIG-f", "1c.4g.40gb", 5, 8, 4), unplaced, gone)
}

func TestClaimed(t *testing.T) {
	const (
		none  = ""
		other = "compute-domain.nvidia.com"
	)
	// What each age of the driver says beside the device's name. The names are as in
	// kubernetes-sigs/dra-driver-nvidia-gpu (mig_test.go), its pull request 852, and as
	// found on nodes.
	of2024 := func(name string) []string {
		return []string{cdiDevicePrefix + name, cdiClaimPrefix + claimUID + "-" + name}
	}
	of2025 := func(name string) []string { return []string{cdiDevicePrefix + name} } // a claim's only where it is shared
	of2026 := func(name string) []string { return []string{cdiClaimPrefix + claimUID + "-" + name} }
	for _, c := range []struct {
		why    string
		driver string // draDriver where empty
		name   string
		cdi    []string
		want   device.ID
	}{
		{why: "index and minor agree", name: "gpu-0", cdi: of2024("gpu-0"), want: "GPU-0"},
		{why: "the same of 2025", name: "gpu-0", cdi: of2025("gpu-0"), want: "GPU-0"},
		{why: "the same of 2026", name: "gpu-0", cdi: of2026("gpu-0"), want: "GPU-0"},
		{why: "by itself", name: "gpu-0", want: "GPU-0"},
		{why: "the minor number alone is one", name: "gpu-7", cdi: of2025("gpu-7"), want: "GPU-3"},
		{why: "the index alone is one", name: "gpu-3", cdi: of2024("gpu-3"), want: "GPU-3"},
		{why: "the index, where indices do not count", name: "gpu-3", cdi: of2026("gpu-3"), want: none},
		{why: "one's index, another's minor number", name: "gpu-1", cdi: of2024("gpu-1"), want: none},
		{why: "the same of 2025", name: "gpu-1", cdi: of2025("gpu-1"), want: none},
		{why: "of which 2026 knows one", name: "gpu-1", cdi: of2026("gpu-1"), want: "GPU-2"},
		{why: "without CDI names", name: "gpu-1", want: none},
		{why: "nobody's", name: "gpu-12", cdi: of2025("gpu-12"), want: none},
		{why: "a GPU that is gone is still held", name: "gpu-9", cdi: of2026("gpu-9"), want: "GPU-9"},
		{why: "a partitioned GPU cannot be held", name: "gpu-4", cdi: of2026("gpu-4"), want: none},
		{why: "a virtual machine's", name: "gpu-vfio-0", cdi: of2026("gpu-vfio-0"), want: none},

		{why: "a slice", name: "gpu-4-mig-19-0-1", cdi: of2024("gpu-4-mig-19-0-1"), want: "MIG-a"},
		{why: "a slice with media extensions", name: "gpu-4-mig-20-1-1", cdi: of2025("gpu-4-mig-20-1-1"), want: "MIG-b"},
		{why: "a slice of 2026", name: "gpu-4-mig-1g10gb-19-0", cdi: of2026("gpu-4-mig-1g10gb-19-0"), want: "MIG-a"},
		{why: "the same with media extensions", name: "gpu-4-mig-1g10gb-me-20-1", cdi: of2026("gpu-4-mig-1g10gb-me-20-1"), want: "MIG-b"},
		{why: "its name says enough", name: "gpu-4-mig-1g10gb-me-20-1", want: "MIG-b"},
		{why: "another profile at that place", name: "gpu-4-mig-15-0-2", cdi: of2025("gpu-4-mig-15-0-2"), want: none},
		{why: "another size", name: "gpu-4-mig-19-0-2", cdi: of2025("gpu-4-mig-19-0-2"), want: none},
		{why: "another place", name: "gpu-4-mig-1g10gb-19-3", cdi: of2026("gpu-4-mig-1g10gb-19-3"), want: none},
		{why: "another GPU's", name: "gpu-0-mig-1g10gb-19-0", cdi: of2026("gpu-0-mig-1g10gb-19-0"), want: none},
		{why: "two in one instance", name: "gpu-4-mig-9-4-4", cdi: of2025("gpu-4-mig-9-4-4"), want: none},
		{why: "whose profiles differ", name: "gpu-4-mig-2c3g40gb-9-4", cdi: of2026("gpu-4-mig-2c3g40gb-9-4"), want: "MIG-d"},
		{why: "two that are alike", name: "gpu-4-mig-1c4g40gb-5-8", cdi: of2026("gpu-4-mig-1c4g40gb-5-8"), want: none},
		{why: "one whose place is not known", name: "gpu-4-mig-2g20gb-0-0", cdi: of2026("gpu-4-mig-2g20gb-0-0"), want: none},

		{why: "the CDI name where the device's says nothing", name: "a", cdi: of2026("gpu-4-mig-1g10gb-19-0"), want: "MIG-a"},
		{why: "the standard device's", name: "", cdi: of2025("gpu-0"), want: "GPU-0"},
		{why: "its own name, beside another's", name: "gpu-0", cdi: of2026("gpu-7"), want: "GPU-0"},
		{why: "its own name, beside others' too", name: "gpu-7", cdi: slices.Concat(of2024("gpu-0"), of2024("gpu-7")), want: "GPU-3"},
		{why: "a slice's own name, beside others' too", name: "gpu-4-mig-1g10gb-me-20-1", cdi: slices.Concat(of2026("gpu-4-mig-1g10gb-19-0"), of2026("gpu-4-mig-1g10gb-me-20-1")), want: "MIG-b"},
		{why: "two CDI names that differ", cdi: []string{cdiDevicePrefix + "gpu-0", cdiClaimPrefix + claimUID + "-gpu-7"}, want: none},
		{why: "a claim without a device", name: "a", cdi: []string{cdiClaimPrefix + claimUID}, want: none},
		{why: "a simulated driver's", name: "gpu-0001-0001-0001-0001", want: none},
		{why: "nothing", want: none},

		{why: "by UUID, whoever's", driver: "gpu.example.com", name: "x", cdi: []string{"nvidia.com/gpu=GPU-1"}, want: "GPU-1"},
		{why: "a slice by UUID", driver: "gpu.example.com", name: "gpu-0", cdi: []string{"a.example/x=1", "nvidia.com/gpu=MIG-e"}, want: "MIG-e"},
		{why: "by UUID twice", name: "gpu-0", cdi: []string{"a.example/x=GPU-2", "nvidia.com/gpu=GPU-2"}, want: "GPU-2"},
		{why: "by two UUIDs", driver: "gpu.example.com", name: "gpu-0", cdi: []string{"nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"}, want: none},
		{why: "by its own name, beside two UUIDs", name: "gpu-0", cdi: []string{"nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"}, want: "GPU-0"},
		{why: "a UUID of another node", driver: "gpu.example.com", cdi: []string{"nvidia.com/gpu=GPU-77"}, want: none},
		{why: "another driver's", driver: "gpu.example.com", name: "gpu-0", cdi: []string{"gpu.example.com/gpu=gpu-0"}, want: none},
		{why: "IMEX channels", driver: other, name: "channel-0", cdi: []string{"k8s.compute-domain.nvidia.com/claim=" + claimUID + "-channel-0"}, want: none},
	} {
		claim := device.Claim{Driver: draDriver, Pool: "node-a", Device: c.name, CDI: c.cdi}
		if c.driver != "" {
			claim.Driver = c.driver
		}
		if got, ok := ClaimedDevice(claim, testBoard()); got != c.want || ok != (c.want != none) {
			t.Errorf("%s: %s by %q is %q, %t; want %q", c.why, c.name, c.cdi, got, ok, c.want)
		}
	}
}

func TestClaimedByNumbers(t *testing.T) {
	board := testBoard()[:1]
	board[0].Minor, board[0].Index = 3, 3
	if id, ok := ClaimedDevice(device.Claim{Driver: draDriver, Device: "gpu-3"}, board); !ok || id != "GPU-0" {
		t.Errorf("gpu-3 is %q", id)
	}
	board[0].Minor = -1 // NVML does not say
	for name, want := range map[string]device.ID{"gpu-3": "GPU-0", "gpu-5": ""} {
		if id, _ := ClaimedDevice(device.Claim{Driver: draDriver, Device: name}, board); id != want {
			t.Errorf("on a machine with one GPU %s is %q, want %q", name, id, want)
		}
	}
	two := slices.Concat(testBoard()[:1], board)
	two[1].ID, two[1].GPU, two[1].Index = "GPU-x", "GPU-x", 1
	if id, ok := ClaimedDevice(device.Claim{Driver: draDriver, Device: "gpu-0"}, two); ok {
		t.Errorf("gpu-0 is %q where another's minor number is not known", id)
	}
	if _, ok := ClaimedDevice(device.Claim{Driver: draDriver, Device: "gpu-0"}, nil); ok {
		t.Error("a device is found on an empty board")
	}
}

// TestClaimedOfOneInThePlaceOfOneThatIsGone: a GPU that was exchanged has the minor number
// of the one before it.
func TestClaimedOfOneInThePlaceOfOneThatIsGone(t *testing.T) {
	board := testBoard()[:1:1]
	old := board[0]
	old.ID, old.GPU, old.Gone = "GPU-old", "GPU-old", true
	board = append([]device.Status{old}, board...)
	claim := device.Claim{Driver: draDriver, Device: "gpu-0"}
	if id, _ := ClaimedDevice(claim, board); id != "GPU-0" {
		t.Errorf("gpu-0 is %q", id)
	}
}

// The inventory is asked about each claim with each answer of the kubelet's.
func TestClaimedAllocatesNothing(t *testing.T) {
	board := testBoard()
	for _, claim := range []device.Claim{
		{Driver: draDriver, Device: "gpu-7", CDI: []string{cdiClaimPrefix + claimUID + "-gpu-7"}},
		{Driver: draDriver, Device: "gpu-4-mig-20-1-1", CDI: []string{cdiDevicePrefix + "gpu-4-mig-20-1-1"}},
		{Driver: "gpu.example.com", Device: "gpu-0"},
	} {
		if n := testing.AllocsPerRun(100, func() { ClaimedDevice(claim, board) }); n > 0 {
			t.Errorf("%s: %v allocations", claim.Device, n)
		}
	}
}

// What is understood of a name is all that it says: written anew it is the same name.
func FuzzParseDRA(f *testing.F) {
	for _, name := range []string{
		"gpu-0", "gpu-12", "gpu-0-mig-19-0-1", "gpu-0-mig-1g5gb-19-0", "gpu-3-mig-1g5gb-me-19-4", "gpu-0-mig-1g18gb-19-0",
		"gpu-0-mig-1g24gb-me-20-5", "gpu-vfio-0", "gpu-00", "gpu-0-mig-19-0-0", "gpu--mig---", "gpu-0-mig--1-1",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, ok := parseDRAName(text)
		if !ok {
			return
		}
		written := fmt.Sprintf("gpu-%d", name.number)
		switch {
		case name.wholeGPU:
		case name.size > 0:
			written += fmt.Sprintf("-mig-%d-%d-%d", name.profile, name.start, name.size)
		default:
			written += fmt.Sprintf("-mig-%s-%d-%d", name.profileName, name.profile, name.start)
		}
		if written != text {
			t.Errorf("%q is read as %q", text, written)
		}
		if strings.Contains(text, "vfio") && name.wholeGPU {
			t.Errorf("%q is taken for a GPU", text)
		}
	})
}
