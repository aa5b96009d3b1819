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

// noSetup prepares a folder without a library.
func noSetup(string) {}

// installLibrary puts a library where a driver root has it.
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

// skipWithDriver skips a test of a machine without a driver.
func skipWithDriver(t *testing.T) {
	t.Helper()
	library := dl.New(lib.Soname, dl.RTLD_LAZY)
	if library.Open() == nil {
		library.Close() //nolint:errcheck // the test is over
		t.Skip("this machine has a driver")
	}
}

// wantNoDriver lists, and wants ErrNoDriver and a text. Nothing else may call NVML
// then: to call a function of no library would end the process.
func (s *backendFixture) wantNoDriver(text string) {
	s.Helper()
	devices, err := s.Devices(context.Background())
	if len(devices) != 0 || !errors.Is(err, device.ErrNoDriver) || !strings.Contains(err.Error(), text) {
		s.Errorf("%d devices, error %v, want %q", len(devices), err, text)
	}
	s.wantCallsFail()
	if s.MissingFamilies() != nil {
		s.Errorf("missing are %v", s.MissingFamilies())
	}
}

// wantCallsFail wants Read, Check and Wait to fail at once.
func (s *backendFixture) wantCallsFail() {
	s.Helper()
	buf := []device.Sample{{}}
	got, readErr := s.Read("GPU-0", buf)
	_, checkErr := s.Check("GPU-0")
	event, waitErr := s.Wait(context.Background())
	for _, err := range []error{readErr, checkErr, waitErr} {
		if !errors.Is(err, device.ErrNoDriver) {
			s.Errorf("got error %v", err)
		}
	}
	if len(got) != 1 || event != (device.Event{}) {
		s.Errorf("got %v, %+v", got, event)
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

// TestLibraryAppears has a driver being installed, under the second root.
func TestLibraryAppears(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
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
		s.must(os.RemoveAll(root)) // it stays loaded
		s.list(2)
		s.Close()
		s.list(2)
	})
}

// TestLibraryBehindLinks has a driver that is found by links as Debian's alternatives are: their ends are meant in the driver's root, and
// not in the root of this process.
func TestLibraryBehindLinks(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "root/usr/lib/x86_64-linux-gnu/nvidia/current") }, func(t *testing.T, dir string) {
		skipWithDriver(t)
		root := filepath.Join(dir, "root")
		s := newFixture(t, Options{DriverRoots: []string{root + "/"}}, "gpus 2")
		s.wantNoDriver("cannot open")

		const links, real = "etc/alternatives/glx--libnvidia-ml.so.1", "usr/lib/x86_64-linux-gnu/nvidia/current"
		s.must(os.MkdirAll(filepath.Join(root, filepath.Dir(links)), 0o755))
		s.must(os.Symlink("/"+links, filepath.Join(root, filepath.Dir(real), "..", lib.Soname)))
		s.wantNoDriver("cannot open") // the link leads nowhere yet
		s.must(os.Symlink("/"+real+"/"+lib.Soname, filepath.Join(root, links)))
		s.list(2)
		if got, want := s.LibraryInfo().Library, filepath.Join(root, real, lib.Soname); got != want {
			t.Errorf("loaded %s, want %s", got, want)
		}
	})
}

// TestUselessLibrary has a library without the required functions in the first place. No call may be bound to that library.
func TestUselessLibrary(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
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
		if about := s.LibraryInfo(); about.Library != "" || about.MissingFunctions != nil {
			t.Errorf("before a listing: %+v", about)
		}
		s.list(1)
		about := s.LibraryInfo()
		if about.Library != filepath.Join(dir, "lib64", lib.Soname) || about.Version == "" || !slices.Equal(about.MissingFunctions, []string{"nvmlDeviceGetSerial", "nvmlGpmMetricsGet"}) {
			t.Errorf("got %+v", about)
		}
	})
}

// TestSoname leaves it to the dynamic linker.
func TestSoname(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "ld") }, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 3")
		s.list(3)
	})
}

