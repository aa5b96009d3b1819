package nvml

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
	"github.com/podgauge/podgauge/internal/nvml/lib"
	"github.com/podgauge/podgauge/internal/nvml/metric"

	nvmltest "github.com/podgauge/podgauge/test/nvml"
)

// noSetup leaves the directory without a library.
func noSetup(string) {}

// installLibrary installs a copy of a library in a driver root.
func installLibrary(t *testing.T, library, root, dir string) {
	t.Helper()
	content, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	installBytes(t, content, root, dir)
}

func installBytes(t *testing.T, content []byte, root, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, dir, lib.Soname), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

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
func (s *backendFixture) wantNoDriver(text string) {
	s.Helper()
	devices, err := s.Devices(context.Background())
	if len(devices) != 0 || !errors.Is(err, device.ErrNoDriver) || !strings.Contains(err.Error(), text) {
		s.Errorf("got %d devices, error %v, want %q", len(devices), err, text)
	}
	s.wantCallsFail()
	if s.MissingFamilies() != nil {
		s.Errorf("missing families: got %v, want nil", s.MissingFamilies())
	}
}

// wantCallsFail requires Read, Check and Wait to fail at once.
func (s *backendFixture) wantCallsFail() {
	s.Helper()
	got, readErr := s.Read("GPU-0")
	_, checkErr := s.Check("GPU-0")
	event, waitErr := s.Wait(context.Background())
	for _, err := range []error{readErr, checkErr, waitErr} {
		if !errors.Is(err, device.ErrNoDriver) {
			s.Errorf("got error %v, want ErrNoDriver", err)
		}
	}
	if len(got) != 0 || event != (device.Event{}) {
		s.Errorf("got samples %v and event %+v, want none", got, event)
	}
}

func TestNoLibrary(t *testing.T) {
	runInChild(t, noSetup, func(t *testing.T, dir string) {
		skipWithDriver(t)
		s := newFixture(t, Options{DriverRoots: []string{dir, ""}}, "gpus 1")
		for range 2 {
			s.wantNoDriver("cannot open shared object file")
		}
		s.Close()
		s.wantNoDriver("cannot open shared object file")
	})
}

// TestLibraryAppears installs a driver later, under the second root.
func TestLibraryAppears(t *testing.T) {
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "source") }, func(t *testing.T, dir string) {
		skipWithDriver(t)
		root := filepath.Join(dir, "second")
		s := newFixture(t, Options{DriverRoots: []string{filepath.Join(dir, "first"), root}}, "gpus 2")
		s.wantNoDriver("cannot open")

		whole, err := os.ReadFile(filepath.Join(dir, "source", lib.Soname))
		s.must(err)
		const place = "usr/lib/x86_64-linux-gnu"
		installBytes(t, nil, root, place)
		s.wantNoDriver("EOF")
		installBytes(t, []byte("not a library, but a text"), root, place)
		s.wantNoDriver("bad magic number")
		for i := 1; i < 8; i++ {
			installBytes(t, whole[:len(whole)*i/8], root, place)
			s.wantNoDriver(filepath.Join(root, place))
		}
		s.must(os.Remove(filepath.Join(root, place, lib.Soname)))
		installBytes(t, whole, root, place)
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
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "root/usr/lib/x86_64-linux-gnu/nvidia/current") },
		func(t *testing.T, dir string) {
			skipWithDriver(t)
			root := filepath.Join(dir, "root")
			s := newFixture(t, Options{DriverRoots: []string{root + "/"}}, "gpus 2")
			s.wantNoDriver("cannot open")

			const links, real = "etc/alternatives/glx--libnvidia-ml.so.1", "usr/lib/x86_64-linux-gnu/nvidia/current"
			s.must(os.MkdirAll(filepath.Join(root, filepath.Dir(links)), 0o755))
			s.must(os.Symlink("/"+links, filepath.Join(root, filepath.Dir(real), "..", lib.Soname)))
			s.wantNoDriver("cannot open") // the target of the link is missing
			s.must(os.Symlink("/"+real+"/"+lib.Soname, filepath.Join(root, links)))
			s.list(2)
			if got, want := s.LibraryInfo().Library, filepath.Join(root, real, lib.Soname); got != want {
				t.Errorf("loaded library: got %s, want %s", got, want)
			}
		})
}

