package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/plugin/response"
)

// TestNvidiaSamples checks that the samples of NVIDIA's README, Helm chart and
// operator have the same effect.
func TestNvidiaSamples(t *testing.T) {
	all := DeviceSelection{All: true}
	slicing := func(pairs ...any) (s SharingConfig) {
		for i := 0; i < len(pairs); i += 2 {
			s.TimeSlicing.Resources = append(s.TimeSlicing.Resources,
				SharedResource{Name: pairs[i].(string), Devices: all, Replicas: ReplicaCount(pairs[i+1].(int))})
		}
		return s
	}
	renamed := func(s SharingMethod) SharingMethod {
		s.RenameByDefault = true
		for i := range s.Resources {
			s.Resources[i].Rename = s.Resources[i].Name + ".shared"
		}
		return s
	}
	ten := slicing(GPUResource, 10).TimeSlicing
	mps := ten
	mps.FailRequestsGreaterThanOne = true
	tenRenamed, mpsRenamed := slicing(GPUResource, 10).TimeSlicing, slicing(GPUResource, 10).TimeSlicing
	mpsRenamed.FailRequestsGreaterThanOne = true
	for _, c := range []struct {
		file, name string
		want       func(*Settings)
	}{
		{"readme-flags.yaml", "", func(s *Settings) { s.FailOnInitError = true }},
		{"readme-timeslicing.yaml", "", func(s *Settings) { s.Sharing.TimeSlicing = ten }},
		{"readme-timeslicing-renamed.yaml", "", func(s *Settings) { s.Sharing.TimeSlicing = renamed(tenRenamed) }},
		{"readme-mps.yaml", "", func(s *Settings) { s.Sharing.MPS = mps }},
		{"readme-mps-renamed.yaml", "", func(s *Settings) { s.Sharing.MPS = renamed(mpsRenamed) }},
		{"readme-two", "config0", func(s *Settings) { s.FailOnInitError = true }},
		{"readme-two", "config1", func(s *Settings) { s.MIGStrategy, s.FailOnInitError = MIGMixed, true }},
		{"values-map", "", func(*Settings) {}},
		{"values-map", "default", func(*Settings) {}},
		{"values-map", "mig-single", func(s *Settings) { s.MIGStrategy = MIGSingle }},
		{"values-map", "mig-mixed", func(s *Settings) { s.MIGStrategy = MIGMixed }},
		{"operator-all", "", func(s *Settings) { s.Sharing = slicing(GPUResource, 4) }},
		{"operator-fine", "tesla-t4", func(s *Settings) { s.Sharing = slicing(GPUResource, 4) }},
		{"operator-fine", "a100-40gb", func(s *Settings) {
			s.MIGStrategy = MIGMixed
			s.Sharing = slicing(GPUResource, 8, MIGResource("1g.5gb"), 2, MIGResource("2g.10gb"), 2,
				MIGResource("3g.20gb"), 3, MIGResource("7g.40gb"), 7)
		}},
	} {
		// NVIDIA's chart always sets MPS_ROOT.
		env := map[string]string{
			"MPS_ROOT": "/run/nvidia/mps", "CONFIG_FILE": filepath.Join("testdata/nvidia", c.file),
			"CONFIG_NAME": c.name,
		}
		l, err := newTestBuilder(t, env).Load()
		want := mustLoad(t, "version: v1\n").Settings
		want.MPSRoot = "/run/nvidia/mps"
		c.want(&want)
		if err != nil || !reflect.DeepEqual(l.Settings, want) || len(l.Notices)+len(l.UnknownKeys) > 0 {
			t.Errorf("%s %s: got\n%+v\nwant\n%+v\nerror %v, notices %q", c.file, c.name, l.Settings, want, err,
				l.Notices)
		}
	}
}

// TestNvidiaKeys checks a file with all keys. Keys of NVIDIA's other programs
// are ignored, each with a notice.
func TestNvidiaKeys(t *testing.T) {
	l, err := newTestBuilder(t, nil, "--config-file=testdata/full.json").Load()
	want := Settings{
		MIGStrategy: MIGSingle, FailOnInitError: true, DriverRoot: "/run/nvidia/driver", DevRoot: "/",
		ContainerDriverRoot: "/host", PassDeviceSpecs: true,
		DeviceListStrategy: []response.DeviceListStrategy{response.EnvVar, response.CDIAnnotations},
		DeviceIDStrategy:   "index", GDRCopy: true, GDS: true, MOFED: true,
		CDIAnnotationPrefix: "cdi.example.com/", CDIHookPath: "/usr/local/bin/nvidia-cdi-hook",
		MPSRoot:          "/run/nvidia/mps",
		AllocationPolicy: "packed", DeviceDiscovery: "nvml", IMEX: IMEX{ChannelIDs: []int{0}, Required: true},
		KubeletSocket: "/var/lib/kubelet/device-plugins/kubelet.sock",
		Sharing: SharingConfig{TimeSlicing: SharingMethod{
			RenameByDefault: true, FailRequestsGreaterThanOne: true,
			Resources: []SharedResource{
				{Name: GPUResource, Rename: "nvidia.com/gpu.shared", Devices: DeviceSelection{Count: 2}, Replicas: 4},
				{
					Name: "nvidia.com/small", Rename: "nvidia.com/tiny",
					Devices: DeviceSelection{List: []DeviceSelector{
						"0", "1", "0:1", uuid0,
						"MIG-" + DeviceSelector(uuid0) + "/3/0",
					}}, Replicas: 2,
				},
			},
		}},
		Resources: ResourceNames{
			GPUs: []NamePattern{{"*A100*", "nvidia.com/a100"}},
			MIGs: []NamePattern{{"1g.*", "nvidia.com/small"}},
		},
	}
	if err != nil || !reflect.DeepEqual(l.Settings, want) {
		t.Errorf("got\n%+v\nwant\n%+v\nerror %v", l.Settings, want, err)
	}
	if len(l.Notices) != 7 {
		t.Errorf("got notices %q, want 7", l.Notices)
	}
	if from := l.Origins["mig-strategy"]; from != "testdata/full.json:4" {
		t.Errorf("origin of the MIG strategy: got %s, want testdata/full.json:4", from)
	}
}

