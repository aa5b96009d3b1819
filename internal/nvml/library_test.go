package nvml_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/podgauge/podgauge/internal/device"
	"github.com/podgauge/podgauge/internal/nvml"
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"
	"github.com/podgauge/podgauge/test/helpers/expect"
	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// skipWithDriver skips the test on a machine with a driver.
func skipWithDriver(t *testing.T) {
	t.Helper()
	library := dl.New(lib.Soname, dl.RTLD_LAZY)
	if library.Open() == nil {
		library.Close() //nolint:errcheck // the test is skipped
		t.Skip("this machine has a driver")
	}
}

// wantNoDriver lists and requires ErrNoDriver and a text. No NVML call may
// follow: a call of a missing function would end the process.
func (s *fixture) wantNoDriver(text string) {
	s.Helper()
	devices, err := s.tryList()
	if len(devices) != 0 || !errors.Is(err, device.ErrNoDriver) || !strings.Contains(err.Error(), text) {
		s.Errorf("got %d devices, error %v, want %q", len(devices), err, text)
	}
	s.wantCallsFail()
	if s.Library().MissingFamilies != nil {
		s.Errorf("missing families: got %v, want nil", s.Library().MissingFamilies)
	}
}

// wantCallsFail requires Read, Check, Wait and Links to fail at once.
func (s *fixture) wantCallsFail() {
	s.Helper()
	got, readErr := s.Read("GPU-0")
	_, checkErr := s.Check("GPU-0")
	event, waitErr := s.Wait(context.Background())
	_, linksErr := s.Links(context.Background())
	for _, err := range []error{readErr, checkErr, waitErr, linksErr} {
		expect.ErrorIs(s, err, device.ErrNoDriver)
	}
	if len(got) != 0 || event != (device.Event{}) {
		s.Errorf("got samples %v and event %+v, want none", got, event)
	}
}

// TestLibraryAppears installs a driver later, under the second root, in parts.
func TestLibraryAppears(t *testing.T) {
	inChild(t, func(dir string) error { return installLibrary(filepath.Join(dir, "source")) },
		func(t *testing.T, dir string) {
			skipWithDriver(t)
			root := filepath.Join(dir, "second")
			s := newFixture(t, nvml.Options{DriverRoots: []string{filepath.Join(dir, "first"), "", root}}, "gpus 2")
			s.wantNoDriver("cannot open shared object file")
			s.Close()
			s.wantNoDriver("cannot open shared object file")

			whole, err := os.ReadFile(filepath.Join(dir, "source", lib.Soname))
			s.must(err)
			place := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
			s.must(installFile(nil, place))
			s.wantNoDriver("EOF")
			s.must(installFile([]byte("not a library, but a text"), place))
			s.wantNoDriver("bad magic number")
			for i := 1; i < 8; i++ {
				s.must(installFile(whole[:len(whole)*i/8], place))
				s.wantNoDriver(place)
			}
			s.must(os.Remove(filepath.Join(place, lib.Soname)))
			s.must(installFile(whole, place))
			s.list(2)
			s.values(1)
			s.must(os.RemoveAll(root)) // the library remains loaded
			s.list(2)
			s.Close()
			s.list(2)
		})
}

// TestLibraryBehindLinks has a library behind links like Debian's alternatives.
// Their targets are relative to the driver's root, not to the root of this
// process.
func TestLibraryBehindLinks(t *testing.T) {
	const links, real = "etc/alternatives/glx--libnvidia-ml.so.1", "usr/lib/x86_64-linux-gnu/nvidia/current"
	inChild(t, func(dir string) error { return installLibrary(filepath.Join(dir, "root", real)) },
		func(t *testing.T, dir string) {
			skipWithDriver(t)
			root := filepath.Join(dir, "root")
			s := newFixture(t, nvml.Options{DriverRoots: []string{root + "/"}}, "gpus 2")
			s.wantNoDriver("cannot open")
			s.must(os.MkdirAll(filepath.Join(root, filepath.Dir(links)), 0o755))
			s.must(os.Symlink("/"+links, filepath.Join(root, filepath.Dir(real), "..", lib.Soname)))
			s.wantNoDriver("cannot open") // the target of the link is missing
			s.must(os.Symlink("/"+real+"/"+lib.Soname, filepath.Join(root, links)))
			s.list(2)
			expect.Equal(t, s.Library().Path, filepath.Join(root, real, lib.Soname), "loaded library")
		})
}

