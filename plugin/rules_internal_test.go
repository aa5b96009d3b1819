package plugin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podgauge/podgauge/internal/config"
	"github.com/podgauge/podgauge/internal/device"
)

const gpuResource = config.GPUResource

// parseStatuses parses statuses: "0" is a GPU, "1m" a MIG-enabled GPU, "1/1g.10gb" a MIG device of GPU 1. "!" marks an unhealthy device.
func parseStatuses(words string) []device.Status {
	var all []device.Status
	for n, word := range strings.Fields(words) {
		word, unhealthy := strings.CutSuffix(word, "!")
		name, profile, isMIG := strings.Cut(word, "/")
		name, mig := strings.CutSuffix(name, "m")
		s := device.Status{Healthy: !unhealthy, Device: device.Device{GPU: device.GPU("GPU-" + name), MIGEnabled: mig, NUMANode: -1}}
		fmt.Sscan(name, &s.Index) //nolint:errcheck // test data is valid
		s.ID = device.ID(s.GPU)
		if isMIG {
			s.ID, s.Profile = device.ID(fmt.Sprintf("MIG-%d", n)), profile
		}
		all = append(all, s)
	}
	return all
}

// formatLists formats lists as "resource: id id!".
func formatLists(lists map[string]*deviceList) string {
	var lines []string
	for _, resource := range slices.Sorted(maps.Keys(lists)) {
		line := strings.TrimPrefix(resource, "nvidia.com/") + ":"
		for _, i := range lists[resource].items {
			line += " " + string(i.id)
			if !i.healthy {
				line += "!"
			}
			if i.onePerContainer {
				line += "¹"
			}
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

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

func TestRules(t *testing.T) {
	for _, row := range []struct {
		name, inventory string
		rules           Rules
		want            string
		cannot          string
	}{
		{name: "no device"},
		{name: "whole GPUs", inventory: "0 1! 2", want: "gpu: GPU-0 GPU-1! GPU-2"},
		{
			name: "a partitioned GPU and no strategy", inventory: "0 1m 1/1g.10gb", want: "gpu: GPU-0",
			cannot: "GPU-1 is partitioned: MIG strategy none lists neither the GPU nor its MIG devices",
		},
		{
			name: "mixed", rules: Rules{MIGStrategy: config.MIGMixed}, inventory: "0 1m 1/1g.10gb 1/1g.10gb! 1/3g.40gb",
			want: "gpu: GPU-0; mig-1g.10gb: MIG-2 MIG-3!; mig-3g.40gb: MIG-4",
		},
		{name: "a profile with attributes", rules: Rules{MIGStrategy: config.MIGMixed}, inventory: "0m 0/1g.10gb+me 0/1c.3g.40gb", want: "mig-1c.3g.40gb: MIG-2; mig-1g.10gb.me: MIG-1"},
		{
			name: "MIG without a MIG device", rules: Rules{MIGStrategy: config.MIGMixed}, inventory: "0m 1", want: "gpu: GPU-1",
			cannot: "GPU-0 is MIG-enabled without a MIG device: create MIG devices, or disable MIG mode",
		},
		{
			name: "MIG without a MIG device, strategy none", rules: Rules{}, inventory: "0m",
			cannot: "GPU-0 is MIG-enabled without a MIG device: create MIG devices, or disable MIG mode",
		},
		{name: "single", rules: Rules{MIGStrategy: config.MIGSingle}, inventory: "0m 0/1g.10gb 1m 1/1g.10gb", want: "gpu: MIG-1 MIG-3"},
		{name: "single, all GPUs whole", rules: Rules{MIGStrategy: config.MIGSingle}, inventory: "0 1", want: "gpu: GPU-0 GPU-1"},
		{
			name: "single, two profiles", rules: Rules{MIGStrategy: config.MIGSingle}, inventory: "0m 0/1g.10gb 1m 1/2g.20gb",
			cannot: "MIG strategy single requires the same profile on all GPUs: found 2 profiles",
		},
		{
			name: "single, some whole", rules: Rules{MIGStrategy: config.MIGSingle}, inventory: "0 1m 1/1g.10gb", want: "gpu: GPU-0",
			cannot: "MIG strategy single requires MIG devices on all GPUs: some GPUs are not partitioned",
		},
		{
			name: "selected", rules: Rules{MIGStrategy: config.MIGMixed, Select: func(d device.Device) bool { return d.Index != 1 }},
			inventory: "0 1m 1/1g.10gb 2", want: "gpu: GPU-0 GPU-2",
		},
		{
			name: "named", inventory: "0 1m 1/1g.10gb 1/2g.20gb", want: "large: GPU-0; mig-2g.20gb: MIG-3; small: MIG-2",
			rules: Rules{MIGStrategy: config.MIGMixed, Resources: config.ResourceNames{
				GPUs: []config.NamePattern{{Pattern: "*", Name: "nvidia.com/large"}}, MIGs: []config.NamePattern{{Pattern: "1g.*", Name: "nvidia.com/small"}},
			}},
		},
		{
			name: "shared", rules: Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}, 1: {Replicas: 2}})}, inventory: "0 1!",
			want: "gpu: GPU-0::0 GPU-0::1 GPU-1::0! GPU-1::1!",
		},
		{
			name: "some shared, under a second name", inventory: "0 1 2",
			rules: Rules{Sharing: sharingByIndex(map[int]config.DeviceSharing{
				0: {Replicas: 2, Resource: "nvidia.com/gpu.shared", OnePerContainer: true}, 1: {Replicas: 1}, 2: {Resource: "not/shared", OnePerContainer: true},
			})},
			want: "gpu: GPU-1::0 GPU-2; gpu.shared: GPU-0::0¹ GPU-0::1¹",
		},
		{
			name: "shared by a dead daemon", inventory: "0 1!",
			rules: Rules{
				Sharing:   sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2, Resource: "nvidia.com/gpu.shared"}, 1: {Replicas: 1}}),
				MPSErrors: map[string]string{"nvidia.com/gpu.shared": "no daemon"},
			},
			want: "gpu: GPU-1::0!; gpu.shared: GPU-0::0! GPU-0::1!",
		},
		{
			name: "shared MIG devices", rules: Rules{MIGStrategy: config.MIGMixed, Sharing: sharingByIndex(map[int]config.DeviceSharing{0: {Replicas: 2}})}, inventory: "0m 0/1g.10gb!",
			want: "mig-1g.10gb: MIG-1::0! MIG-1::1!",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			lists, warnings := row.rules.deviceLists(parseStatuses(row.inventory))
			if got := formatLists(lists); got != row.want || strings.Join(warnings, "; ") != row.cannot {
				t.Errorf("got lists %q, warnings %q, want %q, %q", got, warnings, row.want, row.cannot)
			}
		})
	}
}

