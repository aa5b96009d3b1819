package plugin_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/sim/kubelet"
	"github.com/podgauge/podgauge/plugin"
	"github.com/podgauge/podgauge/test/helpers/background"
	"github.com/podgauge/podgauge/test/helpers/require"
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

// formatPreview formats lists as "resource: id id".
func formatPreview(lists []plugin.Resource) string {
	var lines []string
	for _, l := range lists {
		line := strings.TrimPrefix(l.Name, "nvidia.com/") + ":"
		for _, id := range l.IDs {
			line += " " + string(id)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func TestRules(t *testing.T) {
	none, single, mixed := plugin.Rules{}, plugin.Rules{MIGStrategy: config.MIGSingle}, plugin.Rules{MIGStrategy: config.MIGMixed}
	selected, named := mixed, mixed
	selected.Select = func(d device.Device) bool { return d.Index != 1 }
	named.Resources = config.ResourceNames{
		GPUs: []config.NamePattern{{Pattern: "*", Name: "nvidia.com/large"}},
		MIGs: []config.NamePattern{{Pattern: "1g.*", Name: "nvidia.com/small"}},
	}
	sharing := func(rules plugin.Rules, counts map[int]config.DeviceSharing) plugin.Rules {
		rules.Sharing = sharingByIndex(counts)
		return rules
	}
	two, shared := config.DeviceSharing{Replicas: 2}, config.DeviceSharing{Replicas: 2, Resource: "nvidia.com/gpu.shared"}
	someShared := sharing(none, map[int]config.DeviceSharing{
		0: {Replicas: 2, Resource: "nvidia.com/gpu.shared", OnePerContainer: true}, 1: {Replicas: 1},
		2: {Resource: "not/shared", OnePerContainer: true},
	})
	deadDaemon := sharing(none, map[int]config.DeviceSharing{0: shared, 1: {Replicas: 1}})
	deadDaemon.MPSErrors = map[string]string{"nvidia.com/gpu.shared": "no daemon"}
	allShared, sharedMIG := sharing(none, map[int]config.DeviceSharing{0: two, 1: two}), sharing(mixed, map[int]config.DeviceSharing{0: two})
	const (
		withoutMIGDevice = "GPU-0 is MIG-enabled without a MIG device: create MIG devices, or disable MIG mode"
		withoutStrategy  = "GPU-1 is partitioned: MIG strategy none lists neither the GPU nor its MIG devices"
		someWhole        = "MIG strategy single requires MIG devices on all GPUs: some GPUs are not partitioned"
	)
	for _, row := range []struct {
		name, inventory string
		rules           plugin.Rules
		want            string
		cannot          string
	}{
		{"no device", "", none, "", ""},
		{"whole GPUs", "0 1 2", none, "gpu: GPU-0 GPU-1 GPU-2", ""},
		{"a partitioned GPU and no strategy", "0 1m 1/1g.10gb", none, "gpu: GPU-0", withoutStrategy},
		{"mixed", "0 1m 1/1g.10gb 1/1g.10gb 1/3g.40gb", mixed, "gpu: GPU-0; mig-1g.10gb: MIG-2 MIG-3; mig-3g.40gb: MIG-4", ""},
		{"a profile with attributes", "0m 0/1g.10gb+me 0/1c.3g.40gb", mixed, "mig-1c.3g.40gb: MIG-2; mig-1g.10gb.me: MIG-1", ""},
		{"MIG without a MIG device", "0m 1", mixed, "gpu: GPU-1", withoutMIGDevice},
		{"MIG without a MIG device, strategy none", "0m", none, "", withoutMIGDevice},
		{"single", "0m 0/1g.10gb 1m 1/1g.10gb", single, "gpu: MIG-1 MIG-3", ""},
		{"single, all GPUs whole", "0 1", single, "gpu: GPU-0 GPU-1", ""},
		{"single, two profiles", "0m 0/1g.10gb 1m 1/2g.20gb", single, "", "MIG strategy single requires the same profile on all GPUs: found 2 profiles"},
		{"single, some whole", "0 1m 1/1g.10gb", single, "gpu: GPU-0", someWhole},
		{"selected", "0 1m 1/1g.10gb 2", selected, "gpu: GPU-0 GPU-2", ""},
		{"named", "0 1m 1/1g.10gb 1/2g.20gb", named, "large: GPU-0; mig-2g.20gb: MIG-3; small: MIG-2", ""},
		{"shared", "0 1!", allShared, "gpu: GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1", ""},
		{"some shared, under a second name", "0 1 2", someShared, "gpu: GPU-1::0 GPU-2; gpu.shared: GPU-0::0 GPU-0::1", ""},
		{"shared by a dead daemon", "0 1!", deadDaemon, "gpu: GPU-1::0; gpu.shared: GPU-0::0 GPU-0::1", ""},
		{"shared MIG devices", "0m 0/1g.10gb!", sharedMIG, "mig-1g.10gb: MIG-1::0 MIG-1::1", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			lists, warnings := row.rules.Preview(parseStatuses(row.inventory))
			if got := formatPreview(lists); got != row.want || strings.Join(warnings, "; ") != row.cannot {
				t.Errorf("got lists %q, warnings %q, want %q, %q", got, warnings, row.want, row.cannot)
			}
		})
	}
}

// TestReplicasFitTheKubeletsMessage checks the limit of ids: the kubelet would
// end the stream at each longer list, without a log message.
func TestReplicasFitTheKubeletsMessage(t *testing.T) {
	preview := func(gpus, replicas int) (ids []device.AdvertisedID, warnings string) {
		var all []device.Status
		for i := range gpus {
			id := fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i)
			all = append(all, device.Status{Device: device.Device{
				ID: device.ID(id), GPU: device.GPU(id), Index: i, NUMANode: i % 2,
			}})
		}
		lists, texts := sharedRules(replicas).Preview(all)
		if len(lists) > 0 {
			ids = lists[0].IDs
		}
		return ids, strings.Join(texts, "; ")
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 60_000}, {8, 7_500}, {16, 3_700}} {
		ids, warnings := preview(c.gpus, c.replicas)
		list := &api.ListAndWatchResponse{}
		for _, id := range ids {
			topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}}}
			list.Devices = append(list.Devices, &api.Device{ID: string(id), Health: api.Unhealthy, Topology: topology})
		}
		if len(ids) != c.gpus*c.replicas || proto.Size(list) > 4<<20 || warnings != "" {
			t.Errorf("%d GPUs with %d replicas: got %d ids, warnings %q", c.gpus, c.replicas, len(ids), warnings)
		}
	}
	for _, c := range []struct{ gpus, replicas int }{{1, 65_536}, {8, 65_536}, {16, 4_096}} {
		ids, warnings := preview(c.gpus, c.replicas)
		var count, mib, most int
		_, err := fmt.Sscanf(warnings,
			"nvidia.com/gpu needs %d ids, but only %d fit into the kubelet's limit of %d MiB: use fewer replicas",
			&count, &most, &mib)
		if ids != nil || err != nil || count != c.gpus*c.replicas || mib != 4 {
			t.Errorf("%d GPUs with %d replicas: got warnings %q", c.gpus, c.replicas, warnings)
		}
		if ids, warnings := preview(c.gpus, most/c.gpus); ids == nil {
			t.Errorf("%d replicas, as the warning suggests: got warnings %q", most/c.gpus, warnings)
		}
	}
}

func TestMPSDaemon(t *testing.T) {
	dir := background.Dir(t)
	control := filepath.Join(dir, "control")
	wantReady := func(event string, want bool) {
		t.Helper()
		if err := plugin.CheckMPSDaemon(dir); (err == nil) != want {
			t.Errorf("%s: got error %v, want ready: %t", event, err, want)
		}
	}
	wantReady("no control", false)
	require.NoError(t, os.WriteFile(control, nil, 0o600))
	wantReady("a file", false)
	os.Remove(control) //nolint:errcheck // the next step fails otherwise
	require.NoError(t, syscall.Mkfifo(control, 0o600))
	wantReady("a pipe without a reader", false)
	reader, err := os.OpenFile(control, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	wantReady("a pipe with a reader", true)
	reader.Close()     //nolint:errcheck // end of the test
	os.Remove(control) //nolint:errcheck // the next step fails otherwise
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: control})
	require.NoError(t, err)
	wantReady("a socket", true)
	listener.SetUnlinkOnClose(false)
	listener.Close() //nolint:errcheck // end of the test
	wantReady("a socket without a listener", false)
}
