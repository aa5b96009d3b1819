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

// uuids are n GPUs whose ids are as long as real ones.
func uuids(n int) (all []device.Status) {
	for i := range n {
		s := board(fmt.Sprint(i))[0]
		s.ID = device.ID(fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i))
		s.GPU, s.NUMANode = device.GPU(s.ID), i%2
		all = append(all, s)
	}
	return all
}

// TestListedIsTheListsLength: whether a list fits the kubelet's message is known before it is made.
func TestListedIsTheListsLength(t *testing.T) {
	for _, replicas := range []int{0, 1, 2, 9, 10, 11, 99, 100, 101, 1000, 4096, 12345} {
		for _, healthy := range []bool{false, true} {
			statuses := uuids(3)
			statuses[2].NUMANode = -1
			for n := range statuses {
				statuses[n].Healthy = healthy
			}
			offers, cannot := shareAll(replicas).apply(statuses)
			o := offers[wholeGPU]
			if o == nil || len(cannot) > 0 {
				t.Fatalf("%d replicas: %q", replicas, cannot)
			}
			list := o.list()
			for _, d := range list.Devices {
				d.Health = api.Unhealthy
			}
			if got := proto.Size(list); o.bytes != got || o.ids != len(list.Devices) || o.ids != 3*max(replicas, 1) {
				t.Errorf("%d replicas: %d bytes and %d ids, and the list has %d and %d", replicas, o.bytes, o.ids, got, len(list.Devices))
			}
		}
	}
}

// TestReplicasAreBoundByTheKubeletsMessage: a longer list would end the kubelet's stream, again
// and again, and nothing would give the reason.
func TestReplicasAreBoundByTheKubeletsMessage(t *testing.T) {
	of := func(gpus, replicas int) (*offer, string) {
		offers, cannot := shareAll(replicas).apply(uuids(gpus))
		return offers[wholeGPU], strings.Join(cannot, "; ")
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 60_000}, {8, 7_500}, {16, 3_700}} {
		if o, cannot := of(c.gpus, c.replicas); o == nil || len(o.items) != c.gpus*c.replicas || proto.Size(o.list()) > maxMessage || cannot != "" {
			t.Errorf("%d GPUs with %d replicas: %q", c.gpus, c.replicas, cannot)
		}
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 65_536}, {8, 65_536}, {16, 4_096}} {
		o, cannot := of(c.gpus, c.replicas)
		var ids, mib, most int
		_, err := fmt.Sscanf(cannot, "nvidia.com/gpu would have %d ids, and the kubelet reads a list of %d MiB, which is %d of these ids", &ids, &mib, &most)
		if o != nil || err != nil || ids != c.gpus*c.replicas || mib != 4 {
			t.Errorf("%d GPUs with %d replicas: %q", c.gpus, c.replicas, cannot)
		}
		if o, cannot := of(c.gpus, most/c.gpus); o == nil {
			t.Errorf("%d GPUs with %d replicas, as it was told: %q", c.gpus, most/c.gpus, cannot)
		}
	}
}

// TestWithdrawnIDsFitTheKubeletsMessage: withdrawn ids stay listed beside new ones. If a list of
// both were too large for the kubelet, some new ones wait until the withdrawn ones are removed.
func TestWithdrawnIDsFitTheKubeletsMessage(t *testing.T) {
	all, now := uuids(16), time.Now()
	l := holding(shareAll(4096), all[:8])
	l.told.Store(l.offered)
	turn := func(rules Rules, statuses []device.Status) (due time.Time) {
		before := l.offered
		offers, _ := rules.apply(statuses)
		holders, _ := l.Holders()
		due = l.offer(offers[wholeGPU], statuses, holders, now)
		if bytes := proto.Size(l.offered.list()); bytes > maxMessage {
			t.Errorf("the list has %d bytes", bytes)
		}
		if due.IsZero() {
			return due
		}
		for _, i := range before.items {
			if !l.offered.has(i.id) {
				t.Fatalf("%s vanished at once", i.id)
			}
		}
		return due
	}
	if due := turn(shareAll(4096), all[8:]); due.IsZero() || len(l.offered.items) <= 8*4096 {
		t.Errorf("offered are %d ids until %s", len(l.offered.items), due)
	}
	now = now.Add(vanishAfter)
	if due := turn(shareAll(4096), all[8:]); !due.IsZero() || len(l.offered.items) != 8*4096 || l.offered.items[0].device.ID != all[8].ID {
		t.Errorf("then offered are %d ids until %s", len(l.offered.items), due)
	}

	var held []device.OfferedID
	for n := range 4000 {
		held = append(held, all[8].ID.Replica(n))
	}
	l.Holders = as(wholeGPU, held...)
	turn(shareAll(60_000), all[:1]) // beside what would be 64,000 ids
	now = now.Add(vanishAfter)
	turn(shareAll(60_000), all[:1])
	for _, id := range held {
		if !l.offered.has(id) {
			t.Fatalf("%s is allocated and not listed", id)
		}
	}
	if n := len(l.offered.items); n < 60_000 || n >= 64_000 {
		t.Errorf("%d ids are offered", n)
	}
}