// TestCarryOver covers the rows of the table at carryOver.
func TestCarryOver(t *testing.T) {
	now := time.Unix(1e9, 0)
	have := &deviceList{}
	for i, step := range []struct {
		after             time.Duration
		inventory         string
		allocated, listed string
		want              string
		next              time.Duration // until the first id is removed; 0: never
	}{
		{0, "0 1 2", "", "", "GPU-0 GPU-1 GPU-2", 0},
		{0, "0 1", "", "GPU-0 GPU-1", "GPU-0 GPU-1", 0}, // 2 was never sent
		{0, "0", "", "GPU-0 GPU-1", "GPU-0 GPU-1!", removalDelay},
		{removalDelay - 1, "0", "", "GPU-0 GPU-1", "GPU-0 GPU-1!", 1},
		{1, "0", "", "GPU-0 GPU-1", "GPU-0", 0},
		{0, "0 1", "", "GPU-0", "GPU-0 GPU-1", 0},
		{0, "0", "GPU-1", "GPU-0 GPU-1", "GPU-0 GPU-1!", 0},                   // an allocated device disappears
		{time.Hour, "0", "GPU-1", "GPU-0 GPU-1", "GPU-0 GPU-1!", 0},           // however long
		{time.Hour, "0", "", "GPU-0 GPU-1", "GPU-0", 0},                       // until released
		{0, "", "", "GPU-0", "GPU-0!", removalDelay},                          // the last device
		{removalDelay / 2, "0", "", "GPU-0", "GPU-0", 0},                      // returns
		{0, "0m 0/1g.10gb", "GPU-0", "GPU-0", "GPU-0 MIG-1", 0},               // allocated, and the device exists
		{time.Second, "0m! 0/1g.10gb!", "GPU-0", "GPU-0", "GPU-0! MIG-1!", 0}, // and fails
		{time.Second, "0m 0/1g.10gb", "GPU-0", "GPU-0", "GPU-0 MIG-1", 0},
		{time.Second, "0m 0/1g.10gb", "", "", "GPU-0! MIG-1", removalDelay}, // released, never allocated again
		{removalDelay, "0m 0/1g.10gb", "", "GPU-0 MIG-1", "MIG-1", 0},
		// Allocated before this process: an existing device, lost devices, and the device of a foreign plugin.
		{0, "0m 0/1g.10gb", "GPU-0::1 GPU-7 GPU-8::1 MIG-9 nvidia3", "", "GPU-0::1 GPU-7! GPU-8::1! MIG-1 MIG-9!", 0},
		{time.Hour, "0m! 0/1g.10gb!", "GPU-0::1", "", "GPU-0::1! MIG-1!", 0},
		{time.Hour, "0m 0/1g.10gb", "", "", "MIG-1", 0},
	} {
		now = now.Add(step.after)
		sent := &deviceList{}
		for _, id := range advertisedIDs(strings.Fields(step.listed)) {
			sent.items = append(sent.items, listItem{id: id})
		}
		statuses := parseStatuses(step.inventory)
		next := &deviceList{}
		for _, s := range statuses {
			if !s.MIGEnabled {
				next.items = append(next.items, listItem{id: s.ID.Advertised(), device: &s.Device, healthy: s.Healthy})
			}
		}
		next.sort()
		first := have.carryOver(next, statuses, retainedIDs{advertisedIDs(strings.Fields(step.allocated)), sent}, now)
		if got := strings.TrimPrefix(formatLists(map[string]*deviceList{"": next}), ": "); got != step.want {
			t.Errorf("step %d: got list %q, want %q", i, got, step.want)
		}
		if got := first.Sub(now); step.next == 0 != first.IsZero() || step.next > 0 && got != step.next {
			t.Errorf("step %d: got next removal after %s, want %s", i, got, step.next)
		}
		have = next
	}
}
