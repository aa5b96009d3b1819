package preferred_test

import (
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
)

func TestWholeGPUsOfKnownMachines(t *testing.T) {
	for _, c := range []struct {
		name            string
		machine         machine
		available, must string
		size            int
		want            string
	}{
		{"DGX A100: a pair on the same switches", dgxA100(), "0-7", "", 2, "0 1"},
		{"DGX A100: the partner of a required GPU", dgxA100(), "0-7", "5", 2, "5 4"},
		{"DGX A100: the partner of a lost GPU", dgxA100(), "1-7", "", 1, "1"},
		{"DGX A100: a lost GPU, a pair", dgxA100(), "1-7", "", 2, "2 3"},
		{"DGX A100: a lost GPU, a pair and the single GPU", dgxA100(), "1-7", "", 3, "1-3"},
		{"DGX A100: a lost GPU, two pairs", dgxA100(), "1-7", "", 4, "2-5"},
		{"DGX A100: all", dgxA100(), "0-7", "", 8, "0-7"},
		{"DGX H100: a GPU", dgxH100(), "0-7", "", 1, "0"},
		{"DGX H100: a socket", dgxH100(), "0-7", "", 4, "0-3"},
		{"DGX H100: a lost GPU, the whole socket", dgxH100(), "0-1 3-7", "", 4, "4-7"},
		{"DGX H100: a lost GPU, the rest of the socket", dgxH100(), "0-1 3-7", "", 3, "0 1 3"},
		{"DGX H100: a lost GPU, from the broken socket", dgxH100(), "0-6", "", 2, "4 5"},
		{"DGX H100: the socket of a required GPU", dgxH100(), "0-7", "6", 4, "6 4 5 7"},
		{"DGX-1V: the first with two NVLinks and a switch", dgx1V(), "0-7", "", 2, "2 3"},
		{"DGX-1V: the second", dgx1V(), "0 1 4-7", "", 2, "6 7"},
		{"DGX-1V: across the sockets, where the NVLinks are", dgx1V(), "0 1 4 5", "", 2, "0 4"},
		{"DGX-1V: three", dgx1V(), "0-7", "", 3, "0 2 3"},
		{"DGX-1V: a side of the cube", dgx1V(), "0-7", "", 4, "0-3"},
		{"DGX-1V: the side of a required GPU", dgx1V(), "0-7", "7", 4, "7 4-6"},
		{"bridged: a pair", bridged(8), "0-7", "", 2, "0 1"},
		{"bridged: the unallocated pair", bridged(8), "1 2 4 5", "", 2, "4 5"},
		{"bridged: a socket remains whole", bridged(8), "0-5", "", 2, "4 5"},
		{"bridged: a GPU outside the pair", bridged(8), "0-2", "", 1, "2"},
		{"bridged: a GPU outside both pairs", bridged(8), "0 1 4 5 7", "", 1, "7"},
		{"bridged: a pair and the neighbour", bridged(8), "0 1 4 5 7", "", 3, "4 5 7"},
		{"bridged: a socket", bridged(8), "0 1 4-7", "", 4, "4-7"},
		{"bridged: the partner of a required GPU", bridged(8), "0-7", "3", 2, "3 2"},
		{"bridged: two required GPUs", bridged(8), "0-7", "0 6", 3, "0 6 1"},
		{"DGX-2: a pair", dgx2(), "0-15", "", 2, "0 1"},
		{"DGX-2: four", dgx2(), "0-15", "", 4, "0-3"},
		{"DGX-2: eight", dgx2(), "0-15", "", 8, "0-7"},
		{"DGX-2: twelve", dgx2(), "0-15", "", 12, "0-11"},
		{"DGX-2: all GPUs except the last", dgx2(), "0-15", "", 15, "0-14"},
		{"DGX-2: a lost GPU, three of the same four", dgx2(), "0-2 4-15", "", 3, "0-2"},
		{"DGX-2: a lost GPU, a whole four", dgx2(), "0-2 4-15", "", 4, "4-7"},
		{"DGX-2: a lost GPU, a whole socket", dgx2(), "0-2 4-15", "", 8, "8-15"},
		{"DGX-2: a lost GPU, a GPU", dgx2(), "0-2 4-15", "", 1, "2"},
		{"16 bridged: the GPU without a partner", bridged(16), "0-4 6-15", "", 1, "4"},
		{"16 bridged: a pair of the broken socket", bridged(16), "0-4 6-15", "", 2, "0 1"},
		{"16 bridged: a whole socket", bridged(16), "0-4 6-15", "", 8, "8-15"},
		{"16 bridged: pairs within a socket", bridged(16), "0 1 3 5 7-15", "", 6, "8-13"},
	} {
		r := preferred.AllocationRequest{Available: parseGPUs(t, c.available), Must: parseGPUs(t, c.must), Size: c.size}
		got, want := c.machine.topology().Prefer(r, preferred.Distributed), parseGPUs(t, c.want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", c.name, got, want)
		}
	}
}

