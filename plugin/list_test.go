package plugin_test

import (
	"context"
	"slices"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestEqualListsAreNotSent checks that an unchanged list is not sent again: the
// kubelet writes each list to disk.
func TestEqualListsAreNotSent(t *testing.T) {
	eachVersion(t, func(s *fixture) {
		reads := s.countStatusReads()
		s.start(3)
		change := func(event string, all []device.Status) {
			before := reads.Load()
			s.inventory.Set(all)
			s.poll("the plugin has read "+event, func() bool { return reads.Load() > before })
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
		s.recorded.mu.Lock()
		defer s.recorded.mu.Unlock()
		if want := []string{"3/3", "2/3", "3/3"}; !slices.Equal(s.recorded.sent, want) {
			s.Errorf("hooks: got sent %q, want %q", s.recorded.sent, want)
		}
	})
}

func TestListHasTheNUMANode(t *testing.T) {
	s := newFixture(t)
	s.kubelet = kubelet.New(kubelet.Options{Dir: s.dir})
	all := statuses(3)
	all[2].NUMANode = -1
	s.inventory.Set(all)
	s.startKubelet()
	s.startPlugin()
	s.waitRegistered(3)
	_, list, err := s.stream(s.ctx, s.socket())
	if err != nil {
		t.Fatal(err)
	}
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
	all := statuses(200) // a list of about 5 kB; a connection buffers dozens
	s.inventory.Set(all)
	streams := make(chan grpc.ServerStreamingClient[api.ListAndWatchResponse], 1)
	s.serveRegistration(func(ctx context.Context, endpoint string) error {
		stream, _, err := s.stream(s.ctx, endpoint)
		streams <- stream
		return err
	})
	s.startPlugin()
	stream := receive(s, streams)
	const changes = 3000
	for i := range changes {
		s.inventory.Set(unhealthy(statuses(200), i%200, "lost"))
	}
	s.inventory.Set(unhealthy(unhealthy(statuses(200), 0, "lost"), 1, "lost"))
	lists, failed := 0, 0
	for ; failed != 2; lists++ {
		list, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		failed = len(list.Devices) - healthyOf(list)
	}
	t.Logf("%d changes in %d lists", changes+1, lists)
	if lists > changes/2 {
		t.Errorf("got %d changes in %d lists", changes+1, lists)
	}
}

func healthyOf(list *api.ListAndWatchResponse) (n int) {
	for _, d := range list.Devices {
		if d.Health == api.Healthy {
			n++
		}
	}
	return n
}
