package cdi_test

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"github.com/podgauge/podgauge/internal/cdi"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/plugin/response"
	"tags.cncf.io/container-device-interface/specs-go"
)

// TestHardware compares the spec with nvcdi's own spec for the same driver,
// which is based on NVML calls.
func TestHardware(t *testing.T) {
	if os.Getenv("PODGAUGE_GPU") == "" {
		t.Skip("PODGAUGE_GPU is not set: the test needs an NVIDIA GPU")
	}
	s := &writerFixture{TB: t, driverRoot: "/", specDir: t.TempDir()}
	driver := nvml.New(nvml.Options{DriverRoots: []string{"/"}})
	devices, err := driver.Devices(t.Context())
	s.must(err)
	t.Cleanup(driver.Close)
	s.newWriter(cdi.Options{HookPath: testHookPath})
	began := time.Now()
	s.Update(healthyStatuses(devices))
	t.Logf("%d devices in %v, %+v", len(devices), time.Since(began), s.state)
	s.must(s.state.Err)
	for _, name := range s.cdiCache().ListDevices() {
		nodes, mounts, hooks, env := s.injectDevices(name)
		t.Logf("%s: nodes %q, %d mounts, hooks %q, environment %q", name, nodes, len(mounts), hooks, env)
	}
	for _, flags := range [][]string{{"disable-nvsandboxutils"}, nil} {
		if want, got := s.toolkitSpec(flags), s.readSpec(response.GPUClass); got != want {
			t.Errorf("flags %q: got podgauge's spec\n%s\nwant nvcdi's spec\n%s", flags, got, want)
		}
	}
}

// toolkitSpec returns nvcdi's own spec.
func (s *writerFixture) toolkitSpec(flags []string) string {
	s.Helper()
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	s.must(err)
	lib, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithVendor(response.CDIVendor),
		nvcdi.WithClass(response.GPUClass),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithNVIDIACDIHookPath(testHookPath),
		nvcdi.WithDisabledHooks("update-application-profile", "apply-cuda-memory-limits"),
		nvcdi.WithFeatureFlags(flags...),
	)
	s.must(err)
	spec, err := lib.GetSpec()
	s.must(err)
	spec.Raw().Version, err = specs.MinimumRequiredVersion(spec.Raw())
	s.must(err)
	var text bytes.Buffer
	s.must(json.NewEncoder(&text).Encode(spec.Raw()))
	return string(bytes.TrimSuffix(text.Bytes(), []byte("\n")))
}