// FuzzFile checks that no file makes the parser panic. The Settings of an
// accepted file keep their invariants, and marshaling does not change them.
func FuzzFile(f *testing.F) {
	f.Add([]byte(namedConfigs))
	f.Add([]byte("configs: {\"a\\nb\": {}, \"c\\e[31m\": {}}\n"))
	f.Add([]byte("\"two\\nlines\": 1\n"))
	f.Add([]byte("version: v1\nflags: &f {<<: {migStrategy: mixed}}\npodgauge: {select: {include: [0, \"0:1\"]}}\n"))
	f.Add([]byte("{\"sharing\": {\"mps\": {\"resources\": [{\"name\": \"gpu\", \"replicas\": 0x10, \"devices\": " +
		"3}]}}}"))
	filepath.WalkDir("testdata", func(path string, e os.DirEntry, _ error) error {
		if data, err := os.ReadFile(path); err == nil && !strings.Contains(path, "fuzz") {
			f.Add(data)
		}
		return nil
	})
	b := newTestBuilder(f, map[string]string{"MPS_ROOT": "/mps"})
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := b.load(rawConfig{file: "f", data: string(data)})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("got error %q, want one line with the file", err)
			}
			return
		}
		checkInvariants(t, l.Settings)
		root, err := parseYAML(data)
		if err != nil {
			t.Fatal(err)
		}
		reloaded, err := b.load(rawConfig{file: "f", data: string(write(t, root))})
		if err != nil || !reflect.DeepEqual(reloaded.Settings, l.Settings) {
			t.Fatalf("after marshaling: got %+v, error %v, want %+v", reloaded.Settings, err, l.Settings)
		}
	})
}

// checkInvariants checks the invariants of Settings.
func checkInvariants(t *testing.T, s Settings) {
	names := []string{s.Resources.GPU("x"), s.Resources.MIG(MIGMixed, "1g.5gb")}
	for _, shared := range []SharingMethod{s.Sharing.MPS, s.Sharing.TimeSlicing} {
		for _, r := range shared.Resources {
			if names = append(names, r.Name); r.Rename != "" {
				names = append(names, r.Rename)
			}
			if r.Replicas < 2 || r.Replicas > maxReplicas || !r.Devices.All && r.Devices.Count <= 0 &&
				len(r.Devices.List) == 0 {
				t.Errorf("got %+v, want at least 2 replicas of some devices", r)
			}
		}
		shared.DeviceSharings(GPUResource, []device.Device{deviceA100, deviceT4, deviceMIG})
	}
	for _, name := range names {
		if err := CheckResourceName(name); err != nil {
			t.Error(err)
		}
	}
	if len(s.DeviceListStrategy) == 0 || len(s.Sharing.MPS.Resources) > 0 && len(s.Sharing.TimeSlicing.Resources) > 0 {
		t.Errorf("got %+v, want a device list strategy and one kind of sharing", s)
	}
}

// TestNewerNvidiaKeys checks that keys of a newer NVIDIA plugin are ignored.
// They must not stop podgauge.
func TestNewerNvidiaKeys(t *testing.T) {
	l, err := newTestBuilder(t, nil, "--config-file=testdata/nvidia/newer.yaml").Load()
	if err != nil {
		t.Fatal(err)
	}
	want := mustLoad(t, "version: v1\n").Settings
	want.MIGStrategy = MIGMixed
	want.Sharing.TimeSlicing.Resources = []SharedResource{{
		Name: GPUResource, Devices: DeviceSelection{All: true},
		Replicas: 4,
	}}
	want.Resources.GPUs = []NamePattern{{"*", GPUResource}}
	if !reflect.DeepEqual(l.Settings, want) {
		t.Errorf("got\n%+v\nwant\n%+v", l.Settings, want)
	}
	if len(l.UnknownKeys) != 5 {
		t.Errorf("got unknown keys %v, want 5", l.UnknownKeys)
	}
}
