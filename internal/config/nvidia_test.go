package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestNvidiaSamples checks the effect of the samples of NVIDIA's README, Helm chart and operator, in
// testdata/nvidia.txt. Keys of a newer plugin are ignored: they must not stop podgauge.
func TestNvidiaSamples(t *testing.T) {
	var got strings.Builder
	for sample := range strings.FieldsSeq("readme-flags.yaml readme-timeslicing.yaml readme-timeslicing-renamed.yaml readme-mps.yaml " +
		"readme-mps-renamed.yaml readme-two/config0 readme-two/config1 values-map values-map/default values-map/mig-single " +
		"values-map/mig-mixed operator-all operator-fine/tesla-t4 operator-fine/a100-40gb newer.yaml") {
		file, name, _ := strings.Cut(sample, "/")
		// NVIDIA's chart always sets MPS_ROOT.
		env := map[string]string{"MPS_ROOT": "/run/nvidia/mps", "CONFIG_FILE": "testdata/nvidia/" + file, "CONFIG_NAME": name}
		l, err := newTestBuilder(t, env).Load()
		if err != nil {
			t.Errorf("%s: %v", sample, err)
		}
		fmt.Fprintf(&got, "== %s\n%s\n", sample, describe(l))
	}
	testfile.CheckGolden(t, *update, "testdata/nvidia.txt", got.String())
}

// FuzzFile checks that no file makes the parser panic. The Settings of an
// accepted file keep their invariants.
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
	})
}

// checkInvariants checks the invariants of Settings.
func checkInvariants(t *testing.T, s Settings) {
	names := []string{s.Resources.GPU("x"), s.Resources.MIG(MIGMixed, "1g.5gb")}
	for _, shared := range []SharingMethod{s.Sharing.MPS, s.Sharing.TimeSlicing} {
		for _, r := range shared.Resources {
			names = append(names, r.Name, cmp.Or(r.Rename, r.Name))
			if r.Replicas < 2 || r.Replicas > maxReplicas || !r.Devices.All && r.Devices.Count <= 0 && len(r.Devices.List) == 0 {
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
