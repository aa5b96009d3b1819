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

// uuidStatuses returns n GPUs with ids of realistic length.
func uuidStatuses(n int) (all []device.Status) {
	for i := range n {
		s := parseStatuses(fmt.Sprint(i))[0]
		s.ID = device.ID(fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i))
		s.GPU, s.NUMANode = device.GPU(s.ID), i%2
		all = append(all, s)
	}
	return all
}

// TestReplicasFitTheKubeletsMessage checks the limit of ids: the kubelet would end the stream at each longer list, without a log message.
func TestReplicasFitTheKubeletsMessage(t *testing.T) {
	of := func(gpus, replicas int) (*deviceList, string) {
		lists, warnings := sharingAll(replicas).deviceLists(uuidStatuses(gpus))
		return lists[gpuResource], strings.Join(warnings, "; ")
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 60_000}, {8, 7_500}, {16, 3_700}} {
		if list, warnings := of(c.gpus, c.replicas); list == nil || len(list.items) != c.gpus*c.replicas || proto.Size(list.toResponse()) > maxMessageBytes || warnings != "" {
			t.Errorf("%d GPUs with %d replicas: got warnings %q", c.gpus, c.replicas, warnings)
		}
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 65_536}, {8, 65_536}, {16, 4_096}} {
		list, warnings := of(c.gpus, c.replicas)
		var ids, mib, most int
		_, err := fmt.Sscanf(warnings, "nvidia.com/gpu needs %d ids, but only %d fit into the kubelet's limit of %d MiB: use fewer replicas", &ids, &most, &mib)
		if list != nil || err != nil || ids != c.gpus*c.replicas || mib != 4 {
			t.Errorf("%d GPUs with %d replicas: got warnings %q", c.gpus, c.replicas, warnings)
		}
		if list, warnings := of(c.gpus, most/c.gpus); list == nil {
			t.Errorf("%d GPUs with %d replicas, as the warning suggests: got warnings %q", c.gpus, most/c.gpus, warnings)
		}
	}
}

// TestTopologyIsReused checks that a topology is reused: for 32,768 ids it takes 0.1 s, in which the kubelet admits no pod.
func TestTopologyIsReused(t *testing.T) {
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
			t.Errorf("%s: topology reused: got %t", step.name, got == last)
		}
		last = got
	}
}

// TestListItemIsSmall limits the size of an item: each update creates, copies and sorts tens of thousands.
func TestListItemIsSmall(t *testing.T) {
	if size := reflect.TypeFor[listItem]().Size(); size > 128 {
		t.Errorf("size of an item: got %d bytes, want at most 128", size)
	}
}

// BenchmarkUpdate measures an update of 32,768 ids without a change.
func BenchmarkUpdate(b *testing.B) {
	statuses := uuidStatuses(8)
	s := &server{endpoint: endpointFor("", sharingAll(4096), statuses...)}
	b.ReportAllocs()
	for b.Loop() {
		lists, _ := sharingAll(4096).deviceLists(statuses)
		s.setDevices(lists[gpuResource], statuses, device.Allocations{}, time.Now())
	}
}

// BenchmarkPreferredAfterAnUpdate measures the first call of GetPreferredAllocation after such an update.
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