// TestIncompleteLibrary has a first library without the required functions. No
// call may bind to it.
func TestIncompleteLibrary(t *testing.T) {
	inChild(t, func(dir string) error {
		return errors.Join(installLibrary(filepath.Join(dir, "second/usr/lib64")),
			buildLibrary(filepath.Join(dir, "first/lib64"), "nvmlDeviceGetUUID"))
	}, func(t *testing.T, dir string) {
		skipWithDriver(t)
		roots := []string{filepath.Join(dir, "first"), filepath.Join(dir, "second")}
		s := newFixture(t, nvml.Options{DriverRoots: roots[:1]}, "gpus 2")
		s.wantNoDriver("the library lacks nvmlDeviceGetUUID")
		newFixture(t, nvml.Options{DriverRoots: roots}, "gpus 2").list(2)
	})
}

func TestLibraryInfo(t *testing.T) {
	missing := []string{"nvmlDeviceGetSerial", "nvmlGpmMetricsGet"}
	withLibrary(t, missing, []string{"gpus 1"}, func(s *fixture) {
		if info := s.Library(); info.Path != "" || info.MissingFunctions != nil {
			s.Errorf("before a listing: got %+v, want none", info)
		}
		s.list(1)
		info := s.Library()
		if info.Path != filepath.Join(testDir, "lib64", lib.Soname) || info.Version == "" ||
			!slices.Equal(info.MissingFunctions, missing) {
			s.Errorf("got %+v, want the path, a version and two missing functions", info)
		}
	})
}

// TestSoname lets the dynamic linker find the library.
func TestSoname(t *testing.T) {
	inChild(t, func(dir string) error { return installLibrary(filepath.Join(dir, "ld")) },
		func(t *testing.T, dir string) {
			newFixture(t, nvml.Options{DriverRoots: []string{dir}}, "gpus 3").list(3)
		})
}

// TestDriverComesLater has a library whose driver is loaded later.
func TestDriverComesLater(t *testing.T) {
	withLibrary(t, nil, nil, func(s *fixture) {
		s.must(os.Remove(filepath.Join(testDir, "scenario")))
		for range 3 {
			s.wantNoDriver("initialize NVML: DRIVER_NOT_LOADED")
		}
		s.set("gpus 2")
		s.list(2)
		s.values(0)
	})
}

// TestReplacedDriver has a module of another version. A new process helps if
// the driver worked before, or if the library's file was replaced.
func TestReplacedDriver(t *testing.T) {
	const mismatch = "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH"
	withLibrary(t, nil, []string{mismatch}, func(s *fixture) {
		want := func(s *fixture, replaced bool) {
			s.Helper()
			_, err := s.tryList()
			if !errors.Is(err, device.ErrNoDriver) || errors.Is(err, device.ErrDriverReplaced) != replaced {
				s.Errorf("got %v, want ErrDriverReplaced: %v", err, replaced)
			}
			s.wantCallsFail()
		}
		want(s, false) // the module may be loaded later, or a reboot may be pending
		want(s, false)
		s.clear("fail")
		s.list(-1) // the module was loaded
		s.set("fail nvmlDeviceGetCount_v2 gpu - LIB_RM_VERSION_MISMATCH", mismatch)
		want(s, true) // found by the count, then by Init
		want(s, true)
		s.Close()
		want(s, true)

		s = newFixture(s, nvml.Options{DriverRoots: []string{testDir}}, mismatch)
		want(s, false)
		path := filepath.Join(testDir, "lib64", lib.Soname)
		content, err := os.ReadFile(path)
		s.must(err)
		s.must(os.Remove(path))
		want(s, true)
		s.must(installFile(content, filepath.Dir(path)))
		want(s, true)
	})
}

