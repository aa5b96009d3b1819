package podresources

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const memoryIDs = "example.com/gpu-memory"

// foreignIDsResponse returns a List with foreign ids of a hundred pods, and one id of this node.
func foreignIDsResponse(t testing.TB, ids int) []byte {
	t.Helper()
	response := &api.ListPodResourcesResponse{PodResources: []*api.PodResources{newPod("ours", "a::1")}}
	for i := range 100 {
		c := &api.ContainerResources{Name: "main"}
		for n := i; n < ids; n += 100 {
			c.Devices = append(c.Devices, &api.ContainerDevices{ResourceName: memoryIDs, DeviceIds: []string{fmt.Sprint("memory-", n)}})
		}
		response.PodResources = append(response.PodResources, newPodWith(fmt.Sprint("pod-", i), c))
	}
	b, err := proto.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestForeignIDsAreLimited lists a resource with 65,000 ids repeatedly: the ids are dropped and counted.
func TestForeignIDsAreLimited(t *testing.T) {
	few, many := foreignIDsResponse(t, maxForeignIDs), foreignIDsResponse(t, 65000)
	a, m, l := newListResponse(), newAllocationTracker(), resourceTracker{}
	a.resources.foreign.setOwn([]device.ID{"a"})
	now := time.Unix(1<<30, 0)
	epoch := kubeletEpoch{connectedAt: now.Add(-time.Hour), kubeletStartedAt: now.Add(-time.Hour)}
	merge := func(b []byte) {
		now = now.Add(10 * time.Second)
		if err := a.Read(b); err != nil {
			t.Fatal(err)
		}
		m.merge(&a, epoch, now)
		l.merge(&a.resources, a.pods, epoch, false)
	}
	ours := device.Allocation{Resource: gpu, DeviceID: "a::1", Owner: newOwner("ours")}
	for range 3 {
		merge(many)
		if !slices.Equal(m.allocations, []device.Allocation{ours}) || len(l.allocated.Devices) != 1 {
			t.Fatalf("got %d allocations, %d devices", len(m.allocations), len(l.allocated.Devices))
		}
		if want := []device.DroppedIDs{{Resource: memoryIDs, IDs: 65000}}; !slices.Equal(l.allocated.Dropped, want) {
			t.Errorf("dropped: got %v, want %v", l.allocated.Dropped, want)
		}
	}
	if n := testing.AllocsPerRun(3, func() { merge(many) }); n > 20 {
		t.Errorf("got %v memory allocations per response, want at most 20", n)
	}
	merge(few)
	if len(m.allocations) != 1+maxForeignIDs || l.allocated.Dropped != nil {
		t.Errorf("got %d allocations, dropped %v", len(m.allocations), l.allocated.Dropped)
	}
	if seen := m.history.records(); len(seen) != 1 || seen[0].Device != "a" {
		t.Errorf("history: got %d devices, want only a", len(seen))
	}
}

// TestForeignIDsInCheckpoint checks that dropped ids do not return through the checkpoint, at the first read and in an outage.
func TestForeignIDsInCheckpoint(t *testing.T) {
	a, m := newListResponse(), newAllocationTracker()
	a.resources.foreign.setOwn([]device.ID{"a"})
	now := time.Unix(1<<30, 0)
	epoch := kubeletEpoch{connectedAt: now.Add(-time.Hour), kubeletStartedAt: now.Add(-time.Hour)}
	n := kubeletCheckpoint{allocated: map[allocationKey]string{{gpu, "a::2"}: "init"}}
	for i := range 65000 {
		n.allocated[allocationKey{memoryIDs, device.AdvertisedID(fmt.Sprint("memory-", i))}] = "uid"
	}
	merge := func() {
		now = now.Add(time.Second)
		if err := a.Read(foreignIDsResponse(t, 65000)); err != nil {
			t.Fatal(err)
		}
		m.merge(&a, epoch, now)
	}
	merge()
	merge()
	n.writtenAt = now.Add(-time.Second / 2)
	m.mergeCheckpoint(n, nil, now)
	if len(m.allocations) != 2 || len(m.pending) != 1 {
		t.Errorf("got %d allocations, %d pending, want 2 and 1", len(m.allocations), len(m.pending))
	}
	m.checkpoint, m.checkpointAsOf = kubeletCheckpoint{}, time.Time{}
	n.writtenAt = now.Add(time.Second)
	m.addAllocatedSince(n, now.Add(2*time.Second))
	if len(m.allocations) != 2 {
		t.Errorf("got %d allocations in the outage, want 2", len(m.allocations))
	}
}

// TestForeignIDsBeforeInventory checks that ids made of UUIDs are accepted until the inventory is known. Ids of a different form have no
// history and are limited.
func TestForeignIDsBeforeInventory(t *testing.T) {
	const id = "GPU-6f1a6f7c-0e4a-4f55-9a6e-7b4f3c2d1e00"
	a, m := newListResponse(), newAllocationTracker()
	now := time.Unix(1<<30, 0)
	epoch := kubeletEpoch{connectedAt: now.Add(-time.Hour), kubeletStartedAt: now.Add(-time.Hour)}
	a.resources.foreign.setOwn(nil)
	for _, ids := range []int{maxForeignIDs, 65000, 65000} {
		b := bytes.ReplaceAll(foreignIDsResponse(t, ids), []byte("a::1"), []byte("b::1"))
		response, err := proto.Marshal(&api.ListPodResourcesResponse{PodResources: []*api.PodResources{newPod("early", id+"::7")}})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Read(append(b, response...)); err != nil {
			t.Fatal(err)
		}
		m.merge(&a, epoch, now)
		if seen := m.history.records(); len(seen) != 1 || seen[0].Device != id {
			t.Errorf("history: got %d devices, want only %s", len(seen), id)
		}
	}
	if len(a.allocations) != 2 || len(a.resources.foreign.droppedIDs(nil)) != 1 {
		t.Errorf("got %d allocations, want that of %s and of the resource with a single id", len(a.allocations), id)
	}
}

// TestConfirmedKeysAreLimited adds and ends a pod with a claim every ten seconds.
func TestConfirmedKeysAreLimited(t *testing.T) {
	a, m := newListResponse(), newAllocationTracker()
	now := time.Unix(1<<30, 0)
	epoch := kubeletEpoch{connectedAt: now.Add(-time.Hour), kubeletStartedAt: now.Add(-time.Hour)}
	for i := range 5000 {
		name := fmt.Sprint("pod-", i)
		a.pods = []podName{{"team", name}}
		a.allocations = []device.Allocation{
			{Resource: scenarioDriver, DeviceID: "a", Owner: newOwner(name)},
			{Resource: "example.com/random", DeviceID: device.AdvertisedID(fmt.Sprint("id-", i)), Owner: newOwner(name)},
		}
		m.merge(&a, epoch, now)
		now = now.Add(10 * time.Second)
	}
	if entries := len(m.confirmed); entries > 2*len(m.allocations)+2 {
		t.Errorf("got %d confirmed keys, %d allocations", entries, len(m.allocations))
	}
}
