package plugin_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestEqualListsAreNotSent checks that an unchanged list is not sent again: the
// kubelet writes each list to disk.
func TestEqualListsAreNotSent(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		var updates atomic.Int64
		s.rules.Set(plugin.Rules{Select: func(device.Device) bool {
			updates.Add(1)
			return true
		}})
		s.start(3)
		change := func(event string, all []device.Status) {
			before := updates.Load()
			s.inventory.Set(all)
			s.poll("an update by "+event, func() bool { return updates.Load() >= before+3 })
		}
		change("the same", statuses(3))
		counted := statuses(3)
		counted[0].Xids = []device.Xid{{Code: 13, Count: 1}}
		change("an Xid without a change of health", counted)
		reversed := statuses(3)
		slices.Reverse(reversed)
		change("reversed order", reversed)
		change("a failed GPU", unhealthy(statuses(3), 1, "lost"))
		change("a new reason", unhealthy(statuses(3), 1, "xid_79"))
		change("a recovered GPU", statuses(3))
		s.waitRegistered(3)
		s.wait("three lists", func(k kubelet.KubeletState) bool { return k.Resources[resource].Updates == 3 })
		if r := s.kubelet.Resource(resource); r.Updates != 3 || r.Repeats != 0 {
			s.Errorf("got %d lists, %d of them repeated, want 3 and 0", r.Updates, r.Repeats)
		}
	})
}

func TestListHasTheNUMANode(t *testing.T) {
	s := newFixture(t)
	all := statuses(3)
	all[2].NUMANode = -1
	s.inventory.Set(all)
	s.startKubelet()
	s.startPlugin()
	s.waitRegistered(3)
	stream, err := s.dial(s.socket()).ListAndWatch(s.ctx, &api.Empty{})
	s.must(err)
	list, err := stream.Recv()
	s.must(err)
	for i, d := range list.Devices[:2] {
		if nodes := d.GetTopology().GetNodes(); len(nodes) != 1 || nodes[0].ID != int64(i) {
			t.Errorf("topology of %s: got %v", d.ID, d.Topology)
		}
	}
	if d := list.Devices[2]; d.Topology != nil {
		t.Errorf("topology of %s: got %v, want none", d.ID, d.Topology)
	}
}

// TestListsAreCoalesced checks that a slow kubelet gets fewer lists, among them
// the newest, and delays no update.
func TestListsAreCoalesced(t *testing.T) {
	s := newFixture(t)
	lists := s.watchLists(statuses(200)) // a list of about 5 kB; a connection buffers dozens
	const changes = 1000
	for i := range changes {
		s.inventory.Set(unhealthy(statuses(200), i%200, "lost"))
	}
	s.inventory.Set(unhealthy(unhealthy(statuses(200), 0, "lost"), 1, "lost"))
	received := 0
	for ; strings.Count(lists.newest, "!") != 2; received++ {
		list, err := lists.stream.Recv()
		s.must(err)
		lists.newest = formatList(list)
	}
	if received > changes/2 {
		t.Errorf("got %d changes in %d lists", changes+1, received)
	}
}

// TestListHasAllocatedIDs covers the ids of a list, as steps of a node's life.
func TestListHasAllocatedIDs(t *testing.T) {
	t.Parallel()
	s := newFixture(t)
	unshared := plugin.Rules{MIGStrategy: config.MIGSingle}
	reserving := plugin.Rules{ReserveClaimed: true}
	s.rules.Set(unshared)
	lists := s.watchLists(parseStatuses("0 1 2"))
	lists.want("at first", "GPU-0 GPU-1 GPU-2")
	for _, step := range []struct {
		name                 string
		rules                plugin.Rules
		inventory, allocated string
		want                 []string
	}{
		{"a device vanishes", unshared, "0 1", "", []string{"GPU-0 GPU-1 GPU-2!", "GPU-0 GPU-1"}},
		{"a device returns", unshared, "0 1 2", "", []string{"GPU-0 GPU-1 GPU-2"}},
		{"an allocated device vanishes too", unshared, "0", "GPU-1", []string{"GPU-0 GPU-1! GPU-2!", "GPU-0 GPU-1!"}},
		{"the container ends", unshared, "0", "", []string{"GPU-0"}},
		{"the last device vanishes", unshared, "", "", []string{"GPU-0!"}},
		{"the last device returns", unshared, "0", "", []string{"GPU-0"}},
		{"an allocated GPU is partitioned", unshared, "0m 0/1g.10gb", "GPU-0", []string{"GPU-0 MIG-1"}},
		{"the GPU fails", unshared, "0m! 0/1g.10gb!", "GPU-0", []string{"GPU-0! MIG-1!"}},
		{"the GPU recovers", unshared, "0m 0/1g.10gb", "GPU-0", []string{"GPU-0 MIG-1"}},
		{"the GPU is released", unshared, "0m 0/1g.10gb", "", []string{"GPU-0! MIG-1", "MIG-1"}},
		// Existing, lost and foreign devices.
		{
			"ids of an earlier process", unshared, "0m 0/1g.10gb", "GPU-0::1 GPU-7 GPU-8::1 MIG-9 nvidia3",
			[]string{"GPU-0::1 GPU-7! GPU-8::1! MIG-1 MIG-9!"},
		},
		{"their containers end", unshared, "0m 0/1g.10gb", "", []string{"MIG-1"}},
		{"replicas while the GPU is allocated", sharedRules(2), "0", "GPU-0", []string{"GPU-0 GPU-0::0 GPU-0::1"}},
		{"the shared GPU fails", sharedRules(2), "0!", "GPU-0", []string{"GPU-0! GPU-0::0! GPU-0::1!"}},
		{"an ending and a starting container have an id", sharedRules(1), "0", "GPU-0 GPU-0 GPU-0::7 GPU-0::7", []string{"GPU-0 GPU-0::0 GPU-0::7"}},
		{"a GPU with an allocated replica", unshared, "0 1", "GPU-0::1", []string{"GPU-0! GPU-0::1 GPU-1"}},
		{"the pod's status shows the GPU's health", unshared, "0 1", "GPU-0 GPU-0::1", []string{"GPU-0 GPU-0::1 GPU-1"}},
		{"allocated as a second resource", unshared, "0 1", "nvidia.com/a100=GPU-1", []string{"GPU-0 GPU-1!"}},
		{"released", unshared, "0 1", "", []string{"GPU-0 GPU-1"}},
		// The kubelet does not report admin access.
		{"allocated to a claim", reserving, "0 1", "gpu.nvidia.com=GPU-1", []string{"GPU-0 GPU-1!"}},
		{"claims reserve no device", unshared, "0 1", "gpu.nvidia.com=GPU-1", []string{"GPU-0 GPU-1"}},
	} {
		began := time.Now()
		s.allocations.Set(parseAllocations(step.allocated))
		s.inventory.Set(parseStatuses(step.inventory))
		s.rules.Set(step.rules)
		for _, want := range step.want {
			lists.want(step.name, want)
		}
		s.wantFast(step.name, time.Since(began))
	}
	s.allocations.Set(parseAllocations("GPU-0"))
	s.rules.Set(sharedRules(2))
	lists.want("shared again", "GPU-0 GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1")
	_, err := lists.allocate("GPU-0")
	if got := status.Convert(err).Message(); got != "cannot allocate: GPU-0 is withdrawn" {
		t.Errorf("Allocate of a withdrawn id: got %q", got)
	}
}
