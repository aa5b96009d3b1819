package preferred_test

import (
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
)

// TestWholeGPUsOfKnownMachines has examples for readers, and a machine that is
// too large for the reference.
func TestWholeGPUsOfKnownMachines(t *testing.T) {
	for _, c := range []struct {
		name        string
		machine     machine
		taken, must []int
		size        int
		want        []int
	}{
		{"DGX A100: a pair on the same switches", dgxA100(), nil, nil, 2, []int{0, 1}},
		{"DGX A100: the partner of a required GPU", dgxA100(), nil, []int{5}, 2, []int{5, 4}},
		{"DGX A100: the partner of a lost GPU", dgxA100(), []int{0}, nil, 1, []int{1}},
		{"DGX A100: a lost GPU, two pairs", dgxA100(), []int{0}, nil, 4, []int{2, 3, 4, 5}},
		{"DGX H100: a lost GPU, the whole socket", dgxH100(), []int{2}, nil, 4, []int{4, 5, 6, 7}},
		{"DGX H100: a lost GPU, the rest of the socket", dgxH100(), []int{2}, nil, 3, []int{0, 1, 3}},
		{"bridged: the unallocated pair", bridged(8), []int{0, 3, 6, 7}, nil, 2, []int{4, 5}},
		{"bridged: a socket remains whole", bridged(8), []int{6, 7}, nil, 2, []int{4, 5}},
		{"bridged: a GPU outside both pairs", bridged(8), []int{2, 3, 6}, nil, 1, []int{7}},
		{"bridged: two required GPUs", bridged(8), nil, []int{0, 6}, 3, []int{0, 6, 1}},
		{"above 20 GPUs, the lowest indices", bridged(32), nil, []int{30}, 3, []int{30, 0, 1}},
	} {
		isTaken := func(id device.AdvertisedID) bool { return slices.Contains(wholeGPUs(c.taken), id) }
		available := slices.DeleteFunc(c.machine.ids(), isTaken)
		r := preferred.AllocationRequest{Available: available, Must: wholeGPUs(c.must), Size: c.size}
		got := c.machine.topology().Prefer(r, preferred.Distributed)
		if want := wholeGPUs(c.want); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", c.name, got, want)
		}
	}
}

func wholeGPUs(indices []int) (ids []device.AdvertisedID) {
	for _, i := range indices {
		ids = append(ids, device.AdvertisedID(gpu(i)))
	}
	return ids
}

// TestRejectedIDsComeLast checks that rejected ids fill up a result: the
// kubelet completes a shorter result at random.
func TestRejectedIDsComeLast(t *testing.T) {
	for name, m := range map[string]machine{"whole GPUs": gpus(0, 0, 1, 1), "shared": gpus(0, 1).replicated(2)} {
		rejected := m.ids()[:2] // of the replicas, both of a device
		isRejected := func(id device.AdvertisedID) bool { return slices.Contains(rejected, id) }
		for size := range 5 {
			r := preferred.AllocationRequest{Available: m.ids(), Size: size, Reject: isRejected}
			got := m.topology().Prefer(r, preferred.Distributed)
			first := slices.IndexFunc(got, isRejected)
			if len(got) != size || first >= 0 && first != 2 || size > 2 && first < 0 {
				t.Errorf("%s, size %d: got %q", name, size, got)
			}
		}
	}
}
