package podresources

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
)

// historyTracker is a tracker of a trusted kubelet with a settable time.
type historyTracker struct {
	allocationTracker
	now time.Time
}

func newHistoryTracker() *historyTracker {
	return &historyTracker{allocationTracker: newAllocationTracker(), now: time.Unix(1<<30, 0)}
}

// applyList merges a List of allocations.
func (r *historyTracker) applyList(allocations ...device.Allocation) {
	a := newListResponse()
	a.allocations = allocations
	r.merge(&a, kubeletEpoch{connectedAt: r.now.Add(-time.Hour), kubeletStartedAt: r.now.Add(-time.Hour)}, r.now)
}

func (r *historyTracker) recentPodNames() (names []string) {
	for _, s := range r.history.records() {
		names = append(names, s.Owner.Pod)
	}
	return names
}

func newAllocation(id device.AdvertisedID, pod string) device.Allocation {
	return device.Allocation{Resource: gpu, DeviceID: id, Owner: newOwner(pod)}
}

func TestHistoryIsLimitedPerDevice(t *testing.T) {
	r := newHistoryTracker()
	for i := range 12 {
		r.now = r.now.Add(time.Second)
		r.applyList(newAllocation("a", fmt.Sprintf("pod-%02d", 11-i)))
	}
	want := []string{"pod-00", "pod-01", "pod-02", "pod-03", "pod-04", "pod-05", "pod-06", "pod-07"}
	if got := r.recentPodNames(); !slices.Equal(got, want) {
		t.Errorf("history: got %q, want %q", got, want)
	}
	r.now = r.now.Add(time.Second)
	r.applyList(newAllocation("a", "pod-07")) // the oldest, listed again
	r.now = r.now.Add(time.Second)
	r.applyList(newAllocation("a", "pod-99"))
	want = []string{"pod-00", "pod-01", "pod-02", "pod-03", "pod-04", "pod-05", "pod-07", "pod-99"}
	if got := r.recentPodNames(); !slices.Equal(got, want) {
		t.Errorf("history: got %q, want %q", got, want)
	}
}

// TestHistoryKeepsCurrentOwners checks that owners of a shared device are kept while a restarted kubelet does not list them.
func TestHistoryKeepsCurrentOwners(t *testing.T) {
	h := newOwnerHistory()
	begin := time.Unix(1<<30, 0)
	for i := range 12 {
		h.recordOwner(newAllocation(device.ID("a").Replica(i), fmt.Sprint("pod-", i)), begin, begin)
	}
	if h.prune(begin.Add(time.Second)); len(h.all) != 12 {
		t.Errorf("got %d owners, want 12", len(h.all))
	}
}

func TestHistoryIsKeptForAnHour(t *testing.T) {
	r := newHistoryTracker()
	start := r.now
	r.applyList(newAllocation("a", "one"), newAllocation("b", "two"))
	r.now = start.Add(time.Minute)
	r.applyList(newAllocation("a", "one"))
	r.now = start.Add(time.Hour)
	r.applyList()
	if got := r.recentPodNames(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("history: got %q", got)
	}
	r.now = r.now.Add(time.Millisecond)
	r.applyList()
	if got := r.recentPodNames(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("history after an hour: got %q", got)
	}
	r.now = start.Add(time.Hour + time.Minute + time.Millisecond)
	r.applyList()
	if got := r.recentPodNames(); got != nil || len(r.history.all) > 0 {
		t.Errorf("history after an hour: got %q, %d records", got, len(r.history.all))
	}
}

func TestHistoryHasAllCurrentOwners(t *testing.T) {
	r := newHistoryTracker()
	var now []device.Allocation
	for i := range 12 { // replicas of a device
		now = append(now, newAllocation(device.AdvertisedID(fmt.Sprintf("a::%d", i)), fmt.Sprintf("pod-%02d", i)))
	}
	r.applyList(newAllocation("a::0", "old"))
	r.now = r.now.Add(time.Second)
	r.applyList(now...)
	if got := r.recentPodNames(); len(got) != 12 || slices.Contains(got, "old") {
		t.Errorf("history of 12 owners: got %q", got)
	}
	r.now = r.now.Add(time.Second)
	r.applyList(now[3], now[4])
	if got := r.recentPodNames(); len(got) != maxRecentOwners || !slices.Contains(got, "pod-03") || !slices.Contains(got, "pod-04") {
		t.Errorf("history of 12 owners, 2 of them current: got %q", got)
	}
}

func TestHistoryIsSortedCopy(t *testing.T) {
	r := newHistoryTracker()
	r.applyList(newAllocation("b", "two"), newAllocation("a::1", "two"), newAllocation("a", "one"), newAllocation("a::2", "one"))
	first := r.history.records()
	want := []device.AllocationRecord{
		{Device: "a", Owner: newOwner("one"), FirstSeen: r.now, LastSeen: r.now},
		{Device: "a", Owner: newOwner("two"), FirstSeen: r.now, LastSeen: r.now},
		{Device: "b", Owner: newOwner("two"), FirstSeen: r.now, LastSeen: r.now},
	}
	if !slices.Equal(first, want) {
		t.Errorf("history: got %v, want %v", first, want)
	}
	r.now = r.now.Add(time.Second)
	r.applyList(newAllocation("a", "one"), newAllocation("a", "zero"), newAllocation("0", "four"))
	if !slices.Equal(first, want) {
		t.Error("a published slice was modified")
	}
	if got := r.recentPodNames(); !slices.Equal(got, []string{"four", "one", "two", "zero", "two"}) {
		t.Errorf("history: got %q", got)
	}
}

