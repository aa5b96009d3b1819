package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/expect"
)

const (
	uuid0   = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"
	uuid1   = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51764"
	migUUID = "MIG-b1028956-cfa2-0990-bf4a-5da9abb51765"
)

var (
	deviceA100 = device.Device{ID: uuid0, GPU: uuid0, MIGDeviceIndex: -1, PCI: "00000000:3B:00.0", Model: "NVIDIA A100-SXM4-40GB"}
	deviceT4   = device.Device{ID: uuid1, GPU: uuid1, Index: 10, MIGDeviceIndex: -1, PCI: "0000:af:00.0", Model: "Tesla T4"}
	deviceMIG  = device.Device{ID: migUUID, GPU: uuid0, MIGDeviceIndex: 1, PCI: deviceA100.PCI, Model: deviceA100.Model}
)

// selectedBy returns the names of the devices for which a function is true.
func selectedBy(matches func(device.Device) bool) string {
	var names []string
	for i, d := range []device.Device{deviceA100, deviceT4, deviceMIG} {
		if matches(d) {
			names = append(names, []string{"A100", "T4", "MIG"}[i])
		}
	}
	return strings.Join(names, " ")
}

func TestDeviceSelectors(t *testing.T) {
	for _, c := range []struct {
		text    string
		want    DeviceSelector // normal form
		matches string
	}{
		{"0", "0", "A100 MIG"},
		{"00", "0", "A100 MIG"},
		{"10", "10", "T4"},
		{"1", "1", ""},
		{"0:1", "0:1", "MIG"},
		{"0:2", "0:2", ""},
		{uuid0, uuid0, "A100 MIG"},
		{strings.ToUpper(uuid0), DeviceSelector(strings.ToUpper(uuid0)), "A100 MIG"},
		{migUUID, migUUID, "MIG"},
		{"MIG-" + uuid0 + "/3/0", "MIG-" + DeviceSelector(uuid0) + "/3/0", ""},
		{"0000:3b:00.0", "0000:3b:00.0", "A100 MIG"},
		{"00000000:3B:00.0", "0000:3b:00.0", "A100 MIG"},
		{"3b:0.0", "0000:3b:00.0", "A100 MIG"},
		{"10000:3b:00.0", "10000:3b:00.0", ""},
		{"model:*A100*", "model:*A100*", "A100 MIG"},
		{"model:Tesla T4", "model:Tesla T4", "T4"},
		{"model:T4", "model:T4", ""},
		{"model:*", "model:*", "A100 T4 MIG"},
	} {
		got, err := ParseDeviceSelector(c.text)
		if matches := selectedBy(got.Matches); err != nil || got != c.want || matches != c.matches {
			t.Errorf("%q: got %q, error %v, which matches %s, want %q and %s", c.text, got, err, matches, c.want, c.matches)
		}
	}
	for _, text := range []string{
		"model:", "", "-1", "0:", ":0", "0:1:2", "65536", "GPU-0", "GPU-b1028956xcfa2-0990-bf4a-5da9abb51763", "MIG-GPU-0/1/2",
		"MIG-" + uuid0, "3b:00.8", "3b:20.0", "zz:00.0", "1:2:3:4.5", "all",
	} {
		if got, err := ParseDeviceSelector(text); err == nil {
			t.Errorf("%q: got %q, want an error", text, got)
		}
	}
}

func TestDeviceFilter(t *testing.T) {
	type list = []DeviceSelector
	for want, filters := range map[string][]DeviceFilter{
		"A100 T4 MIG": {{}},
		"A100 MIG":    {{Include: list{"0"}}, {Include: list{"0", "10"}, Exclude: list{"10"}}},
		"MIG":         {{Include: list{"0:1"}}},
		"A100 T4":     {{Exclude: list{"0:1"}}},
		"T4":          {{Exclude: list{"model:*A100*"}}},
	} {
		for _, f := range filters {
			expect.Equal(t, selectedBy(f.Allows), want, f)
		}
	}
}

func TestClaimPatterns(t *testing.T) {
	for pattern, want := range map[string]bool{
		"monitoring/*": true, "monitoring/dcgm-*": true, "*/dcgm-*-gpus-*/gpu.nvidia.com": true, "*/*": true, "*/*/*": true,
		"*/*/gpu.nvidia.com": true, "*/*/nic.example.com": false, "monitoring/dcgm": false, "monitor/*": false,
	} {
		p, err := ParseClaimPattern(pattern)
		claims := ClaimsConfig{Ignore: []ClaimPattern{"other/*/*", p}}
		if got := claims.Ignores("monitoring", "dcgm-x7k2p-gpus-8h2lk", "gpu.nvidia.com"); err != nil || got != want {
			t.Errorf("%s: got %t, error %v, want %t", pattern, got, err, want)
		}
	}
	for _, pattern := range []string{"", "*", "monitoring", "/", "a/", "/a", "a/b/", "a/b/c/d", "Monitoring/*", "a b/*", "a/b_c", "ä/*", "a/b\n"} {
		if _, err := ParseClaimPattern(pattern); err == nil {
			t.Errorf("%q: got no error", pattern)
		}
	}
}

