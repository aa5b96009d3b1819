package preferred_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

// machine contains the input of New.
type machine struct {
	candidates []preferred.Candidate
	links      []device.Link
}

func (m machine) topology() *preferred.Topology { return preferred.New(m.candidates, m.links) }

// shuffled returns the same machine in a random order.
func (m machine) shuffled(r *rand.Rand) machine {
	return machine{shuffle(r, m.candidates), shuffle(r, m.links)}
}

// shuffle returns a copy in a random order.
func shuffle[T any](r *rand.Rand, all []T) []T {
	all = slices.Clone(all)
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

func (m machine) ids() []device.AdvertisedID {
	var ids []device.AdvertisedID
	for _, c := range m.candidates {
		ids = append(ids, c.ID)
	}
	return ids
}

func gpu(i int) device.GPU { return device.GPU(fmt.Sprintf("GPU-%d", i)) }

// gpus returns a whole GPU on each of the NUMA nodes.
func gpus(nodes ...int) machine {
	var m machine
	for i, node := range nodes {
		m.candidates = append(m.candidates, preferred.Candidate{
			ID: device.AdvertisedID(gpu(i)), Device: device.ID(gpu(i)), GPU: gpu(i), Index: i, NUMANode: node,
		})
	}
	return m
}

// replicated replaces each device by replicas.
func (m machine) replicated(replicas int) machine {
	var all []preferred.Candidate
	for _, c := range m.candidates {
		for n := range replicas {
			replica := c
			replica.ID, replica.Replica = device.AdvertisedID(fmt.Sprintf("%s::%d", c.Device, n)), true
			all = append(all, replica)
		}
	}
	m.candidates = all
	return m
}

// partitioned replaces each GPU by MIG devices.
func (m machine) partitioned(count int) machine {
	var all []preferred.Candidate
	for _, c := range m.candidates {
		for n := range count {
			migDevice := c
			migDevice.Device = device.ID(fmt.Sprintf("MIG-%d-%d", c.Index, n))
			migDevice.ID = migDevice.Device.Advertised()
			all = append(all, migDevice)
		}
	}
	m.candidates = all
	return m
}

// linked adds both directions of each pair.
func (m machine) linked(between func(a, b int) (nvlinks int, path device.Path)) machine {
	for a := range m.candidates {
		for b := range m.candidates {
			if a != b {
				nvlinks, path := between(min(a, b), max(a, b))
				m.links = append(m.links, device.Link{A: gpu(a), B: gpu(b), NVLinks: nvlinks, Path: path})
			}
		}
	}
	return m
}

// dgxA100 returns 12 NVLinks between all pairs of GPUs through NVSwitches. Two
// GPUs share PCIe switches and a NUMA node.
func dgxA100() machine {
	return gpus(3, 3, 1, 1, 7, 7, 5, 5).linked(func(a, b int) (int, device.Path) {
		if a/2 == b/2 {
			return 12, device.PathMultipleSwitches
		}
		return 12, device.PathSystem
	})
}

// dgxH100 returns 18 NVLinks through NVSwitches, a PCIe switch for each GPU,
// two sockets.
func dgxH100() machine { return gpus(0, 0, 0, 0, 1, 1, 1, 1).linked(sockets(4, 18)) }

// sockets returns links between sockets of size GPUs, with the same number of
// NVLinks everywhere.
func sockets(size, nvlinks int) func(a, b int) (int, device.Path) {
	return func(a, b int) (int, device.Path) {
		if a/size == b/size {
			return nvlinks, device.PathNUMANode
		}
		return nvlinks, device.PathSystem
	}
}

// bridged returns PCIe GPUs in two sockets, with an NVLink bridge of 4 links
// between each pair: 0 and 1, 2 and 3, …
func bridged(count int) machine {
	var nodes []int
	for i := range count {
		nodes = append(nodes, 2*i/count)
	}
	return gpus(nodes...).linked(func(a, b int) (int, device.Path) {
		nvlinks := 0
		if a/2 == b/2 {
			nvlinks = 4
		}
		_, path := sockets(count/2, 0)(a, b)
		return nvlinks, path
	})
}

// random returns a machine of any shape: links may be reported in one or both
// directions, repeatedly, and with differences.
func random(r *rand.Rand, count int) machine {
	var nodes []int
	for range count {
		nodes = append(nodes, r.IntN(4)-1)
	}
	m := gpus(nodes...)
	for range r.IntN(3 * count * count) {
		m.links = append(m.links, device.Link{
			A: gpu(r.IntN(count + 1)), B: gpu(r.IntN(count + 1)),
			NVLinks: max(r.IntN(6)-2, 0), Path: device.Path(r.IntN(7)),
		})
	}
	return m
}

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
		expect.EqualSlices(t, got, wholeGPUs(c.want), c.name)
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
