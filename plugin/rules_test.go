package plugin_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin"
)

// sharingByIndex shares the GPUs with these indices.
func sharingByIndex(counts map[int]config.DeviceSharing) func(string, []device.Device) []config.DeviceSharing {
	return func(_ string, devices []device.Device) []config.DeviceSharing {
		sharings := make([]config.DeviceSharing, len(devices))
		for i, d := range devices {
			sharings[i] = counts[d.Index]
		}
		return sharings
	}
}

// formatPreview formats lists as "resource: id id".
func formatPreview(lists []plugin.ResourceIDs) string {
	var lines []string
	for _, l := range lists {
		line := strings.TrimPrefix(l.Resource, "nvidia.com/") + ":"
		for _, id := range l.IDs {
			line += " " + string(id)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func TestRules(t *testing.T) {
	for _, row := range []struct {
		name, inventory string
		rules           plugin.Rules
		want            string
		cannot          string
	}{
		{name: "no device"},
		{name: "whole GPUs", inventory: "0 1 2", want: "gpu: GPU-0 GPU-1 GPU-2"},
		{
			name: "a partitioned GPU and no strategy", inventory: "0 1m 1/1g.10gb", want: "gpu: GPU-0",
			cannot: "GPU-1 is partitioned: MIG strategy none lists neither the GPU nor its MIG devices",
		},
		{
			name: "mixed", rules: plugin.Rules{MIGStrategy: config.MIGMixed},
			inventory: "0 1m 1/1g.10gb 1/1g.10gb 1/3g.40gb",
			want:      "gpu: GPU-0; mig-1g.10gb: MIG-2 MIG-3; mig-3g.40gb: MIG-4",
		},
		{
			name: "a profile with attributes", rules: plugin.Rules{MIGStrategy: config.MIGMixed},
			inventory: "0m 0/1g.10gb+me 0/1c.3g.40gb", want: "mig-1c.3g.40gb: MIG-2; mig-1g.10gb.me: MIG-1",
		},
		{
			name: "MIG without a MIG device", rules: plugin.Rules{MIGStrategy: config.MIGMixed}, inventory: "0m 1",
			want:   "gpu: GPU-1",
			cannot: "GPU-0 is MIG-enabled without a MIG device: create MIG devices, or disable MIG mode",
		},
		{
			name: "MIG without a MIG device, strategy none", rules: plugin.Rules{}, inventory: "0m",
			cannot: "GPU-0 is MIG-enabled without a MIG device: create MIG devices, or disable MIG mode",
		},
		{
			name: "single", rules: plugin.Rules{MIGStrategy: config.MIGSingle}, inventory: "0m 0/1g.10gb 1m 1/1g.10gb",
			want: "gpu: MIG-1 MIG-3",
		},
		{
			name: "single, all GPUs whole", rules: plugin.Rules{MIGStrategy: config.MIGSingle}, inventory: "0 1",
			want: "gpu: GPU-0 GPU-1",
		},
		{
			name: "single, two profiles", rules: plugin.Rules{MIGStrategy: config.MIGSingle},
			inventory: "0m 0/1g.10gb 1m 1/2g.20gb",
			cannot:    "MIG strategy single requires the same profile on all GPUs: found 2 profiles",
		},
		{
			name: "single, some whole", rules: plugin.Rules{MIGStrategy: config.MIGSingle}, inventory: "0 1m 1/1g.10gb",
			want:   "gpu: GPU-0",
			cannot: "MIG strategy single requires MIG devices on all GPUs: some GPUs are not partitioned",
		},
		{
			name: "selected", rules: plugin.Rules{
				MIGStrategy: config.MIGMixed,
				Select:      func(d device.Device) bool { return d.Index != 1 },
			},
			inventory: "0 1m 1/1g.10gb 2", want: "gpu: GPU-0 GPU-2",
		},
		{
			name: "named", inventory: "0 1m 1/1g.10gb 1/2g.20gb",
			want: "large: GPU-0; mig-2g.20gb: MIG-3; small: MIG-2",
			rules: plugin.Rules{MIGStrategy: config.MIGMixed, Resources: config.ResourceNames{
				GPUs: []config.NamePattern{{Pattern: "*", Name: "nvidia.com/large"}},
				MIGs: []config.NamePattern{{Pattern: "1g.*", Name: "nvidia.com/small"}},
			}},
		},
		{
			name: "shared", rules: plugin.Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{
				0: {Replicas: 2},
				1: {Replicas: 2},
			})}, inventory: "0 1!",
			want: "gpu: GPU-0::0 GPU-0::1 GPU-1::0 GPU-1::1",
		},
		{
			name: "some shared, under a second name", inventory: "0 1 2",
			rules: plugin.Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{
				0: {Replicas: 2, Resource: "nvidia.com/gpu.shared", OnePerContainer: true}, 1: {Replicas: 1},
				2: {Resource: "not/shared", OnePerContainer: true},
			})},
			want: "gpu: GPU-1::0 GPU-2; gpu.shared: GPU-0::0 GPU-0::1",
		},
		{
			name: "shared by a dead daemon", inventory: "0 1!",
			rules: plugin.Rules{
				Sharing: sharingByIndex(map[int]config.DeviceSharing{0: {
					Replicas: 2,
					Resource: "nvidia.com/gpu.shared",
				}, 1: {Replicas: 1}}),
				MPSErrors: map[string]string{"nvidia.com/gpu.shared": "no daemon"},
			},
			want: "gpu: GPU-1::0; gpu.shared: GPU-0::0 GPU-0::1",
		},
		{
			name: "shared MIG devices", rules: plugin.Rules{
				MIGStrategy: config.MIGMixed,
				Sharing:     sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}}),
			}, inventory: "0m 0/1g.10gb!",
			want: "mig-1g.10gb: MIG-1::0 MIG-1::1",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			lists, warnings := row.rules.Preview(plugin.ParseStatuses(row.inventory))
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
