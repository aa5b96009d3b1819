package plugin

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/device"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// uuidStatuses returns n GPUs with ids of real length.
func uuidStatuses(n int) (all []device.Status) {
	for i := range n {
		s := parseStatuses(fmt.Sprint(i))[0]
		s.ID = device.ID(fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i))
		s.GPU, s.NUMANode = device.GPU(s.ID), i%2
		all = append(all, s)
	}
	return all
}

// TestListSize: the size of a list is known before the list is made.
func TestListSize(t *testing.T) {
	for _, replicas := range []int{0, 1, 2, 9, 10, 11, 99, 100, 101, 1000, 4096, 12345} {
		for _, healthy := range []bool{false, true} {
			statuses := uuidStatuses(3)
			statuses[2].NUMANode = -1
			for n := range statuses {
				statuses[n].Healthy = healthy
			}
			lists, warnings := sharingAll(replicas).deviceLists(statuses)
			l := lists[gpuResource]
			if l == nil || len(warnings) > 0 {
				t.Fatalf("%d replicas: %q", replicas, warnings)
			}
			list := l.toResponse()
			for _, d := range list.Devices {
				d.Health = api.Unhealthy
			}
			if got := proto.Size(list); l.listBytes != got || l.idCount != len(list.Devices) || l.idCount != 3*max(replicas, 1) {
				t.Errorf("%d replicas: computed %d bytes and %d ids, list has %d and %d", replicas, l.listBytes, l.idCount, got, len(list.Devices))
			}
		}
	}
}

// TestReplicasFitTheKubeletsMessage: a longer list would end the kubelet's stream each time, without a reason in any log.
func TestReplicasFitTheKubeletsMessage(t *testing.T) {
	of := func(gpus, replicas int) (*deviceList, string) {
		lists, warnings := sharingAll(replicas).deviceLists(uuidStatuses(gpus))
		return lists[gpuResource], strings.Join(warnings, "; ")
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 60_000}, {8, 7_500}, {16, 3_700}} {
		if list, warnings := of(c.gpus, c.replicas); list == nil || len(list.items) != c.gpus*c.replicas || proto.Size(list.toResponse()) > maxMessageBytes || warnings != "" {
			t.Errorf("%d GPUs with %d replicas: %q", c.gpus, c.replicas, warnings)
		}
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 65_536}, {8, 65_536}, {16, 4_096}} {
		list, warnings := of(c.gpus, c.replicas)
		var ids, mib, most int
		_, err := fmt.Sscanf(warnings, "nvidia.com/gpu needs %d ids, but the kubelet's limit of %d MiB has room for %d: use fewer replicas", &ids, &mib, &most)
		if list != nil || err != nil || ids != c.gpus*c.replicas || mib != 4 {
			t.Errorf("%d GPUs with %d replicas: %q", c.gpus, c.replicas, warnings)
		}
		if list, warnings := of(c.gpus, most/c.gpus); list == nil {
			t.Errorf("%d GPUs with %d replicas, the number in the warning: %q", c.gpus, most/c.gpus, warnings)
		}
	}
}

// TestWithdrawnIDsFitTheKubeletsMessage: withdrawn ids stay listed beside new ids. If both exceed the limit, some new ids wait for the
// removal of withdrawn ids.
func TestWithdrawnIDsFitTheKubeletsMessage(t *testing.T) {
	all, now := uuidStatuses(16), time.Now()
	s := serverWith(sharingAll(4096), all[:8])
	s.sentList.Store(s.list())
	turn := func(rules Rules, statuses []device.Status) (due time.Time) {
		before := s.list()
		lists, _ := rules.deviceLists(statuses)
		allocations, _ := s.Allocations()
		due = s.setDevices(lists[gpuResource], statuses, allocations, now)
		if bytes := proto.Size(s.list().toResponse()); bytes > maxMessageBytes {
			t.Errorf("list of %d bytes", bytes)
		}
		if due.IsZero() {
			return due
		}
		for _, i := range before.items {
			if !s.list().has(i.id) {
				t.Fatalf("%s vanished at once", i.id)
			}
		}
		return due
	}
	if due := turn(sharingAll(4096), all[8:]); due.IsZero() || len(s.list().items) <= 8*4096 {
		t.Errorf("%d ids until %s", len(s.list().items), due)
	}
	now = now.Add(removalDelay)
	if due := turn(sharingAll(4096), all[8:]); !due.IsZero() || len(s.list().items) != 8*4096 || s.list().items[0].device.ID != all[8].ID {
		t.Errorf("after removalDelay: %d ids until %s", len(s.list().items), due)
	}

	var allocated []device.AdvertisedID
	for n := range 4000 {
		allocated = append(allocated, all[8].ID.Replica(n))
	}
	s.fakeSource().GetAllocations = allocationsOf(gpuResource, allocated...)
	turn(sharingAll(60_000), all[:1]) // 64,000 ids together
	now = now.Add(removalDelay)
	turn(sharingAll(60_000), all[:1])
	for _, id := range allocated {
		if !s.list().has(id) {
			t.Fatalf("%s is allocated and not listed", id)
		}
	}
	if n := len(s.list().items); n < 60_000 || n >= 64_000 {
		t.Errorf("%d ids listed, want 60,000 to 64,000", n)
	}
}