func TestResourceNames(t *testing.T) {
	r := ResourceNames{
		GPUs: []NamePattern{{"*A100*", "nvidia.com/a100"}, {"*", "example.com/other"}},
		MIGs: []NamePattern{{"1g.10gb", "nvidia.com/small"}, {"3g*", "nvidia.com/big"}},
	}
	for _, c := range []struct{ got, want string }{
		{ResourceNames{}.GPU("NVIDIA H100"), "nvidia.com/gpu"},
		{ResourceNames{}.MIG(MIGNone, "1g.10gb"), ""},
		{ResourceNames{}.MIG(MIGSingle, "1g.10gb"), "nvidia.com/gpu"},
		{ResourceNames{}.MIG(MIGMixed, "1g.10gb"), "nvidia.com/mig-1g.10gb"},
		{ResourceNames{}.MIG(MIGMixed, "1g.24gb+me.all"), "nvidia.com/mig-1g.24gb.me.all"},
		{ResourceNames{}.MIG(MIGMixed, "1g.24gb-me"), "nvidia.com/mig-1g.24gb-me"},
		{ResourceNames{}.MIG(MIGMixed, "1c.3g.20gb"), "nvidia.com/mig-1c.3g.20gb"},
		{r.GPU("NVIDIA A100-SXM4-40GB"), "nvidia.com/a100"},
		{r.GPU("Tesla T4"), "example.com/other"},
		{r.MIG(MIGMixed, "1g.10gb"), "nvidia.com/small"},
		{r.MIG(MIGMixed, "1g.10gb+me"), "nvidia.com/mig-1g.10gb.me"}, // a pattern matches the whole profile
		{r.MIG(MIGSingle, "3g.20gb"), "nvidia.com/big"},
		{r.MIG(MIGSingle, "2g.20gb"), "nvidia.com/gpu"},
		{r.MIG(MIGNone, "3g.20gb"), ""},
	} {
		if c.got != c.want || c.got != "" && CheckResourceName(c.got) != nil {
			t.Errorf("got %s, want %s: %v", c.got, c.want, CheckResourceName(c.got))
		}
	}
}

// TestCheckResourceName checks the kubelet's rule for resource names.
func TestCheckResourceName(t *testing.T) {
	valid := "nvidia.com/gpu nvidia.com/GPU_a.b-c a/b example.com/" + strings.Repeat("a", 63) + " " + strings.Repeat("a.", 121) + "a/gpu"
	invalid := "gpu /gpu nvidia.com/ nvidia.com/a/b kubernetes.io/gpu x.kubernetes.io/gpu requests.nvidia.com/gpu Nvidia.com/gpu " +
		"nvidia..com/gpu -a/gpu a_b/gpu nvidia.com/-gpu nvidia.com/gpu. nvidia.com/g+u nvidia.com/gpü example.com/" +
		strings.Repeat("a", 64) + " " + strings.Repeat("a.", 122) + "a/gpu"
	for want, names := range map[bool][]string{true: strings.Fields(valid), false: append(strings.Fields(invalid), "")} {
		for _, name := range names {
			if err := CheckResourceName(name); (err == nil) != want {
				t.Errorf("%q: got error %v, want valid: %v", name, err, want)
			}
		}
	}
}

// TestDeviceSharings checks several entries for one resource.
func TestDeviceSharings(t *testing.T) {
	other := device.Device{ID: uuid1, GPU: uuid1, Index: 2, Model: "Tesla T4"}
	devices := []device.Device{deviceA100, other, deviceT4} // indices 0, 2, 10
	type resources = []SharedResource
	shared := func(d DeviceSelection, replicas ReplicaCount) SharedResource {
		return SharedResource{Name: GPUResource, Devices: d, Replicas: replicas}
	}
	all := DeviceSelection{All: true}
	listed := func(names ...DeviceSelector) DeviceSelection { return DeviceSelection{List: names} }
	for _, c := range []struct {
		name      string
		resources resources
		want      string // replicas in the order of the devices
	}{
		{"none", nil, "[0 0 0]"},
		{"all twice, as NVIDIA's plugin", resources{shared(all, 4), shared(all, 2)}, "[4 4 4]"},
		{"the first two by index", resources{shared(DeviceSelection{Count: 2}, 4)}, "[4 4 0]"},
		{"count above the number of devices", resources{shared(DeviceSelection{Count: 9}, 4)}, "[4 4 4]"},
		{"some", resources{shared(listed("0", "99"), 4)}, "[4 0 0]"},
		{"one device differs", resources{shared(all, 8), shared(listed("0"), 2)}, "[2 8 8]"},
		{"one device differs, listed first", resources{shared(listed("0"), 2), shared(all, 8)}, "[2 8 8]"},
		{"one device of a model differs", resources{shared(listed("model:Tesla*"), 8), shared(listed("2"), 2)}, "[0 2 8]"},
		{"a model differs", resources{shared(all, 3), shared(DeviceSelection{Count: 3}, 5), shared(listed("model:Tesla*"), 2)}, "[5 2 2]"},
		{"another resource", resources{{Name: "nvidia.com/mig-1g.5gb", Devices: all, Replicas: 2}}, "[0 0 0]"},
	} {
		var got []int
		for _, sharing := range (SharingMethod{Resources: c.resources}).DeviceSharings(GPUResource, devices) {
			got = append(got, sharing.Replicas)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
	renamed := SharingMethod{Resources: resources{
		{Name: GPUResource, Rename: "nvidia.com/gpu.shared", Devices: listed("0"), Replicas: 2},
	}}
	want := []DeviceSharing{{Resource: "nvidia.com/gpu.shared", Replicas: 2}, {}, {}}
	expect.DeepEqual(t, renamed.DeviceSharings(GPUResource, devices), want, "renamed")
	for _, s := range []SharingConfig{{TimeSlicing: renamed}, {MPS: renamed}} {
		expect.DeepEqual(t, s.Active(), renamed, s)
	}
}
