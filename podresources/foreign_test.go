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

// countless is an answer of so many foreign ids, held by a hundred pods, and of one of our
// devices.
func countless(t testing.TB, ids int) []byte {
	t.Helper()
	answer := &api.ListPodResourcesResponse{PodResources: []*api.PodResources{pod("ours", "a::1")}}
	for i := range 100 {
		c := &api.ContainerResources{Name: "main"}
		for n := i; n < ids; n += 100 {
			c.Devices = append(c.Devices, &api.ContainerDevices{ResourceName: memoryIDs, DeviceIds: []string{fmt.Sprint("memory-", n)}})
		}
		answer.PodResources = append(answer.PodResources, podOf(fmt.Sprint("pod-", i), c))
	}
	b, err := proto.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCountlessForeignIDs: of a resource with 65,000 ids none is kept, however often they are
// listed, and their number is.
func TestCountlessForeignIDs(t *testing.T) {
	few, many := countless(t, maxForeignIDs), countless(t, 65000)
	a, m, l := newAnswer(), newMemory(), ledger{}
	a.given.foreign.know([]device.ID{"a"})
	now := time.Unix(1<<30, 0)
	over := link{connected: now.Add(-time.Hour), kubeletStart: now.Add(-time.Hour)}
	answers := func(b []byte) {
		now = now.Add(10 * time.Second)
		if err := a.Read(b); err != nil {
			t.Fatal(err)
		}
		m.take(&a, over, now)
		l.take(&a.given, a.pods, over, false)
	}
	ours := device.Holding{Resource: gpu, Offered: "a::1", Owner: owner("ours")}
	for range 3 {
		answers(many)
		if !slices.Equal(m.held, []device.Holding{ours}) || len(l.held.HeldDevices) != 1 {
			t.Fatalf("%d rows are held, %d of them devices", len(m.held), len(l.held.HeldDevices))
		}
		if want := []device.DroppedIDs{{Resource: memoryIDs, IDs: 65000}}; !slices.Equal(l.droppedHeld, want) {
			t.Errorf("dropped are %v, want %v", l.droppedHeld, want)
		}
	}
	if n := testing.AllocsPerRun(3, func() { answers(many) }); n > 20 {
		t.Errorf("such an answer makes %v allocations", n)
	}
	answers(few) // it is noted that they are fewer
	answers(few)
	if len(m.held) != 1+maxForeignIDs || l.droppedHeld != nil {
		t.Errorf("%d rows are held, dropped are %v", len(m.held), l.droppedHeld)
	}
	if seen := m.recent.seen(); len(seen) != 1 || seen[0].Device != "a" {
		t.Errorf("there is a history of %d devices, want that of ours", len(seen))
	}
}

// TestForeignIDsInTheCheckpoint: foreign ids that were dropped, since List had too many of them, do
// not come back from the checkpoint as allocations without an owner: neither when it is first read
// nor when the kubelet is away.
func TestForeignIDsInTheCheckpoint(t *testing.T) {
	a, m := newAnswer(), newMemory()
	a.given.foreign.know([]device.ID{"a"})
	now := time.Unix(1<<30, 0)
	over := link{connected: now.Add(-time.Hour), kubeletStart: now.Add(-time.Hour)}
	n := notes{allocated: map[allocation]string{{gpu, "a::2"}: "init"}}
	for i := range 65000 {
		n.allocated[allocation{memoryIDs, device.OfferedID(fmt.Sprint("memory-", i))}] = "uid"
	}
	answers := func() {
		now = now.Add(time.Second)
		if err := a.Read(countless(t, 65000)); err != nil {
			t.Fatal(err)
		}
		m.take(&a, over, now)
	}
	answers()
	answers()
	n.written = now.Add(-time.Second / 2)
	m.review(n, nil, now)
	if len(m.held) != 2 || len(m.unnamed) != 1 {
		t.Errorf("%d rows are held, %d of them without an owner; want 2 and 1", len(m.held), len(m.unnamed))
	}
	m.noted, m.notedFor = notes{}, time.Time{}
	n.written = now.Add(time.Second)
	m.lost(n, now.Add(2*time.Second))
	if len(m.held) != 2 {
		t.Errorf("%d rows are held while the kubelet is away, want 2", len(m.held))
	}
}

// TestForeignIDsBeforeTheInventory: until the inventory is known, only an id made of a UUID may be
// ours. An id of another form makes no history, and too many of them are dropped.
func TestForeignIDsBeforeTheInventory(t *testing.T) {
	const id = "GPU-6f1a6f7c-0e4a-4f55-9a6e-7b4f3c2d1e00"
	a, m := newAnswer(), newMemory()
	now := time.Unix(1<<30, 0)
	over := link{connected: now.Add(-time.Hour), kubeletStart: now.Add(-time.Hour)}
	a.given.foreign.know(nil)
	for _, ids := range []int{maxForeignIDs, 65000} {
		b := bytes.ReplaceAll(countless(t, ids), []byte("a::1"), []byte("b::1"))
		answer, err := proto.Marshal(&api.ListPodResourcesResponse{PodResources: []*api.PodResources{pod("early", id+"::7")}})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Read(append(b, answer...)); err != nil {
			t.Fatal(err)
		}
		m.take(&a, over, now)
		if seen := m.recent.seen(); len(seen) != 1 || seen[0].Device != id {
			t.Errorf("there is a history of %d devices, want that of %s", len(seen), id)
		}
	}
	if len(a.held) != 2 || len(a.given.foreign.dropped(nil)) != 1 {
		t.Errorf("%d rows are kept, want that of %s and that of the resource with one id", len(a.held), id)
	}
}

// TestPodsThatClaimAreForgotten: one that comes every ten seconds leaves nothing behind.
func TestPodsThatClaimAreForgotten(t *testing.T) {
	a, m := newAnswer(), newMemory()
	now := time.Unix(1<<30, 0)
	over := link{connected: now.Add(-time.Hour), kubeletStart: now.Add(-time.Hour)}
	for i := range 5000 {
		name := fmt.Sprint("pod-", i)
		a.pods = []podName{{"team", name}}
		a.held = []device.Holding{
			{Resource: storyDriver, Offered: "a", Owner: owner(name)},
			{Resource: "example.com/random", Offered: device.OfferedID(fmt.Sprint("id-", i)), Owner: owner(name)},
		}
		m.take(&a, over, now)
		now = now.Add(10 * time.Second)
	}
	if entries := len(m.named); entries > minPruned+2*len(m.held)+2 {
		t.Errorf("%d rows are known as named, and %d are held", entries, len(m.held))
	}
}
