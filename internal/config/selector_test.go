package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
)

const (
	uuid0   = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"
	uuid1   = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51764"
	migUUID = "MIG-b1028956-cfa2-0990-bf4a-5da9abb51765"
)

var (
	deviceA100 = device.Device{
		ID: uuid0, GPU: uuid0, MIGDeviceIndex: -1, PCI: "00000000:3B:00.0",
		Model: "NVIDIA A100-SXM4-40GB",
	}
	deviceT4 = device.Device{
		ID: uuid1, GPU: uuid1, Index: 10, MIGDeviceIndex: -1, PCI: "0000:af:00.0",
		Model: "Tesla T4",
	}
	deviceMIG = device.Device{ID: migUUID, GPU: uuid0, MIGDeviceIndex: 1, PCI: deviceA100.PCI, Model: deviceA100.Model}
)

func TestDeviceSelectors(t *testing.T) {
	for _, c := range []struct {
		text    string
		want    DeviceSelector // empty: an error
		matches []device.Device
	}{
		{"0", "0", []device.Device{deviceA100, deviceMIG}},
		{"00", "0", []device.Device{deviceA100, deviceMIG}},
		{"10", "10", []device.Device{deviceT4}},
		{"1", "1", nil},
		{"0:1", "0:1", []device.Device{deviceMIG}},
		{"0:2", "0:2", nil},
		{uuid0, uuid0, []device.Device{deviceA100, deviceMIG}},
		{strings.ToUpper(uuid0[:4]) + strings.ToUpper(uuid0[4:]), "", []device.Device{deviceA100, deviceMIG}},
		{migUUID, migUUID, []device.Device{deviceMIG}},
		{"MIG-" + uuid0 + "/3/0", "MIG-" + DeviceSelector(uuid0) + "/3/0", nil},
		{"0000:3b:00.0", "0000:3b:00.0", []device.Device{deviceA100, deviceMIG}},
		{"00000000:3B:00.0", "0000:3b:00.0", []device.Device{deviceA100, deviceMIG}},
		{"3b:0.0", "0000:3b:00.0", []device.Device{deviceA100, deviceMIG}},
		{"10000:3b:00.0", "10000:3b:00.0", nil},
		{"model:*A100*", "model:*A100*", []device.Device{deviceA100, deviceMIG}},
		{"model:Tesla T4", "model:Tesla T4", []device.Device{deviceT4}},
		{"model:T4", "model:T4", nil},
		{"model:*", "model:*", []device.Device{deviceA100, deviceT4, deviceMIG}},
		{"model:", "", nil},
		{"", "", nil},
		{"-1", "", nil},
		{"0:", "", nil},
		{":0", "", nil},
		{"0:1:2", "", nil},
		{"65536", "", nil},
		{"GPU-0", "", nil},
		{"GPU-b1028956xcfa2-0990-bf4a-5da9abb51763", "", nil},
		{"MIG-GPU-0/1/2", "", nil},
		{"MIG-" + uuid0, "", nil},
		{"3b:00.8", "", nil},
		{"3b:20.0", "", nil},
		{"zz:00.0", "", nil},
		{"1:2:3:4.5", "", nil},
		{"all", "", nil},
	} {
		ref, err := ParseDeviceSelector(c.text)
		if c.want == "" && len(c.matches) > 0 {
			c.want = DeviceSelector(c.text)
		}
		if ref != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: got %q, error %v, want %q", c.text, ref, err, c.want)
			continue
		}
		var matches []device.Device
		for _, d := range []device.Device{deviceA100, deviceT4, deviceMIG} {
			if err == nil && ref.Matches(d) {
				matches = append(matches, d)
			}
		}
		if !reflect.DeepEqual(matches, c.matches) {
			t.Errorf("%q matches %v, want %v", c.text, matches, c.matches)
		}
	}
}