// TestHistoryTimes covers the times used to attribute incidents.
func TestHistoryTimes(t *testing.T) {
	r := newHistoryTracker()
	start := r.now
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	want := func(event string, want ...device.AllocationRecord) {
		t.Helper()
		if got := r.history.records(); !slices.Equal(got, want) {
			t.Errorf("%s: history: got %v, want %v", event, got, want)
		}
	}
	one := device.AllocationRecord{Device: "a", Owner: newOwner("one"), FirstSeen: at(1), LastSeen: at(2)}
	r.applyList()
	r.now = at(1)
	r.recordAllocate(gpu, []device.AdvertisedID{"a"}, r.now)
	want("allocated")
	r.now = at(2)
	r.applyList(newAllocation("a", "one"))
	want("listed a second after Allocate", one)
	r.now, one.LastSeen = at(3), at(3)
	r.applyList(newAllocation("a", "one"))
	want("listed again", one)
	r.now, one.EndedAt = at(5), at(5)
	r.applyList()
	want("unallocated", one)
	r.now = at(6)
	r.applyList()
	want("still unallocated", one)

	r.now = at(7)
	r.applyList(newAllocation("a", "one")) // allocated by a plugin without OnAllocated
	one = device.AllocationRecord{Device: "a", Owner: newOwner("one"), FirstSeen: at(7), LastSeen: at(7)}
	want("listed again with the same name", one)
	r.now, one.EndedAt = at(8), at(8)
	r.recordAllocate(gpu, []device.AdvertisedID{"a"}, r.now)
	want("allocated to a different pod", one)
	r.now = at(9)
	r.applyList(newAllocation("a", "one")) // the next pod of the StatefulSet
	one = device.AllocationRecord{Device: "a", Owner: newOwner("one"), FirstSeen: at(8), LastSeen: at(9)}
	want("allocated to a new pod of the same name", one)

	// An owner that only Get returned is in the history.
	r.now = at(10)
	r.recordAllocate(gpu, []device.AdvertisedID{"b"}, r.now)
	r.confirmPod([]device.Allocation{newAllocation("b", "short")}, r.epoch, at(11))
	r.now = at(12)
	r.applyList(newAllocation("a", "one"))
	one.LastSeen = at(12)
	want("a short allocation", one, device.AllocationRecord{Device: "b", Owner: newOwner("short"), FirstSeen: at(10), LastSeen: at(11), EndedAt: at(12)})
}

// TestHistoryOfReplicas checks that the allocations of a shared device end separately.
func TestHistoryOfReplicas(t *testing.T) {
	r := newHistoryTracker()
	r.applyList(newAllocation("a::0", "one"), newAllocation("a::1", "two"), newAllocation("a::2", "two"))
	first := r.now
	r.now = r.now.Add(time.Second)
	r.applyList(newAllocation("a::1", "two"))
	want := []device.AllocationRecord{
		{Device: "a", Owner: newOwner("one"), FirstSeen: first, LastSeen: first, EndedAt: r.now},
		{Device: "a", Owner: newOwner("two"), FirstSeen: first, LastSeen: r.now},
	}
	if got := r.history.records(); !slices.Equal(got, want) {
		t.Errorf("history: got %v, want %v", got, want)
	}
}

// TestResourcesWithSameID checks that an id of two resources makes two allocations of a device.
func TestResourcesWithSameID(t *testing.T) {
	r := newHistoryTracker()
	mig := device.Allocation{Resource: "nvidia.com/mig", DeviceID: "a", Owner: newOwner("two")}
	r.applyList(newAllocation("a", "one"), mig)
	allocations := device.Allocations{All: r.allocations, Complete: r.settled}
	wantDevice(t, allocations, "a", "shared")
	if got := allocations.ForDevice("a"); !slices.Equal(got, []device.Allocation{newAllocation("a", "one"), mig}) {
		t.Errorf("allocations: got %v", got)
	}
	if got := r.recentPodNames(); !slices.Equal(got, []string{"one", "two"}) {
		t.Errorf("history: got %q", got)
	}
	r.recordAllocate(gpu, []device.AdvertisedID{"a"}, r.now)
	if got := r.allocations; !slices.Equal(got, []device.Allocation{{Resource: gpu, DeviceID: "a"}, mig}) {
		t.Errorf("allocations after Allocate of a single resource: got %v", got)
	}
}

func TestOwnerRetention(t *testing.T) {
	for keep, want := range map[time.Duration]int{0: 1, 10 * time.Second: 0, 2 * time.Hour: 1} {
		runScriptedWith(t, kubeletAgeInTests, Options{OwnerRetention: keep}, func(t *testing.T, k *scriptedKubelet, c *Client) {
			k.setPods(newPod("one", "a"))
			c.ListAllocations(t.Context())
			k.setPods()
			time.Sleep(30 * time.Second)
			if h := c.ListAllocations(t.Context()); len(h.Recent) != want {
				t.Errorf("retention %s: history after half a minute: got %v", keep, h.Recent)
			}
		})
	}
}