// TestIncompleteLibrary has a first library without the required functions. No
// call may bind to it.
func TestIncompleteLibrary(t *testing.T) {
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) {
		installLibrary(t, library, dir, "second/usr/lib64")
		buildLibrary(t, filepath.Join(dir, "first", "lib64"), "nvmlDeviceGetUUID")
	}, func(t *testing.T, dir string) {
		skipWithDriver(t)
		first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
		s := newFixture(t, Options{DriverRoots: []string{first}}, "gpus 2")
		s.wantNoDriver("the library lacks nvmlDeviceGetUUID")
		s.options.DriverRoots = []string{first, second}
		s.list(2)
	})
}

func buildLibrary(t *testing.T, dir string, without ...string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := nvmltest.Build(dir, without...); err != nil {
		t.Fatal(err)
	}
}

// TestLibraryInfo checks the description of a library.
func TestLibraryInfo(t *testing.T) {
	runInChild(t, func(dir string) {
		buildLibrary(t, filepath.Join(dir, "lib64"), "nvmlDeviceGetSerial", "nvmlGpmMetricsGet")
	}, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 1")
		if info := s.LibraryInfo(); info.Library != "" || info.MissingFunctions != nil {
			t.Errorf("before a listing: got %+v, want none", info)
		}
		s.list(1)
		info := s.LibraryInfo()
		if info.Library != filepath.Join(dir, "lib64", lib.Soname) || info.Version == "" ||
			!slices.Equal(info.MissingFunctions, []string{"nvmlDeviceGetSerial", "nvmlGpmMetricsGet"}) {
			t.Errorf("got %+v, want the path, a version and two missing functions", info)
		}
	})
}

// TestSoname lets the dynamic linker find the library.
func TestSoname(t *testing.T) {
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "ld") }, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 3")
		s.list(3)
	})
}

// TestDriverComesLater has a library whose driver is loaded later.
func TestDriverComesLater(t *testing.T) {
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}})
		s.must(os.Remove(filepath.Join(dir, "scenario")))
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
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, func(t *testing.T, dir string) {
		wantReplaced := func(s *backendFixture, replaced bool) {
			t.Helper()
			_, err := s.Devices(context.Background())
			if !errors.Is(err, device.ErrNoDriver) || errors.Is(err, device.ErrDriverReplaced) != replaced {
				t.Errorf("got %v, want ErrDriverReplaced: %v", err, replaced)
			}
			s.wantCallsFail()
		}
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		wantReplaced(s, false) // the module may be loaded later, or a reboot may be pending
		wantReplaced(s, false)
		s.clear("fail")
		s.list(-1) // the module was loaded
		s.Close()
		s.set("fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		wantReplaced(s, true)

		s = newFixture(t, Options{DriverRoots: []string{dir}}, "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		wantReplaced(s, false)
		content, err := os.ReadFile(filepath.Join(dir, "lib64", lib.Soname))
		s.must(err)
		s.must(os.Remove(filepath.Join(dir, "lib64", lib.Soname)))
		wantReplaced(s, true)
		installBytes(t, content, dir, "lib64")
		wantReplaced(s, true)
	})
}

// TestDriverReplacedLater lets a call after the first one find the replaced
// driver.
func TestDriverReplacedLater(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.set("fail nvmlDeviceGetCount_v2 gpu - LIB_RM_VERSION_MISMATCH", "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
	for range 2 {
		if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("got %v, want ErrDriverReplaced", err)
		}
		s.wantCallsFail()
	}
}

// TestHangingInit has a driver that never returns from its initialization.
func TestHangingInit(t *testing.T) {
	library := filepath.Join(fullLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 2", "hang nvmlInit_v2 gpu -")
		done := make(chan error, 1)
		go func() { _, err := s.Devices(context.Background()); done <- err }() // ends with the hang; received below
		s.eventually("Init hangs", func() bool { return s.libraryLoaded() && s.calls().InFlight(nvmltest.NoGPU) == 1 })
		s.wantCallsFail()
		if s.MissingFamilies() != nil {
			t.Errorf("missing families while Init hangs: got %v, want nil", s.MissingFamilies())
		}
		if info := s.LibraryInfo(); info.Library != filepath.Join(dir, "lib64", lib.Soname) || info.Version != "" {
			t.Errorf("while Init hangs: got %+v, want the path only", info)
		}
		calls := s.calls()
		if n := calls.GPUTotal(nvmltest.NoGPU) + calls.GPUTotal(0); n != 1 {
			t.Errorf("got %d calls, want 1", n)
		}
		s.clear("hang")
		s.must(<-done)
		s.values(1)
	})
}