func TestSelect(t *testing.T) {
	for _, c := range []struct {
		s                DeviceFilter
		a100, t4, onA100 bool
	}{
		{DeviceFilter{}, true, true, true},
		{DeviceFilter{Include: []DeviceSelector{"0"}}, true, false, true},
		{DeviceFilter{Include: []DeviceSelector{"0:1"}}, false, false, true},
		{DeviceFilter{Exclude: []DeviceSelector{"0:1"}}, true, true, false},
		{DeviceFilter{Exclude: []DeviceSelector{"model:*A100*"}}, false, true, false},
		{DeviceFilter{Include: []DeviceSelector{"0", "10"}, Exclude: []DeviceSelector{"10"}}, true, false, true},
	} {
		if c.s.Allows(deviceA100) != c.a100 || c.s.Allows(deviceT4) != c.t4 || c.s.Allows(deviceMIG) != c.onA100 {
			t.Errorf("%+v: got %t %t %t", c.s, c.s.Allows(deviceA100), c.s.Allows(deviceT4), c.s.Allows(deviceMIG))
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
		{ResourceNames{}.MIG(MIGMixed, "1g.10gb+me"), "nvidia.com/mig-1g.10gb.me"},
		{ResourceNames{}.MIG(MIGMixed, "1g.24gb+me.all"), "nvidia.com/mig-1g.24gb.me.all"},
		{ResourceNames{}.MIG(MIGMixed, "1g.24gb-me"), "nvidia.com/mig-1g.24gb-me"},
		{ResourceNames{}.MIG(MIGMixed, "1g.24gb+gfx"), "nvidia.com/mig-1g.24gb.gfx"},
		{ResourceNames{}.MIG(MIGMixed, "1c.3g.20gb"), "nvidia.com/mig-1c.3g.20gb"},
		{r.GPU("NVIDIA A100-SXM4-40GB"), "nvidia.com/a100"},
		{r.GPU("Tesla T4"), "example.com/other"},
		{r.MIG(MIGMixed, "1g.10gb"), "nvidia.com/small"},
		{r.MIG(MIGMixed, "1g.10gb+me"), "nvidia.com/mig-1g.10gb.me"}, // a pattern matches the whole profile
		{r.MIG(MIGSingle, "3g.20gb"), "nvidia.com/big"},
		{r.MIG(MIGSingle, "2g.20gb"), "nvidia.com/gpu"},
		{r.MIG(MIGNone, "3g.20gb"), ""},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
		if c.got != "" && CheckResourceName(c.got) != nil {
			t.Error(CheckResourceName(c.got))
		}
	}
}

// TestCheckResourceName checks the kubelet's rule for resource names.
func TestCheckResourceName(t *testing.T) {
	for name, ok := range map[string]bool{
		"nvidia.com/gpu": true, "nvidia.com/GPU_a.b-c": true, "a/b": true,
		"example.com/" + strings.Repeat("a", 63): true,
		strings.Repeat("a.", 121) + "a/gpu":      true,
		"":                                       false, "gpu": false, "/gpu": false, "nvidia.com/": false,
		"nvidia.com/a/b": false, "kubernetes.io/gpu": false, "x.kubernetes.io/gpu": false,
		"requests.nvidia.com/gpu": false, "Nvidia.com/gpu": false, "nvidia..com/gpu": false, "-a/gpu": false,
		"a_b/gpu":         false,
		"nvidia.com/-gpu": false, "nvidia.com/gpu.": false, "nvidia.com/g+u": false, "nvidia.com/gpü": false,
		"example.com/" + strings.Repeat("a", 64): false, strings.Repeat("a.", 122) + "a/gpu": false,
	} {
		if err := CheckResourceName(name); (err == nil) != ok {
			t.Errorf("%q: got error %v, want valid: %v", name, err, ok)
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
		{"none", nil, "0 0 0"},
		{"all", resources{shared(all, 4)}, "4 4 4"},
		{"all twice, as NVIDIA's plugin", resources{shared(all, 4), shared(all, 2)}, "4 4 4"},
		{"the first two by index", resources{shared(DeviceSelection{Count: 2}, 4)}, "4 4 0"},
		{"count above the number of devices", resources{shared(DeviceSelection{Count: 9}, 4)}, "4 4 4"},
		{"some", resources{shared(listed("0", "99"), 4)}, "4 0 0"},
		{"one device differs", resources{shared(all, 8), shared(listed("0"), 2)}, "2 8 8"},
		{"one device differs, listed first", resources{shared(listed("0"), 2), shared(all, 8)}, "2 8 8"},
		{
			"one device of a model differs",
			resources{shared(listed("model:Tesla*"), 8), shared(listed("2"), 2)},
			"0 2 8",
		},
		{
			"a model differs",
			resources{shared(all, 3), shared(DeviceSelection{Count: 3}, 5), shared(listed("model:Tesla*"), 2)},
			"5 2 2",
		},
		{"another resource", resources{{Name: "nvidia.com/mig-1g.5gb", Devices: all, Replicas: 2}}, "0 0 0"},
	} {
		var got []string
		for _, sharing := range (SharingMethod{Resources: c.resources}).DeviceSharings(GPUResource, devices) {
			if sharing.Resource != "" {
				t.Errorf("%s: got resource %s, want none", c.name, sharing.Resource)
			}
			got = append(got, fmt.Sprint(sharing.Replicas))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: got %v, want %s", c.name, got, c.want)
		}
	}
	renamed := SharingMethod{Resources: resources{
		{Name: GPUResource, Rename: "nvidia.com/gpu.shared", Devices: listed("0"), Replicas: 2},
	}}
	want := []DeviceSharing{{Resource: "nvidia.com/gpu.shared", Replicas: 2}, {}, {}}
	if got := renamed.DeviceSharings(GPUResource, devices); !reflect.DeepEqual(got, want) {
		t.Errorf("renamed: got %v, want %v", got, want)
	}
}

func TestActive(t *testing.T) {
	some := SharingMethod{Resources: []SharedResource{{
		Name: GPUResource, Devices: DeviceSelection{All: true},
		Replicas: 2,
	}}}
	for _, s := range []SharingConfig{{}, {TimeSlicing: some}, {MPS: some}} {
		if got, want := len(s.Active().Resources), len(s.MPS.Resources)+len(s.TimeSlicing.Resources); got != want {
			t.Errorf("%+v: got %d resources, want %d", s, got, want)
		}
	}
}