// TestTopologyIsMadeOnce: making the topology of 32,768 ids takes 0.1 s, and the kubelet admits no pod for so long.
func TestTopologyIsMadeOnce(t *testing.T) {
	rules, statuses := sharingAll(2), parseStatuses("0 1")
	links := []device.Link{{A: "GPU-0", B: "GPU-1", NVLinks: 4}}
	s := serverWith(rules, statuses)
	s.fakeSource().GetLinks = func() []device.Link { return links }
	last := s.preferredTopology(s.list())
	for _, step := range []struct {
		name string
		do   func()
		same bool
	}{
		{"second call", func() {}, true},
		{"update without a change", func() { s.updateList(rules, parseStatuses("0 1")) }, true},
		{"a failed device", func() { s.updateList(rules, parseStatuses("0 1!")) }, true},
		{"recovered device", func() { s.updateList(rules, parseStatuses("0 1")) }, true},
		{"changed links", func() { links = slices.Clone(links) }, false},
		{"more devices", func() { s.updateList(rules, parseStatuses("0 1 2")) }, false},
		{"fewer devices", func() { s.updateList(rules, parseStatuses("0 1")) }, false},
		{"more replicas", func() { s.updateList(sharingAll(3), parseStatuses("0 1")) }, false},
		{"a withdrawn id", func() {
			s.fakeSource().GetAllocations = allocationsOf(gpuResource, "GPU-0")
			s.updateList(sharingAll(3), parseStatuses("0 1"))
		}, false},
		{"update without a change again", func() { s.updateList(sharingAll(3), parseStatuses("0 1")) }, true},
	} {
		step.do()
		got := s.preferredTopology(s.list())
		if (got == last) != step.same {
			t.Errorf("%s: same topology: %t", step.name, got == last)
		}
		last = got
	}
}

// TestListItemIsSmall: each update makes, copies and sorts tens of thousands of items.
func TestListItemIsSmall(t *testing.T) {
	if size := reflect.TypeFor[listItem]().Size(); size > 128 {
		t.Errorf("item of %d bytes, want at most 128", size)
	}
}

// BenchmarkUpdate is an update without a change, with 32,768 ids.
func BenchmarkUpdate(b *testing.B) {
	statuses := uuidStatuses(8)
	s := &server{endpoint: endpointFor("", sharingAll(4096), statuses...)}
	b.ReportAllocs()
	for b.Loop() {
		lists, _ := sharingAll(4096).deviceLists(statuses)
		s.setDevices(lists[gpuResource], statuses, device.Allocations{}, time.Now())
	}
}

// BenchmarkPreferredAfterAnUpdate is the first call of GetPreferredAllocation after such an update.
func BenchmarkPreferredAfterAnUpdate(b *testing.B) {
	statuses := uuidStatuses(8)
	s := &server{endpoint: endpointFor("", sharingAll(4096), statuses...)}
	request := &api.ContainerPreferredAllocationRequest{AllocationSize: 1}
	for _, i := range s.list().items {
		request.AvailableDeviceIDs = append(request.AvailableDeviceIDs, string(i.id))
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		lists, _ := sharingAll(4096).deviceLists(statuses)
		s.setDevices(lists[gpuResource], statuses, device.Allocations{}, time.Now())
		b.StartTimer()
		_, err := s.GetPreferredAllocation(b.Context(), &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{request}})
		if err != nil {
			b.Fatal(err)
		}
	}
}
