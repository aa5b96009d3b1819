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

	"github.com/podgauge/podgauge/test/helpers/require"
	"github.com/podgauge/podgauge/test/helpers/testfile"
)

// TestExports compares the exports with go-nvml's functions, which c-for-go generates from the same header.
func TestExports(t *testing.T) {
	dir, err := nvmlHeaderDir()
	require.NoError(t, err)
	bindings := testfile.Read(t, filepath.Join(dir, "nvml.go"))
	var want []string
	for _, m := range regexp.MustCompile(`C\.(nvml\w+)\(`).FindAllStringSubmatch(bindings, -1) {
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
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	var names []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Name != "" { // the linker for arm64 exports sections, too
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