// TestTheTopologyIsMadeOnce: with 32,768 ids that takes a tenth of a second, in which the
// kubelet admits no pod.
func TestTheTopologyIsMadeOnce(t *testing.T) {
	rules, statuses := shareAll(2), board("0 1")
	links := []device.Link{{A: "GPU-0", B: "GPU-1", NVLinks: 4}}
	l := holding(rules, statuses)
	l.Links = func() []device.Link { return links }
	last := l.topology(l.offered)
	for _, step := range []struct {
		name string
		do   func()
		same bool
	}{
		{"asked again", func() {}, true},
		{"an idle turn", func() { l.turn(rules, board("0 1")) }, true},
		{"a failed device", func() { l.turn(rules, board("0 1!")) }, true},
		{"it is healthy again", func() { l.turn(rules, board("0 1")) }, true},
		{"other links", func() { links = slices.Clone(links) }, false},
		{"more devices", func() { l.turn(rules, board("0 1 2")) }, false},
		{"fewer devices", func() { l.turn(rules, board("0 1")) }, false},
		{"more replicas", func() { l.turn(shareAll(3), board("0 1")) }, false},
		{"a container from before", func() { l.Holders = as(wholeGPU, "GPU-0"); l.turn(shareAll(3), board("0 1")) }, false},
		{"it goes on", func() { l.turn(shareAll(3), board("0 1")) }, true},
	} {
		step.do()
		got := l.topology(l.offered)
		if (got == last) != step.same {
			t.Errorf("%s: the topology is the same: %t", step.name, got == last)
		}
		last = got
	}
}

// TestAnIDIsSmall: each turn makes tens of thousands of items, and copies and sorts them.
func TestAnIDIsSmall(t *testing.T) {
	if size := reflect.TypeFor[item]().Size(); size > 128 {
		t.Errorf("an item has %d bytes", size)
	}
}

// BenchmarkTurn is a turn of Plugin.Run that changes nothing, with 32,768 ids.
func BenchmarkTurn(b *testing.B) {
	statuses := uuids(8)
	l := &life{endpoint: on("", shareAll(4096), statuses...)}
	b.ReportAllocs()
	for b.Loop() {
		offers, _ := shareAll(4096).apply(statuses)
		l.offer(offers[wholeGPU], statuses, device.Holders{}, time.Now())
	}
}

// BenchmarkPreferredAfterATurn is the kubelet's question after such a turn.
func BenchmarkPreferredAfterATurn(b *testing.B) {
	statuses := uuids(8)
	l := &life{endpoint: on("", shareAll(4096), statuses...)}
	request := &api.ContainerPreferredAllocationRequest{AllocationSize: 1}
	for _, i := range l.offered.items {
		request.AvailableDeviceIDs = append(request.AvailableDeviceIDs, string(i.id))
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		offers, _ := shareAll(4096).apply(statuses)
		l.offer(offers[wholeGPU], statuses, device.Holders{}, time.Now())
		b.StartTimer()
		_, err := l.GetPreferredAllocation(b.Context(), &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{request}})
		if err != nil {
			b.Fatal(err)
		}
	}
}
