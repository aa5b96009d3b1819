package preferred_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/preferred"
)

// parseIDs parses "0::1-3 2::0" as replicas 1 to 3 of GPU 0 and replica 0 of
// GPU 2.
func parseIDs(t testing.TB, text string) []device.AdvertisedID {
	t.Helper()
	var ids []device.AdvertisedID
	for field := range strings.FieldsSeq(text) {
		gpu, replicas, _ := strings.Cut(field, "::")
		for _, n := range numbers(t, replicas) {
			ids = append(ids, device.AdvertisedID(fmt.Sprintf("GPU-%s::%d", gpu, n)))
		}
	}
	return ids
}

// TestSharedReplicas covers four GPUs of 12 replicas each. GPUs 0 and 1 are
// bridged, and so are 2 and 3.
func TestSharedReplicas(t *testing.T) {
	const all = "0::0-11 1::0-11 2::0-11 3::0-11"
	const busy = "0::4-11 1::2-11 2::0-11 3::11" // GPU 3 has a single unallocated id, GPU 2 is idle
	top := bridged(4).replicated(12).topology()
	for _, c := range []struct {
		name            string
		policy          preferred.AllocationPolicy
		available, must string
		size            int
		want            string
	}{
		{"first id of an idle machine", preferred.Distributed, all, "", 1, "0::0"},
		{"the second next to the first", preferred.Distributed, all, "", 2, "0::0 1::0"},
		{"an id of each GPU", preferred.Distributed, all, "", 4, "0::0 1::0 2::0 3::0"},
		{"around again", preferred.Distributed, all, "", 6, "0::0-1 1::0-1 2::0 3::0"},
		{"the idle GPU", preferred.Distributed, busy, "", 1, "2::0"},
		{"until equally loaded", preferred.Distributed, busy, "", 3, "1::2 2::0-1"},
		{"replica 2 before replica 10", preferred.Distributed, "0::2 0::10", "", 1, "0::2"},
		{"required ids are a load", preferred.Distributed, all, "2::7", 2, "2::7 3::0"},
		{"the partner of a required id", preferred.Distributed, all, "3::0", 2, "3::0 2::0"},
		{"first id of an idle machine", preferred.Packed, all, "", 1, "0::0"},
		{"all ids of a GPU", preferred.Packed, all, "", 12, "0::0-11"},
		{"a GPU and the neighbour", preferred.Packed, all, "", 14, "0::0-11 1::0-1"},
		{"the last of the most loaded", preferred.Packed, busy, "", 1, "3::11"},
		{"and then the next", preferred.Packed, busy, "", 3, "0::4-5 3::11"},
		{"with required ids", preferred.Packed, all, "2::7", 3, "2::7 2::0-1"},
		{
			"the neighbour of a required, full GPU", preferred.Packed, "0::0-11 1::0-11 2::0-11", "3::0-11", 13,
			"3::0-11 2::0",
		},
		{"two GPUs", preferred.Distinct, all, "", 2, "0::0 1::0"},
		{"the least loaded GPUs", preferred.Distinct, busy, "", 2, "1::2 2::0"},
		{"also the most loaded GPU", preferred.Distinct, busy, "", 4, "0::4 1::2 2::0 3::11"},
		{"more ids than GPUs", preferred.Distinct, busy, "", 6, "0::4 1::2-3 2::0-1 3::11"},
		{"not the required GPU", preferred.Distinct, all, "0::3", 2, "0::3 1::0"},
		{"not the required GPU, loaded or not", preferred.Distinct, busy, "2::0", 2, "2::0 1::2"},
		{"two required ids of a GPU", preferred.Distinct, all, "0::3 0::4", 5, "0::3-4 1::0 2::0 3::0"},
	} {
		r := preferred.AllocationRequest{Available: parseIDs(t, c.available), Must: parseIDs(t, c.must), Size: c.size}
		if got, want := top.Prefer(r, c.policy), parseIDs(t, c.want); !slices.Equal(got, want) {
			t.Errorf("%s, %s: got %v, want %v", c.policy, c.name, got, want)
		}
	}
}

// TestSharedMIGDevices covers eight GPUs with seven MIG devices each: without
// replicas, the load is the GPU's.
func TestSharedMIGDevices(t *testing.T) {
	m := dgxH100().partitioned(7)
	idle := preferred.AllocationRequest{Available: m.ids(), Size: 8}
	used := preferred.AllocationRequest{Available: m.ids()[3:], Size: 3} // GPU 0 has four unallocated MIG devices
	for _, c := range []struct {
		policy  preferred.AllocationPolicy
		request preferred.AllocationRequest
		want    string
	}{
		{preferred.Distributed, idle, "MIG-0-0 MIG-1-0 MIG-2-0 MIG-3-0 MIG-4-0 MIG-5-0 MIG-6-0 MIG-7-0"},
		{preferred.Packed, idle, "MIG-0-0 MIG-0-1 MIG-0-2 MIG-0-3 MIG-0-4 MIG-0-5 MIG-0-6 MIG-1-0"},
		{preferred.Distinct, idle, "MIG-0-0 MIG-1-0 MIG-2-0 MIG-3-0 MIG-4-0 MIG-5-0 MIG-6-0 MIG-7-0"},
		{preferred.Distributed, used, "MIG-1-0 MIG-2-0 MIG-3-0"},
		{preferred.Packed, used, "MIG-0-3 MIG-0-4 MIG-0-5"},
		{preferred.Distinct, used, "MIG-1-0 MIG-2-0 MIG-3-0"},
	} {
		if got := fmt.Sprint(m.topology().Prefer(c.request, c.policy)); got != "["+c.want+"]" {
			t.Errorf("%s, %d of %d: got %v, want %v", c.policy, c.request.Size, len(c.request.Available), got, c.want)
		}
	}
}

// TestSharedCountsWithdrawnIDs checks that an allocated, withdrawn id counts as
// a load on the device and is not chosen.
func TestSharedCountsWithdrawnIDs(t *testing.T) {
	m := gpus(-1, -1).replicated(2)
	whole := m.candidates[0]
	whole.ID, whole.Allocated = whole.Device.Advertised(), true
	m.candidates = append(m.candidates, whole)
	r := preferred.AllocationRequest{Available: append(parseIDs(t, "0::0-1 1::0-1"), whole.ID), Size: 1}
	for p, want := range map[preferred.AllocationPolicy]string{
		preferred.Distributed: "1::0", preferred.Packed: "0::0",
		preferred.Distinct: "1::0",
	} {
		if got, want := m.topology().Prefer(r, p), parseIDs(t, want); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", p, got, want)
		}
	}
	r = preferred.AllocationRequest{Available: append(parseIDs(t, "0::1"), whole.ID), Size: 2}
	if got, want := m.topology().Prefer(r, preferred.Packed), parseIDs(t, "0::1"); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