// TestWholeGPUsLinks requests two of three GPUs in the same NUMA node, with
// links as drivers report them.
func TestWholeGPUsLinks(t *testing.T) {
	up := func(a, b, nvlinks int) device.Link { return device.Link{A: gpu(a), B: gpu(b), NVLinks: nvlinks} }
	by := func(a, b int, path device.Path) device.Link { return device.Link{A: gpu(a), B: gpu(b), Path: path} }
	for _, c := range []struct {
		name  string
		links []device.Link
		want  string
	}{
		{"none", nil, "0 1"},
		{"a single direction", []device.Link{up(2, 1, 1)}, "1 2"},
		{"a lane is down at a side", []device.Link{up(0, 1, 4), up(1, 0, 3), up(1, 2, 4), up(2, 1, 4)}, "1 2"},
		{"all are down at a side", []device.Link{up(0, 1, 4), up(1, 0, 0), up(0, 2, 1)}, "0 2"},
		{"two different reports", []device.Link{up(0, 1, 4), up(0, 1, 1), up(1, 2, 2)}, "1 2"},
		{"from a GPU to the same GPU", []device.Link{up(0, 0, 12), up(1, 2, 1)}, "1 2"},
		{"of an unknown GPU", []device.Link{up(0, 7, 12), up(7, 0, 12), up(7, 8, 12), up(1, 2, 1)}, "1 2"},
		{
			"an NVLink counts more than a common board",
			[]device.Link{by(0, 1, device.PathSameBoard), up(1, 2, 1)},
			"1 2",
		},
		{
			"a path unknown to a side",
			[]device.Link{by(1, 2, device.PathSingleSwitch), by(2, 1, device.PathUnknown)},
			"1 2",
		},
		{"the farther of two paths", []device.Link{
			by(0, 1, device.PathSameBoard), by(1, 0, device.PathSystem),
			by(1, 2, device.PathHostBridge),
		}, "1 2"},
		{"a far path counts more than the NUMA node", []device.Link{by(0, 1, device.PathSystem)}, "0 2"},
	} {
		m := gpus(0, 0, 0)
		m.links = c.links
		got := m.topology().Prefer(preferred.AllocationRequest{Available: m.ids(), Size: 2}, preferred.Distributed)
		if want := parseGPUs(t, c.want); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", c.name, got, want)
		}
	}
}

// TestFaultsOfTheBestEffortPolicy covers the three faults of go-gpuallocator's
// best-effort policy.
func TestFaultsOfTheBestEffortPolicy(t *testing.T) {
	t.Run("a result without a device", func(t *testing.T) { // go-gpuallocator#80
		m := gpus(0, 0, 0, 0, 1, 1, 1, 1).linked(func(a, b int) (int, device.Path) {
			_, path := sockets(4, 0)(a, b)
			if a == 0 && b == 1 {
				return 1, path
			}
			return 0, path
		})
		top := m.topology()
		got := top.Prefer(preferred.AllocationRequest{Available: parseGPUs(t, "0 1 4-6"), Size: 3},
			preferred.Distributed)
		if want := parseGPUs(t, "0 1 4"); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("the partner of a different GPU", func(t *testing.T) {
		for _, n := range []int{14, 16} {
			m := bridged(n)
			for i, id := range m.ids() {
				got := m.topology().Prefer(preferred.AllocationRequest{
					Available: m.ids(),
					Must:      []device.AdvertisedID{id}, Size: 2,
				}, preferred.Distributed)
				if want := []device.AdvertisedID{id, device.AdvertisedID(gpu(i ^ 1))}; !slices.Equal(got, want) {
					t.Errorf("%d GPUs, must %s: got %v, want %v", n, id, got, want)
				}
			}
		}
	})
	t.Run("a link reported by a single end", func(t *testing.T) {
		m := bridged(4)
		m.links = slices.DeleteFunc(m.links, func(l device.Link) bool {
			return l.A == gpu(1) || l.A == gpu(2) &&
				l.B == gpu(3)
		})
		got, want := m.topology().Prefer(preferred.AllocationRequest{Available: m.ids(), Size: 2},
			preferred.Distributed), parseGPUs(t, "0 1")
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

// TestManyGPUs checks that above 20 available GPUs the lowest indices are
// chosen.
func TestManyGPUs(t *testing.T) {
	m := bridged(32)
	for size, want := range map[int]string{1: "30", 3: "0 1 30", 32: "0-31"} {
		r := preferred.AllocationRequest{Available: m.ids(), Must: parseGPUs(t, "30"), Size: size}
		got, want := sorted(m.topology().Prefer(r, preferred.Distributed)), sorted(parseGPUs(t, want))
		if !slices.Equal(got, want) {
			t.Errorf("%d GPUs: got %v, want %v", size, got, want)
		}
	}
}
