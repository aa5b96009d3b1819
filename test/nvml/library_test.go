package nvmltest

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestExports compares the exports with go-nvml's functions, which c-for-go generates from the same header.
func TestExports(t *testing.T) {
	dir, err := nvmlHeaderDir()
	if err != nil {
		t.Fatal(err)
	}
	bindings, err := os.ReadFile(filepath.Join(dir, "nvml.go"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`C\.(nvml\w+)\(`).FindAllStringSubmatch(string(bindings), -1) {
		want = append(want, m[1])
	}
	slices.Sort(want)
	want = slices.Compact(want)
	if got := exportedSymbols(t, library(t)); len(want) < 400 || !slices.Equal(want, got) {
		t.Errorf("go-nvml calls %d functions, the library exports %d:\n%v\n%v", len(want), len(got), want, got)
	}
}

func exportedSymbols(t *testing.T, lib string) []string {
	t.Helper()
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestBuildRejectsUnknownFunction(t *testing.T) {
	if _, err := Build(t.TempDir(), "nvmlDeviceGetTemprature"); err == nil || !strings.Contains(err.Error(), "Temprature") {
		t.Errorf("got %v", err)
	}
}

// TestOlderDriver checks that go-nvml uses its fallbacks for missing functions, and that LookupSymbol returns an error for them.
func TestOlderDriver(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		symbols := n.Extensions()
		for _, name := range []string{"nvmlEventSetWait_v2", "nvmlDeviceGetFieldValues"} {
			if symbols.LookupSymbol(name) == nil {
				n.Errorf("%s was found", name)
			}
		}
		for _, name := range []string{"nvmlEventSetWait", "nvmlDeviceGetPowerUsage", "nvmlGpmMetricsGet"} {
			n.mustSucceed(symbols.LookupSymbol(name))
		}
		set, ret := n.EventSetCreate()
		n.want(nvml.SUCCESS, ret)
		n.want(nvml.SUCCESS, n.gpu(1).RegisterEvents(nvml.EventTypeXidCriticalError, set))
		n.event(1, "xid 79 gi 5 ci 6")
		e, ret := set.Wait(1000)
		n.want(nvml.SUCCESS, ret)
		// The old struct lacks the instance ids, and go-nvml returns zeros, which are valid ids.
		if e.EventData != 79 || e.GpuInstanceId != 0 || e.ComputeInstanceId != 0 {
			n.Errorf("got %+v", e)
		}
		if n.readCalls().Count("nvmlEventSetWait", NoGPU) != 1 {
			n.Error("the wait did not use the old function")
		}
	}, "nvmlEventSetWait_v2", "nvmlDeviceGetFieldValues")
}

// TestMissingFunctionEndsTheProcess checks that a missing symbol ends the process without an error or a panic.
// Programs must therefore look up each symbol before the first call.
func TestMissingFunctionEndsTheProcess(t *testing.T) {
	if lib := os.Getenv(childEnv); lib != "" {
		runOnNode(t, func(n *testNode) {
			n.setup()
			defer func() { _ = recover() }()
			_, ret := n.gpu(0).GetPowerUsage()
			n.Errorf("the call returned %v, want the end of the process", ret)
		})
		return
	}
	out, err := runChild(t, "nvmlDeviceGetPowerUsage")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 127 {
		t.Fatalf("got %v, want exit status 127\n%s", err, out)
	}
	if want := "undefined symbol: nvmlDeviceGetPowerUsage"; !strings.Contains(string(out), want) {
		t.Errorf("want %q in\n%s", want, out)
	}
}

func TestInit(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.want(nvml.ERROR_DRIVER_NOT_LOADED, n.Init()) // without a scenario file
		n.setLines()
		n.want(nvml.ERROR_UNINITIALIZED, returnOf(n.DeviceGetCount()))
		n.want(nvml.SUCCESS, n.Init())
		n.want(nvml.SUCCESS, n.Init())
		n.want(nvml.SUCCESS, n.Shutdown())
		n.want(nvml.SUCCESS, returnOf(n.DeviceGetCount()))
		n.want(nvml.SUCCESS, n.Shutdown())
		n.want(nvml.ERROR_UNINITIALIZED, returnOf(n.DeviceGetCount()))
		n.want(nvml.ERROR_UNINITIALIZED, n.Shutdown())

		n.mustSucceed(os.Remove(os.Getenv(EnvScenario)))
		n.want(nvml.ERROR_DRIVER_NOT_LOADED, n.Init())
		n.setLines("fail nvmlInit_v2 gpu - LIB_RM_VERSION_MISMATCH")
		n.want(nvml.ERROR_LIB_RM_VERSION_MISMATCH, n.Init())
		n.clear("fail")
		n.want(nvml.SUCCESS, n.Init())

		n.Setenv(EnvScenario, "")
		n.mustSucceed(os.Unsetenv(EnvScenario))
		n.want(nvml.ERROR_DRIVER_NOT_LOADED, n.Init())
	})
}

func returnOf[T any](_ T, ret nvml.Return) nvml.Return { return ret }

// TestStubs calls functions without simulated behavior.
func TestStubs(t *testing.T) {
	runOnNode(t, func(n *testNode) {
		n.setup()
		gpu := n.gpu(6)
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(gpu.GetGspFirmwareVersion()))
		n.want(nvml.ERROR_NOT_SUPPORTED, returnOf(n.UnitGetCount()))
		n.setLines("fail nvmlDeviceGetGspFirmwareVersion gpu 6 NO_PERMISSION", "fail nvmlUnitGetCount gpu - SUCCESS")
		n.want(nvml.ERROR_NO_PERMISSION, returnOf(gpu.GetGspFirmwareVersion()))
		n.want(nvml.SUCCESS, returnOf(n.UnitGetCount()))
		n.setLines("gpu 6 lost")
		n.clear("fail")
		n.want(nvml.ERROR_GPU_IS_LOST, returnOf(gpu.GetGspFirmwareVersion()))
		calls := n.readCalls()
		if got := calls.Count("nvmlDeviceGetGspFirmwareVersion", 6); got != 3 {
			n.Errorf("%d calls of a stub on GPU 6, want 3", got)
		}
		if got := calls.Count("nvmlUnitGetCount", NoGPU); got != 2 {
			n.Errorf("%d calls of a stub on no GPU, want 2", got)
		}
	})
}