// TestDriverComesLater has the library there, and no driver under it.
func TestDriverComesLater(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
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

// TestReplacedDriver has a module of another version. A new process helps where the
// driver worked before, or the library's file is another one now.
func TestReplacedDriver(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, func(t *testing.T, dir string) {
		wants := func(s *backendFixture, replaced bool) {
			t.Helper()
			_, err := s.Devices(context.Background())
			if !errors.Is(err, device.ErrNoDriver) || errors.Is(err, device.ErrDriverReplaced) != replaced {
				t.Errorf("got %v, want it replaced: %v", err, replaced)
			}
			s.wantCallsFail()
		}
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		wants(s, false) // the module may follow, or the node wait to be booted
		wants(s, false)
		s.set("fail nvmlInit_v2 gpu - NO_PERMISSION")
		wants(s, false)
		s.clear("fail")
		s.list(-1) // it did
		s.Close()
		s.set("fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		wants(s, true)

		s = newFixture(t, Options{DriverRoots: []string{dir}}, "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		wants(s, false)
		content, err := os.ReadFile(filepath.Join(dir, "lib64", lib.Soname))
		s.must(err)
		s.must(os.Remove(filepath.Join(dir, "lib64", lib.Soname)))
		wants(s, true)
		installBytes(t, content, dir, "lib64")
		wants(s, true)
	})
}

// TestDriverReplacedLater has a call after the first find the replaced driver.
func TestDriverReplacedLater(t *testing.T) {
	s := newListedFixture(t, "gpus 1")
	s.set("fail nvmlDeviceGetCount_v2 gpu - LIB_RM_VERSION_MISMATCH", "fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
	for range 2 {
		if _, err := s.Devices(context.Background()); !errors.Is(err, device.ErrDriverReplaced) {
			t.Errorf("got %v", err)
		}
		s.wantCallsFail()
	}
}

// TestHangingInit has the driver never return from its initialisation.
func TestHangingInit(t *testing.T) {
	library := filepath.Join(wholeLibrary, lib.Soname)
	runInChild(t, func(dir string) { installLibrary(t, library, dir, "lib64") }, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, "gpus 2", "hang nvmlInit_v2 gpu -")
		done := make(chan error, 1)
		go func() { _, err := s.Devices(context.Background()); done <- err }() // ends with the hang; received below
		s.eventually("Init hangs", func() bool { return s.libraryLoaded() && s.calls().InFlight(nvmltest.NoGPU) == 1 })
		s.wantCallsFail()
		if s.MissingFamilies() != nil {
			t.Errorf("missing are %v", s.MissingFamilies())
		}
		if about := s.LibraryInfo(); about.Library != filepath.Join(dir, "lib64", lib.Soname) || about.Version != "" {
			t.Errorf("while Init hangs: %+v", about)
		}
		calls := s.calls()
		if n := calls.GPUTotal(nvmltest.NoGPU) + calls.GPUTotal(0); n != 1 {
			t.Errorf("%d calls were made", n)
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

// newerSymbols are functions that older drivers lack. The ones that podgauge calls have
// something that stands in for them, or are missed.
var newerSymbols = []string{
	"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
	"nvmlDeviceGetPciInfo_v3", "nvmlEventSetWait_v2", "nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode", "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetTemperatureV", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetGpuFabricInfoV", "nvmlGpmSampleGet",
}

// TestOldDriver reads the present values of an old driver, and reports the missing families.
func TestOldDriver(t *testing.T) {
	runInChild(t, func(dir string) { buildLibrary(t, filepath.Join(dir, "lib64"), newerSymbols...) }, func(t *testing.T, dir string) {
		s := newFixture(t, Options{DriverRoots: []string{dir}}, append(nvmltest.BusyGPU, "gpus 2")...)
		s.list(2)
		// Rows that have a source which is there are read from that.
		want := map[string]float64{}
		var wantMissing []string
		for _, m := range metric.Metrics() {
			sources := strings.Split(m.Source, "; ")
			sources = slices.DeleteFunc(sources, func(source string) bool {
				return strings.HasPrefix(source, "field ") || strings.HasPrefix(source, "nvmlGpm") || slices.Contains(newerSymbols, source)
			})
			if len(sources) > 0 {
				want[seriesName(m)] = nvmltest.BusyValues[seriesName(m)]
			} else if !slices.Contains(wantMissing, m.Name) {
				wantMissing = append(wantMissing, m.Name)
			}
		}
		if got := s.MissingFamilies(); !slices.Equal(got, wantMissing) {
			t.Errorf("missing are %v\nwant %v", got, wantMissing)
		}
		for name := range nvmltest.OldDriverValues { // it has the SRAM status
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
			t.Errorf("got %+v", got)
		}
	})
}

// TestMinimalDriver has the required functions only.
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
		if _, err := s.Read(s.id(0), nil); err == nil || errors.Is(err, device.ErrLost) {
			t.Errorf("a reading: %v", err)
		}
		if _, err := s.Check(s.id(0)); err != nil {
			t.Error(err)
		}
		if e, err := s.Wait(context.Background()); e != (device.Event{}) || err != nil {
			t.Errorf("got %+v, %v", e, err)
		}
		s.set("gpu 0 lost")
		if _, err := s.Check(s.id(0)); !errors.Is(err, device.ErrLost) {
			t.Errorf("got %v", err)
		}
		families := map[string]bool{}
		for _, m := range metric.Metrics() {
			families[m.Name] = true
		}
		made := 0
		for _, m := range metric.DerivedFamilies {
			made += len(m.Families)
		}
		if got := s.MissingFamilies(); len(got) != len(families)+made {
			t.Errorf("missing are %v", got)
		}
	})
}