// libraryLoaded reports whether the stand-in counts its calls.
func (s *backendFixture) libraryLoaded() bool {
	_, err := os.Stat(filepath.Join(testDir, "calls"))
	return err == nil
}

// newerSymbols are functions that older drivers lack. podgauge calls other
// functions instead, or reports the families as missing.
var newerSymbols = []string{
	"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
	"nvmlDeviceGetPciInfo_v3", "nvmlEventSetWait_v2", "nvmlInit_v2", "nvmlDeviceGetCount_v2",
	"nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode", "nvmlSystemGetCudaDriverVersion",
	"nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetGpuFabricInfoV", "nvmlGpmSampleGet",
}

// TestOldDriver reads the available values of an old driver, and checks the
// missing families.
func TestOldDriver(t *testing.T) {
	runInChild(t, func(dir string) { buildLibrary(t, filepath.Join(dir, "lib64"), newerSymbols...) },
		func(t *testing.T, dir string) {
			s := newFixture(t, Options{DriverRoots: []string{dir}}, append(nvmltest.BusyGPU, "gpus 2")...)
			s.list(2)
			// Rows with several sources use an available one.
			want := map[string]float64{}
			var wantMissing []string
			for _, m := range metric.Metrics() {
				sources := strings.Split(m.Source, "; ")
				sources = slices.DeleteFunc(sources, func(source string) bool {
					return strings.HasPrefix(source, "field ") || strings.HasPrefix(source, "nvmlGpm") ||
						slices.Contains(newerSymbols, source)
				})
				if len(sources) > 0 {
					want[seriesName(m)] = nvmltest.BusyValues[seriesName(m)]
				} else if !slices.Contains(wantMissing, m.Name) {
					wantMissing = append(wantMissing, m.Name)
				}
			}
			if got := s.MissingFamilies(); !slices.Equal(got, wantMissing) {
				t.Errorf("missing families: got %v\nwant %v", got, wantMissing)
			}
			for name := range nvmltest.OldDriverValues { // this driver has the SRAM status instead
				delete(want, name)
			}
			want["nvidia_gpu_memory_used_bytes"] += nvmltest.BusyValues["nvidia_gpu_memory_reserved_bytes"]
			want["nvidia_gpu_power_watts"] = 70
			if got := s.values(0); !maps.Equal(got, want) {
				t.Errorf("got %v\nwant %v", got, want)
			}
			if _, err := s.Check(s.id(1)); err != nil {
				t.Error(err)
			}
			s.waitForRegistration()
			s.sendEvent(1, "xid 79")
			if got := s.nextEvent(); got.GPU != s.id(1) || got.Recovery != device.RecoveryAfterReset {
				t.Errorf("got %+v, want an event of GPU 1 with recovery after a reset", got)
			}
		})
}

// TestMinimalDriver has only the required functions.
func TestMinimalDriver(t *testing.T) {
	runInChild(t, func(dir string) {
		var without []string
		for _, f := range lib.Functions {
			if !slices.Contains(lib.RequiredFunctions, f) {
				without = append(append(without, f), lib.OlderVersions[f]...)
			}
		}
		buildLibrary(t, filepath.Join(dir, "lib64"), append(without, metric.Symbols()...)...)
	}, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 2")
		s.list(2)
		if _, err := s.Read(s.id(0)); err == nil || errors.Is(err, device.ErrLost) {
			t.Errorf("Read: got %v, want an error other than ErrLost", err)
		}
		if _, err := s.Check(s.id(0)); err != nil {
			t.Error(err)
		}
		if e, err := s.Wait(context.Background()); e != (device.Event{}) || err != nil {
			t.Errorf("Wait: got %+v, %v, want no event", e, err)
		}
		s.set("gpu 0 lost")
		if _, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) {
			t.Errorf("Check: got %v, want ErrLost", err)
		}
		families := map[string]bool{}
		for _, m := range metric.Metrics() {
			families[m.Name] = true
		}
		derived := 0
		for _, m := range metric.DerivedFamilies {
			derived += len(m.Families)
		}
		if got := s.MissingFamilies(); len(got) != len(families)+derived {
			t.Errorf("missing families: got %v, want all", got)
		}
	})
}