// TestHangingInit has a driver that never returns from its initialization.
func TestHangingInit(t *testing.T) {
	withLibrary(t, nil, []string{"gpus 2", "hang nvmlInit_v2 gpu -"}, func(s *fixture) {
		done := make(chan error, 1)
		go func() { _, err := s.tryList(); done <- err }() // ends with the hang; received below
		s.eventually("Init hangs", func() bool { return s.libraryLoaded() && s.calls().InFlight(nvmltest.NoGPU) == 1 })
		s.wantCallsFail()
		info := s.Library()
		if info.Path != filepath.Join(testDir, "lib64", lib.Soname) || info.Version != "" || info.MissingFamilies != nil {
			s.Errorf("while Init hangs: got %+v, want the path only", info)
		}
		calls := s.calls()
		expect.Equal(s, calls.GPUTotal(nvmltest.NoGPU)+calls.GPUTotal(0), 1, "calls")
		s.clear("hang")
		s.must(<-done)
		s.values(1)
	})
}

// newerSymbols are functions that older drivers lack. podgauge calls other
// functions instead, or reports the families as missing.
var newerSymbols = []string{
	"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
	"nvmlDeviceGetPciInfo_v3", "nvmlEventSetWait_v2", "nvmlInit_v2", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode",
	"nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetTemperatureV",
	"nvmlDeviceGetMarginTemperature", "nvmlDeviceGetGpuFabricInfoV", "nvmlGpmSampleGet",
}

// TestOldDriver reads the available values of an old driver, and checks the
// missing families.
func TestOldDriver(t *testing.T) {
	withLibrary(t, newerSymbols, append(nvmltest.BusyGPU, "gpus 2"), func(s *fixture) {
		s.list(2)
		// Rows with several sources use an available one.
		want := map[string]float64{}
		var wantMissing []string
		for _, m := range metric.Metrics() {
			sources := slices.DeleteFunc(strings.Split(m.Source, "; "), func(source string) bool {
				return strings.HasPrefix(source, "field ") || strings.HasPrefix(source, "nvmlGpm") ||
					slices.Contains(newerSymbols, source)
			})
			if len(sources) > 0 {
				want[seriesName(m)] = nvmltest.BusyValues[seriesName(m)]
			} else if !slices.Contains(wantMissing, m.Name) {
				wantMissing = append(wantMissing, m.Name)
			}
		}
		expect.EqualSlices(s, s.Library().MissingFamilies, wantMissing, "missing families")
		for name := range nvmltest.OldDriverValues { // this driver has the SRAM status instead
			delete(want, name)
		}
		want["nvidia_gpu_memory_used_bytes"] += nvmltest.BusyValues["nvidia_gpu_memory_reserved_bytes"]
		want["nvidia_gpu_power_watts"] = 70
		if got := s.values(0); !maps.Equal(got, want) {
			s.Errorf("got %v\nwant %v", got, want)
		}
		s.resets(1) // a check
		s.register()
		s.wantXid("old driver", 1)
	})
}

// TestMinimalDriver has only the required functions.
func TestMinimalDriver(t *testing.T) {
	var without []string
	for _, f := range lib.Functions {
		if !slices.Contains(lib.RequiredFunctions, f) {
			without = append(append(without, f), lib.OlderVersions[f]...)
		}
	}
	withLibrary(t, append(without, metric.Symbols()...), []string{"gpus 2"}, func(s *fixture) {
		s.list(2)
		if _, err := s.Read(s.id(0)); err == nil || errors.Is(err, device.ErrLost) {
			s.Errorf("Read: got %v, want an error other than ErrLost", err)
		}
		if _, known := s.ReadProcessUsage(s.id(0)); known {
			s.Error("process usage: got known, want unknown")
		}
		s.resets(0) // a check
		if e, err := s.Wait(context.Background()); e != (device.Event{}) || err != nil {
			s.Errorf("Wait: got %+v, %v, want no event", e, err)
		}
		if got, err := s.linkMatrix(); err != nil || !slices.Equal(got, []string{"0: - 0?", "1: 0? -"}) {
			s.Errorf("links: got %q, %v, want unknown paths", got, err)
		}
		s.set("gpu 0 lost")
		if _, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) {
			s.Errorf("Check: got %v, want ErrLost", err)
		}
		families := map[string]bool{}
		for _, m := range metric.Metrics() {
			families[m.Name] = true
		}
		for _, m := range metric.DerivedFamilies {
			for _, name := range m.Families {
				families[name] = true
			}
		}
		if got := s.Library().MissingFamilies; len(got) != len(families) {
			s.Errorf("missing families: got %v, want all", got)
		}
	})
}
